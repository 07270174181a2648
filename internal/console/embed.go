package console

import "embed"

// dist is the page as web/build.sh has built it, or nothing.
//
//go:embed all:dist
var dist embed.FS
