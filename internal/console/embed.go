package console

import "embed"

// dist is the page built by web/build.sh; empty if it was not built.
//
//go:embed all:dist
var dist embed.FS
