// Package catalog has the versions that make a Kubernetes cluster, the locations of their files,
// and the code that downloads them.
//
// Versions are data. The built-in ones are in builtin.yaml. A file of the same form adds releases
// or overrides existing ones.
package catalog

import (
	"cmp"
	_ "embed" // the built-in catalogue
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// builtin is the built-in catalog file.
//
//go:embed builtin.yaml
var builtin []byte

// Catalog is a set of Kubernetes releases, with the versions of the components that fit each
// release and the locations of their files. Load makes it. It does not change afterwards.
type Catalog struct{ data data }

// File describes a file that hosts need for a Kubernetes release: a program, or an archive of
// programs. Source.Open downloads it.
type File struct {
	// Name such as kubelet or cni-plugins.
	Name string
	// Version such as v1.36.3.
	Version string
	// Arch is amd64 or arm64.
	Arch string
	// URL of the file upstream. Source may get it from a mirror instead.
	URL string
	// Archive is tar or tar.gz; "" if the file is a program and no archive.
	Archive string
	// Members maps paths in the archive to the names of the programs that are used. A file that is no
	// archive has one member, with the path "".
	Members map[string]string
	// Digest is sha256:HEX, or "" if the catalog does not have the digest.
	Digest string
	// ChecksumURL is the URL upstream of a file with the digest. It may be "" if Digest is set.
	ChecksumURL string
}

// Key returns name/version/arch, which identifies a file.
func (f File) Key() string { return f.Name + "/" + f.Version + "/" + f.Arch }

// Plugin is the manifest or the chart of a network plugin. Exactly one of them is set.
type Plugin struct {
	// Manifest is the URL of a manifest.
	Manifest string `json:"manifest,omitempty"`
	// Chart is a chart in a repository.
	Chart *Chart `json:"chart,omitempty"`
}

// Chart is a Helm chart in a repository.
type Chart struct {
	// Repo is the URL of the repository.
	Repo string `json:"repo"`
	// Name of the chart.
	Name string `json:"name"`
	// Version of the chart.
	Version string `json:"version"`
}

// Load reads the built-in catalog and merges the catalog files at the paths over it, in their
// order. A file with an unknown field or an invalid value is an error.
func Load(paths ...string) (*Catalog, error) {
	c := &Catalog{}
	if err := c.merge(builtin); err != nil {
		return nil, fmt.Errorf("built-in catalogue: %w", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read catalogue: %w", err)
		}
		if err := c.merge(text); err != nil {
			return nil, fmt.Errorf("catalogue %s: %w", path, err)
		}
	}
	return c, nil
}

// merge adds the entries of a catalog file to c. They override entries of c with the same name.
// With an error c stays as it is.
func (c *Catalog) merge(text []byte) error {
	var d data
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	merged := c.data.merge(d)
	if err := merged.validate(); err != nil {
		return err
	}
	c.data = merged
	return nil
}

// Supported lists the Kubernetes releases in the catalog, the oldest first. These are minor
// versions, such as v1.36, which stand for all their patches. A patch version is listed only if its
// minor is not in the catalog.
func (c *Catalog) Supported() []string {
	var names []string
	for name := range c.data.Kubernetes {
		if _, ok := c.data.Kubernetes[minorOf(name)]; !ok || minorOf(name) == name {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return order(a).Compare(order(b)) })
	return names
}

// Files returns the named files for a Kubernetes version, such as v1.36.3, and an architecture, in
// the order of names. It sends no request. A release, architecture, file or version that the
// catalog does not have is an error. A file with neither a digest nor a checksum file is an error,
// too.
func (c *Catalog) Files(kubernetes, arch string, names ...string) ([]File, error) {
	r, err := c.release(kubernetes)
	if err != nil {
		return nil, err
	}
	if arch != "amd64" && arch != "arm64" {
		return nil, fmt.Errorf("architecture %q is neither amd64 nor arm64", arch)
	}
	files := make([]File, 0, len(names))
	for _, name := range names {
		t, ok := c.data.Files[name]
		if !ok {
			return nil, fmt.Errorf("there is no file %q in the catalogue, which has %s: add it under files in a file given with --catalog", name, list(c.data.Files))
		}
		version := cmp.Or(r.Versions[name], expand(t.Version, map[string]string{"kubernetes": kubernetes}))
		if version == "" {
			return nil, lacks(kubernetes, name)
		}
		f := t.file(name, version, arch)
		f.Digest = c.data.Digests[f.Key()]
		if f.Digest == "" && f.ChecksumURL == "" {
			return nil, fmt.Errorf("%s has neither a digest nor a checksum: add digests[%q], or files.%s.checksum, in a file given with --catalog", f.Key(), f.Key(), name)
		}
		files = append(files, f)
	}
	return files, nil
}

// file returns the File for a version and an architecture. Its Digest is not set.
func (t template) file(name, version, arch string) File {
	values := versioned(version)
	values["name"], values["arch"] = name, arch
	f := File{
		Name: name, Version: version, Arch: arch, URL: expand(t.URL, values),
		Archive: t.Archive, Members: map[string]string{}, ChecksumURL: expand(t.Checksum, values),
	}
	for member, program := range t.Members {
		f.Members[expand(member, values)] = program
	}
	if t.Archive == "" {
		f.Members[""] = name
	}
	return f
}

// Image returns the full reference of a named image, such as pause, for a Kubernetes version. A
// name or release that the catalog does not have is an error.
func (c *Catalog) Image(kubernetes, name string) (string, error) {
	r, err := c.release(kubernetes)
	if err != nil {
		return "", err
	}
	reference, ok := c.data.Images[name]
	if !ok {
		return "", fmt.Errorf("there is no image %q in the catalogue, which has %s: add it under images in a file given with --catalog", name, list(c.data.Images))
	}
	version, ok := r.Versions[name]
	if !ok {
		return "", lacks(kubernetes, name)
	}
	return expand(reference, versioned(version)), nil
}

// Plugin returns the manifest or chart of a network plugin, such as calico, for a Kubernetes
// version. A plugin or release that the catalog does not have is an error.
func (c *Catalog) Plugin(kubernetes, plugin string) (Plugin, error) {
	r, err := c.release(kubernetes)
	if err != nil {
		return Plugin{}, err
	}
	p, ok := c.data.Plugins[plugin]
	if !ok {
		return Plugin{}, fmt.Errorf("there is no network plugin %q in the catalogue, which has %s: say what is applied with network.manifest or network.chart", plugin, list(c.data.Plugins))
	}
	version, ok := r.Versions[plugin]
	if !ok {
		return Plugin{}, lacks(kubernetes, plugin)
	}
	values := versioned(version)
	if p.Chart != nil {
		p.Chart = &Chart{Repo: p.Chart.Repo, Name: p.Chart.Name, Version: expand(p.Chart.Version, values)}
	}
	p.Manifest = expand(p.Manifest, values)
	return p, nil
}

// release returns the versions of components for a Kubernetes version, such as v1.36.3. A version
// without a patch, or that the catalog does not have, is an error that names the nearest releases.
func (c *Catalog) release(kubernetes string) (release, error) {
	if !releasePattern.MatchString(kubernetes) || strings.Count(kubernetes, ".") < 2 {
		return release{}, fmt.Errorf("%q is not a version of Kubernetes such as v1.36.3", kubernetes)
	}
	r := c.data.release(kubernetes)
	if len(r.Versions) == 0 {
		return release{}, fmt.Errorf("version %s of Kubernetes is not in the catalogue; the nearest are %s: set spec.provision.kubernetes.version to one of them, or say under kubernetes[%q] in a file given with --catalog what fits it",
			kubernetes, strings.Join(c.nearest(kubernetes), ", "), minorOf(kubernetes))
	}
	return r, nil
}

// nearest returns at most three releases of the catalog for an error: the nearest minor versions
// first.
func (c *Catalog) nearest(kubernetes string) []string {
	want := order(kubernetes)
	distance := func(name string) uint64 {
		v := order(name)
		return max(v.Major, want.Major) - min(v.Major, want.Major) + max(v.Minor, want.Minor) - min(v.Minor, want.Minor)
	}
	names := c.Supported()
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return names[:min(3, len(names))]
}

// lacks returns the error for a component for which the catalog has no version that fits the
// release.
func lacks(kubernetes, name string) error {
	return fmt.Errorf("the catalogue has no version of %s for Kubernetes %s: say it under kubernetes[%q].versions in a file given with --catalog", name, kubernetes, minorOf(kubernetes))
}

// list returns the keys of m, sorted and separated by commas.
func list[T any](m map[string]T) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
