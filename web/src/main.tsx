import "./look/tokens.css"
import "./look/base.css"
import "./part/part.css"
import { createRoot } from "react-dom/client"
import { App, bring } from "./app"
import { start } from "./hub/session"
import { nonceForStyles } from "./look/nonce"
import { showTheme } from "./look/theme"
import { startLanguage } from "./text/text"

nonceForStyles()
showTheme()
bring(location.pathname)
await Promise.all([startLanguage(), start()])
createRoot(document.getElementById("root")!).render(<App />)
