package plan

import (
	"fmt"
	"strings"
)

// Content is everything from external sources that a plan puts on hosts or into the cluster. It is
// shown with the plan.
type Content struct {
	// Files that hosts need.
	Files []Blob `json:"files,omitempty"`
	// Objects of the cluster, by group.
	Objects []Objects `json:"objects,omitempty"`
	// Images that the container runtime and the objects refer to, with the registry that hosts use.
	Images []Image `json:"images,omitempty"`
}

// Image is an image that hosts pull.
type Image struct {
	Reference string `json:"reference"`
	// For is the group of objects that uses the image, or sandbox for the image of every pod.
	For string `json:"for"`
}

// Objects is a group of objects that are applied together through the API server. It names the
// sources of the objects and their digests. The digests are not those of rendered charts, because
// charts may call random functions.
type Objects struct {
	// Group is bootstrap, network, dns, or the add-on's name after "addon-".
	Group string `json:"group"`
	// Namespace is the namespace for objects that name none.
	Namespace string `json:"namespace,omitempty"`
	// Sources of the objects, in their order.
	Sources []Source `json:"sources,omitempty"`
	// Registry replaces the registry in images, and RegistryNamespace the first part of the path.
	Registry          string `json:"registry,omitempty"`
	RegistryNamespace string `json:"registryNamespace,omitempty"`
}

// SourceKind is the kind of a source of objects: a chart, a manifest, or Orrery itself.
type SourceKind string

// The kinds of sources.
const (
	SourceChart    SourceKind = "Chart"
	SourceManifest SourceKind = "Manifest"
	// SourceBuiltIn is the kind of objects that are part of Orrery, and not of a chart or manifest.
	SourceBuiltIn SourceKind = "BuiltIn"
)

// Source is one source of objects in a group: a chart, a manifest, or objects that are part of
// Orrery.
type Source struct {
	Kind SourceKind `json:"kind"`
	// Location is a URL without its secret parts, or a path.
	Location string `json:"location,omitempty"`
	// Name and Version of a chart.
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	// Digest is that of the chart's archive or directory, of the manifest, or of the built-in objects.
	Digest string `json:"digest"`
	// Values is the digest of the values of a chart.
	Values string `json:"values,omitempty"`
}

// String describes the source for a list, with the first 12 hex digits of its digest. For built-in
// objects, and for an unknown kind, it is "built in".
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

// ApplyObjects returns the step that applies a group of objects.
func ApplyObjects(o Objects) ClusterStep {
	return ClusterStep{ID: "objects/" + o.Group, Objects: &o}
}
