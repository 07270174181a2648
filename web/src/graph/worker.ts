import type { Graph } from "./collapse"
import { layout } from "./layout"

// The layout of hundreds of nodes takes a second. In a worker it does not block the page.
self.onmessage = ({ data }: MessageEvent<Graph>) => self.postMessage(layout(data))
