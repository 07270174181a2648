/**
 * The policy of the page lets no <style> in without the nonce of this load. Libraries that make some (the terminal, the editor, the scroll
 * lock of dialogs) do not all know of it, so each element gets it where it is made.
 */
export function nonceForStyles(): void {
  const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce
  if (!nonce) return
  const create = document.createElement
  document.createElement = function (this: Document, name: string, options?: ElementCreationOptions) {
    const element = create.call(this, name, options)
    if (name.toLowerCase() === "style") element.nonce = nonce
    return element
  } as typeof document.createElement
}
