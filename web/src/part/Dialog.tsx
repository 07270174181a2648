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
  /** Buttons at the bottom. */
  foot?: ReactNode
  children?: ReactNode
}

/**
 * The focus begins in the first field, or else on the dialog itself: not on the button that
 * closes it.
 */
function focusFirst(e: Event) {
  e.preventDefault()
  const dialog = e.target as HTMLElement
  const field = dialog.querySelector<HTMLElement>(".dialog-body :is(input:not([type=radio]), textarea), .dialog-body [autofocus]")
  ;(field ?? dialog).focus()
}

/** The focused element before the first of several consecutive dialogs. */
let outside: Element | null = null

/**
 * Returns the focus when a dialog closes: to the element that had it or, if that is gone, to the
 * page's content. Radix does so only for dialogs with a trigger.
 */
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

/** The buttons of a dialog: cancel, and its action. */
export function Foot({ onClose, ...act }: ComponentProps<typeof Button> & { onClose: () => void }) {
  return (
    <>
      <Button onClick={onClose}>{t("common.cancel")}</Button>
      <Button look="main" {...act} />
    </>
  )
}
