import type { Graph } from "./collapse"
import { layout } from "./layout"

// Hundreds of nodes take a second: the page goes on meanwhile.
self.onmessage = ({ data }: MessageEvent<Graph>) => self.postMessage(layout(data))
