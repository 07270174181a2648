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
import { askAhead } from "./table/ahead"
import { startLanguage } from "./text/text"

nonceForStyles()
showTheme()
bring(location.pathname)
// These requests, which nearly every screen needs, run while the first screen is being rendered.
const begun = start().then((signedIn) => {
  if (!signedIn) return
  askAhead()
  live.begin()
  beginKinds()
})
await Promise.all([begun, startLanguage()])
createRoot(document.getElementById("root")!).render(<App />)
