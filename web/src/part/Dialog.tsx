import { Dialog as Radix } from "radix-ui"
import { type ComponentProps, type ReactNode, useRef } from "react"
import { t } from "../text/text"
import { Button } from "./Button"
import { Icon } from "./Icon"

type Props = {
  open: boolean
  onClose: () => void
  title: string
  description?: ReactNode
  wide?: boolean
  /** Buttons at the end. */
  foot?: ReactNode
  children?: ReactNode
}

/** A dialog begins at what is to be filled in, or as a whole: not at the button that closes it. */
function focusFirst(e: Event) {
  e.preventDefault()
  const dialog = e.target as HTMLElement
  const field = dialog.querySelector<HTMLElement>(".dialog-body :is(input:not([type=radio]), textarea), .dialog-body [autofocus]")
  ;(field ?? dialog).focus()
}

/** Where the focus was before the first of several dialogs that follow each other. */
let outside: Element | null = null

/** Who closes a dialog is again where they were; where that is gone, in what the page shows. Radix knows it only of dialogs that have a trigger. */
export function useFocusBack(open: boolean): (e: Event) => void {
  const before = useRef<Element>(null)
  const was = useRef(false)
  if (open && !was.current) {
    before.current = document.activeElement
    if (!before.current?.closest("[role=dialog]")) outside = before.current
  }
  was.current = open
  return (e) => {
    e.preventDefault()
    const back = [before.current, outside].find((e) => e?.isConnected) ?? document.querySelector("#content")
    ;(back as HTMLElement | null)?.focus({ preventScroll: true })
  }
}

export function Dialog({ open, onClose, title, description, wide, foot, children }: Props) {
  const focusBack = useFocusBack(open)
  return (
    <Radix.Root open={open} onOpenChange={(now) => !now && onClose()}>
      <Radix.Portal>
        <Radix.Overlay className="overlay" />
        <Radix.Content
          className={`dialog ${wide ? "wide" : ""}`}
          onOpenAutoFocus={focusFirst}
          onCloseAutoFocus={focusBack}
          {...(description ? {} : { "aria-describedby": undefined })}
        >
          <header>
            <Radix.Title>{title}</Radix.Title>
            <Radix.Close asChild>
              <Button look="quiet" className="icon" aria-label={t("common.close")}>
                <Icon name="close" />
              </Button>
            </Radix.Close>
          </header>
          {description && (
            <Radix.Description asChild>
              <div className="dialog-about">{description}</div>
            </Radix.Description>
          )}
          {children && <div className="dialog-body">{children}</div>}
          {foot && <footer>{foot}</footer>}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  )
}

/** The buttons of a dialog that asks: to leave it, or to do what it is about. */
export function Foot({ onClose, ...act }: ComponentProps<typeof Button> & { onClose: () => void }) {
  return (
    <>
      <Button onClick={onClose}>{t("common.cancel")}</Button>
      <Button look="main" {...act} />
    </>
  )
}
