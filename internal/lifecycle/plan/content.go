package plan

import (
	"fmt"
	"strings"
)

// Content is all that a plan puts on hosts or into the cluster and that comes from elsewhere.
type Content struct {
	// Files that hosts need.
	Files []Blob `json:"files,omitempty"`
	// Objects of the cluster, by group.
	Objects []Objects `json:"objects,omitempty"`
	// Images that the hosts' runtime and the objects name, as hosts pull them.
	Images []Image `json:"images,omitempty"`
}

// Image is one that hosts pull.
type Image struct {
	Reference string `json:"reference"`
	// For what: a group of objects, or sandbox for that of every pod.
	For string `json:"for"`
}

// Objects are applied together through the API server. What they are is said by what they are made from, never by what a chart is
// rendered to: charts may call random functions.
type Objects struct {
	// Group is bootstrap, network, dns, or addon- and the add-on's name.
	Group string `json:"group"`
	// Namespace of those that name none.
	Namespace string `json:"namespace,omitempty"`
	// Sources that they are made from, in their order.
	Sources []Source `json:"sources,omitempty"`
	// Registry and RegistryNamespace are what takes the place of the registry, and of the first part of the path, in their images.
	Registry          string `json:"registry,omitempty"`
	RegistryNamespace string `json:"registryNamespace,omitempty"`
}

// SourceKind is what a source is.
type SourceKind string

// The kinds of sources.
const (
	SourceChart    SourceKind = "Chart"
	SourceManifest SourceKind = "Manifest"
	// SourceBuiltIn are objects of our own.
	SourceBuiltIn SourceKind = "BuiltIn"
)

// Source is what objects are made from.
type Source struct {
	Kind SourceKind `json:"kind"`
	// Location is a URL without what is secret in it, or a path.
	Location string `json:"location,omitempty"`
	// Name and Version of a chart.
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	// Digest of the archive, of the files of a chart's directory, of the manifest, or of our own objects.
	Digest string `json:"digest"`
	// Values is the digest of what a chart is rendered with.
	Values string `json:"values,omitempty"`
}

// String says what a source is in a few words.
func (s Source) String() string {
	digest := strings.TrimPrefix(s.Digest, "sha256:")
	digest = digest[:min(len(digest), 12)]
	switch s.Kind {
	case SourceChart:
		return fmt.Sprintf("chart %s %s (%s)", s.Name, s.Version, digest)
	case SourceManifest:
		return fmt.Sprintf("manifest %s (%s)", s.Location, digest)
	case SourceBuiltIn:
	}
	return "built in"
}

// ApplyObjects is the step that applies a group of objects.
func ApplyObjects(o Objects) ClusterStep {
	return ClusterStep{ID: "objects/" + o.Group, Objects: &o}
}
