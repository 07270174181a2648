// Package crd holds the CustomResourceDefinitions of Orrery's kinds, generated
// from the types under api/ by controller-gen.
package crd

import "embed"

// Files holds one definition a file.
//
//go:embed *.yaml
var Files embed.FS

// SchemaVersionAnnotation is on every definition that a server installs, and holds the SchemaVersion of that server.
const SchemaVersionAnnotation = "orrery.dev/schema-version"

// SchemaVersion grows with every change of a schema: fields that an older schema does not have are dropped by the next
// write, so a server does not install its definitions where those of a newer one are.
const SchemaVersion = 16
