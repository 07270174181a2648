import { useState } from "react"
import { useActions } from "../palette/actions"
import { Button, IconButton, SignButton } from "../part/Button"
import { Dialog } from "../part/Dialog"
import { Field, Input } from "../part/Field"
import { Icon } from "../part/Icon"
import { Menu, MenuItem, MenuLabel, MenuLine } from "../part/Menu"
import { t } from "../text/text"
import { forget, keep, views } from "./views"

/** Named views, kept in this browser. */
export function Views({ search, onOpen }: { search: string; onOpen: (search: string) => void }) {
  const [all, setAll] = useState(() => views(localStorage))
  const [asking, setAsking] = useState(false)
  const [name, setName] = useState("")
  useActions(() => all.map((v) => ({ id: `view.${v.name}`, title: v.name, section: t("table.views"), run: () => onOpen(v.search) })), [all])
  return (
    <>
      <Menu trigger={<SignButton sign="star" label={t("table.views")} />}>
        {all.length === 0 && <MenuLabel>{t("table.noViews")}</MenuLabel>}
        {all.map((v) => (
          <MenuItem key={v.name} onSelect={() => onOpen(v.search)}>
            {v.name}
          </MenuItem>
        ))}
        <MenuLine />
        <MenuItem onSelect={() => setAsking(true)}>{t("table.keepView")}</MenuItem>
      </Menu>
      <Dialog open={asking} onClose={() => setAsking(false)} title={t("table.keepView")} description={t("table.keepViewAbout")}>
        <form
          className="stack"
          onSubmit={(e) => {
            e.preventDefault()
            setAll(keep(localStorage, { name: name.trim(), search }))
            setAsking(false)
            setName("")
          }}
        >
          <Field label={t("table.viewName")}>{(id) => <Input id={id} value={name} maxLength={60} onChange={(e) => setName(e.target.value)} />}</Field>
          <Button look="main" type="submit" disabled={!name.trim()}>
            {t("table.keep")}
          </Button>
          {all.length > 0 && (
            <ul className="view-list">
              {all.map((v) => (
                <li key={v.name} className="row">
                  <span>{v.name}</span>
                  <IconButton label={t("table.forget", { name: v.name })} onClick={() => setAll(forget(localStorage, v.name))}>
                    <Icon name="trash" />
                  </IconButton>
                </li>
              ))}
            </ul>
          )}
        </form>
      </Dialog>
    </>
  )
}
