// Writes FILE.br and FILE.gz beside each file of a directory that gets smaller by it.
// index.html stays as it is: the hub writes a nonce into it.
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { brotliCompressSync, constants, gzipSync } from "node:zlib"

const [dir] = process.argv.slice(2)
for (const entry of readdirSync(dir, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile() || !/\.(js|css|svg)$/.test(entry.name)) continue
  const path = `${entry.parentPath}/${entry.name}`
  const data = readFileSync(path)
  const brotli = brotliCompressSync(data, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: data.length } })
  const gzip = gzipSync(data, { level: 9 })
  if (brotli.length < data.length) writeFileSync(`${path}.br`, brotli)
  if (gzip.length < data.length) writeFileSync(`${path}.gz`, gzip)
}
