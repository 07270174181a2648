import { type ReactNode, useEffect, useRef, useState } from "react"
import { Link, useLocation } from "wouter"
import { type Session, signOut } from "../hub/session"
import { setTheme, type Theme, themes, useTheme } from "../look/theme"
import { openPalette } from "../palette/open"
import { Button, IconButton } from "../part/Button"
import { Dialog } from "../part/Dialog"
import { Icon } from "../part/Icon"
import { KeyHint } from "../part/KeyHint"
import { Menu, MenuChoice, MenuItem, MenuLabel, MenuLine } from "../part/Menu"
import { type Language, languages, setLanguage, t, time, useLanguage } from "../text/text"
import { Lag } from "./Lag"
import "./layout.css"
import { places } from "./places"

function Places({ onGo }: { onGo?: () => void }) {
  const [path] = useLocation()
  const here = (href: string) => (href === "/" ? path === "/" || path.startsWith("/clusters/") : path === href || path.startsWith(`${href}/`))
  return (
    <ul>
      {places.map((p) => (
        <li key={p.href}>
          <Link href={p.href} className="place" aria-current={here(p.href) ? "page" : undefined} onClick={onGo}>
            <Icon name={p.icon} />
            {t(p.title)}
          </Link>
        </li>
      ))}
    </ul>
  )
}

function SessionMenu({ session }: { session: Session }) {
  const language = useLanguage()
  const look = useTheme()
  return (
    <Menu
      trigger={
        <Button look="quiet" className="icon" aria-label={t("layout.session", { user: session.user })}>
          <Icon name="user" />
        </Button>
      }
    >
      <MenuLabel>
        <strong className="selectable">{session.user}</strong>
        <br />
        {t("layout.until", { time: time(session.expires) })}
        <br />
        {t("layout.version", { version: session.version })}
      </MenuLabel>
      <MenuLine />
      <MenuChoice<Theme> label={t("layout.theme")} value={look} onChange={setTheme} options={themes.map((value) => ({ value, label: t(`layout.${value}`) }))} />
      <MenuLine />
      <MenuChoice<Language> label={t("layout.language")} value={language} onChange={(next) => void setLanguage(next)} options={languages} />
      <MenuLine />
      <MenuItem keys="?" onSelect={() => openPalette("keys")}>
        {t("palette.keys")}
      </MenuItem>
      <MenuItem onSelect={() => void signOut()}>{t("layout.signOut")}</MenuItem>
    </Menu>
  )
}

export function Layout({ session, children }: { session: Session; children: ReactNode }) {
  const [open, setOpen] = useState(false)
  const [path] = useLocation()
  const content = useRef<HTMLElement>(null)
  const shown = useRef(path)
  // The element with the focus may be gone with its screen. Then the next screen gets the focus,
  // so that Tab continues there and screen readers read it.
  useEffect(() => {
    if (shown.current !== path && document.activeElement === document.body) content.current?.focus({ preventScroll: true })
    shown.current = path
  }, [path])
  return (
    <div className="layout">
      <a className="skip" href="#content">
        {t("layout.skip")}
      </a>
      <header className="top">
        <IconButton label={t("layout.menu")} className="phone-only" onClick={() => setOpen(true)}>
          <Icon name="menu" />
        </IconButton>
        <Link href="/" className="brand" aria-label={`Orrery: ${t("fleet.title")}`}>
          <img src="/console/icon.svg" alt="" width="20" height="20" />
          <span>Orrery</span>
        </Link>
        <button type="button" className="find" onClick={() => openPalette("find")}>
          <Icon name="search" />
          <span>{t("layout.search")}</span>
          <KeyHint keys={navigator.platform.startsWith("Mac") ? "⌘K" : "Ctrl+K"} />
        </button>
        <Lag />
        <SessionMenu session={session} />
      </header>
      <nav className="side" aria-label={t("layout.navigation")}>
        <Places />
      </nav>
      <Dialog open={open} onClose={() => setOpen(false)} title={t("layout.navigation")}>
        <nav aria-label={t("layout.navigation")}>
          <Places onGo={() => setOpen(false)} />
        </nav>
      </Dialog>
      <main id="content" tabIndex={-1} ref={content}>
        {children}
      </main>
    </div>
  )
}
