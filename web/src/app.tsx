import type { ComponentType } from "react"
import { Link, Route, Router, Switch } from "wouter"
import { useSession } from "./hub/session"
import { Layout } from "./layout/Layout"
import { SignIn } from "./layout/SignIn"
import { PaletteHost } from "./palette/Host"
import { Boundary } from "./part/Boundary"
import { later } from "./part/later"
import { Empty } from "./part/Notice"
import { Page } from "./part/Page"
import { TooltipProvider } from "./part/Tooltip"
import { t, useLanguage } from "./text/text"

type Screen = () => Promise<{ default: ComponentType }>

const routes = (
  [
    ["/", () => import("./fleet/page")],
    ["/table", () => import("./table/page")],
    ["/object", () => import("./object/page")],
    ["/placements", () => import("./placement/page")],
    ["/why", () => import("./why/page")],
    ["/policies/*?", () => import("./policy/page")],
    ["/clusters/:name", () => import("./cluster/page")],
    ["/join", () => import("./join/page")],
    ["/operations/*?", () => import("./operation/page")],
    ["/changes", () => import("./change/page")],
  ] as [string, Screen][]
).map(([path, screen]) => ({ path, Screen: later(screen, 6, "page") }))

/** Starts to load the code of the screen for an address, while the session is requested. */
export function bring(address: string): void {
  const first = (path: string) => path.split("/")[1]
  const place = address.replace(/^\/console/, "") || "/"
  routes
    .find(({ path }) => first(path) === first(place))
    ?.Screen.load()
    .catch(() => {})
}

export function App() {
  const signed = useSession()
  const language = useLanguage()
  if (signed.state === "asking") return null
  if (signed.state === "out") return <SignIn key={language} reason={signed.reason} />
  return (
    <Router base="/console" key={language}>
      <TooltipProvider>
        <Layout session={signed.session}>
          <Switch>
            {routes.map(({ path, Screen }) => (
              <Route key={path} path={path}>
                <Boundary key={path}>
                  <Screen />
                </Boundary>
              </Route>
            ))}
            <Route>
              <Page title={t("common.notFound")}>
                <Empty title={t("common.notFoundMore")}>
                  <Link href="/" className="link">
                    {t("fleet.title")}
                  </Link>
                </Empty>
              </Page>
            </Route>
          </Switch>
        </Layout>
        <PaletteHost />
      </TooltipProvider>
    </Router>
  )
}
