/**
 * The Content-Security-Policy allows only <style> elements with the nonce of this load. Not all
 * libraries that create some (the terminal, the editor, the scroll lock of dialogs) support a
 * nonce, so each element gets it when it is created.
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
