import "./look/tokens.css"
import "./look/base.css"
import "./part/part.css"
import { createRoot } from "react-dom/client"
import { App, bring } from "./app"
import { beginKinds } from "./hub/kinds"
import { live } from "./hub/live"
import { start } from "./hub/session"
import { nonceForStyles } from "./look/nonce"
import { showTheme } from "./look/theme"
import { startLanguage } from "./text/text"

nonceForStyles()
showTheme()
bring(location.pathname)
if ((await Promise.all([start(), startLanguage()]))[0]) {
  // What nearly every screen asks for is on its way while the first is drawn.
  live.begin()
  beginKinds()
}
createRoot(document.getElementById("root")!).render(<App />)
