// Package crd holds the CustomResourceDefinitions of Orrery's kinds, generated
// from the types under api/ by controller-gen.
package crd

import "embed"

// Files holds one definition a file.
//
//go:embed *.yaml
var Files embed.FS
