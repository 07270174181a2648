import react from "@vitejs/plugin-react"
import { defineConfig } from "vite"

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  // The hub puts a fresh nonce in place of this word each time it serves index.html: libraries that write <style> elements need one.
  html: { cspNonce: "__CSP_NONCE__" },
  build: {
    outDir: "dist",
    assetsInlineLimit: 0,
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    reportCompressedSize: false,
    chunkSizeWarningLimit: 700,
    manifest: "manifest.json",
    rolldownOptions: {
      output: {
        // What every screen needs is two files, and not twenty.
        codeSplitting: {
          groups: [
            {
              name: "react",
              test: /node_modules\/(react|react-dom|scheduler|wouter|regexparam|radix-ui|@radix-ui|@floating-ui)\//,
            },
            {
              name: "base",
              test: /src\/(text\/(text|en\/)|part\/(?!Diff|diff)|hub\/(client|answer|live|window|session|kinds|access|link|rights)\.|table\/(ahead|state|query|search|selection)\.)/,
            },
          ],
        },
      },
    },
    // The licences of what is in the page go along with it.
    license: { fileName: "licenses.md" },
  },
})
