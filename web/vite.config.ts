import react from "@vitejs/plugin-react"
import { defineConfig } from "vite"

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  // The hub replaces this word by a new nonce each time it serves index.html, for libraries that
  // write <style> elements.
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
        // Code that every screen needs is in two files instead of twenty.
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
    // The licences of the bundled packages.
    license: { fileName: "licenses.md" },
  },
})
