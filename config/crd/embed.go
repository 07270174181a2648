// Package crd embeds the CustomResourceDefinitions of Orrery's kinds. controller-gen generates
// them from the types under api/.
package crd

import "embed"

// Files has one file for each definition.
//
//go:embed *.yaml
var Files embed.FS

// SchemaVersionAnnotation is set on every definition that a server installs. It has the
// SchemaVersion of that server.
const SchemaVersionAnnotation = "orrery.dev/schema-version"

// SchemaVersion increases with every change of a schema. A write with an older schema drops
// fields that it does not have, so a server does not replace definitions of a newer
// SchemaVersion.
const SchemaVersion = 17
