import { type FormEvent, useState } from "react"
import { signIn } from "../hub/session"
import { Button } from "../part/Button"
import { Field, Input } from "../part/Field"
import { Notice } from "../part/Notice"
import { t } from "../text/text"
import "./layout.css"

export function SignIn({ reason }: { reason?: "ended" | "link" | "unreachable" }) {
  const [token, setToken] = useState("")
  const [error, setError] = useState("")
  const [busy, setBusy] = useState(false)
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    signIn(token.trim())
      .catch((e: Error) => setError(e.message))
      .finally(() => setBusy(false))
  }
  return (
    <main className="sign-in">
      <div className="brand">
        <img src="/console/icon.svg" alt="" width="24" height="24" />
        <h1>Orrery</h1>
      </div>
      {reason === "ended" && <Notice tone="warn">{t("layout.ended")}</Notice>}
      {reason === "link" && <Notice tone="warn">{t("layout.badLink")}</Notice>}
      {reason === "unreachable" && <Notice tone="unknown">{t("layout.hubAway")}</Notice>}
      <p className="muted">
        {t("layout.signInMore", { command: "\u0000" })
          .split("\u0000")
          .flatMap((text, i) => (i ? [<code key="command">orrery console</code>, text] : [text]))}
      </p>
      <form className="stack" onSubmit={submit}>
        <Field label={t("layout.token")} error={error || undefined}>
          {(id, about) => <Input id={id} aria-describedby={about} type="password" value={token} onChange={(e) => setToken(e.target.value)} />}
        </Field>
        <Button look="main" type="submit" disabled={busy || !token.trim()}>
          {t("layout.signIn")}
        </Button>
      </form>
    </main>
  )
}
