// Package chart loads Helm charts from directories, archives and repositories, and renders their
// objects. It needs no cluster, and stores no release in one.
package chart

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/neutral"
)

// Reference says where a chart is: at Path, a directory or an archive of this machine, or, if Path
// is "", in the HTTP repository Repo with Name and Version. Version "" means the newest version
// that is not a pre-release.
type Reference struct{ Path, Repo, Name, Version string }

// Location returns the path or the URL of the repository as messages may show it.
func (r Reference) Location() string { return neutral.ShownLocation(cmp.Or(r.Path, r.Repo)) }

// Chart is a chart that was loaded and can be rendered.
type Chart struct {
	// Name and Version of the chart.
	Name, Version string
	// Digest is that of the archive, or of the names and contents of the files in the directory.
	Digest string

	loaded *chart.Chart
}

// Load reads a chart. fetch reads the index of a repository and the archive of a chart by URL; the
// caller limits their size. Load returns an error for a library, and for a chart whose dependencies
// are missing. Errors show no password in a URL, except those that fetch returns.
func Load(ctx context.Context, from Reference, fetch func(ctx context.Context, url string) ([]byte, error)) (*Chart, error) {
	c := &Chart{}
	var err error
	if from.Path != "" {
		if c.loaded, err = loader.Load(from.Path); err != nil {
			return nil, fmt.Errorf("load chart %s: %w", from.Path, err)
		}
		c.Digest = digestOfFiles(c.loaded.Raw)
	} else {
		archive, err := download(ctx, from, fetch)
		if err != nil {
			return nil, err
		}
		if c.loaded, err = loader.LoadArchive(bytes.NewReader(archive)); err != nil {
			return nil, fmt.Errorf("load chart %s of %s: %w", from.Name, from.Location(), err)
		}
		c.Digest = "sha256:" + digestOf(archive)
	}
	if err := c.loaded.Validate(); err != nil {
		return nil, fmt.Errorf("validate chart: %w", err)
	}
	c.Name, c.Version = c.loaded.Name(), c.loaded.Metadata.Version
	if c.loaded.Metadata.Type == "library" {
		return nil, fmt.Errorf("chart %s is a library: it has no objects", c.Name)
	}
	for _, d := range c.loaded.Metadata.Dependencies {
		if !slices.ContainsFunc(c.loaded.Dependencies(), func(had *chart.Chart) bool { return had.Name() == d.Name }) {
			return nil, fmt.Errorf("chart %s needs chart %s, which is not in its folder charts: run helm dependency build", c.Name, d.Name)
		}
	}
	return c, nil
}

// Supports returns an error if the chart does not support a version of Kubernetes, such as v1.36.3.
func (c *Chart) Supports(kubernetes string) error {
	if v := c.loaded.Metadata.KubeVersion; v != "" && !chartutil.IsCompatibleRange(v, kubernetes) {
		return fmt.Errorf("chart %s %s needs Kubernetes %s", c.Name, c.Version, v)
	}
	return nil
}

// Values returns the values of a user, as JSON, and those of defaults that the user has not set.
// given may be empty.
func (c *Chart) Values(given []byte, defaults map[string]any) (map[string]any, error) {
	values := map[string]any{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &values); err != nil {
			return nil, fmt.Errorf("values of chart %s: %w", c.Name, err)
		}
	}
	return chartutil.CoalesceTables(values, defaults), nil
}

// digestOf returns the SHA-256 digest of content in hexadecimal digits.
func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// digestOfFiles returns the digest of the names and contents of a chart's files. It does not depend
// on the directory in which the chart is.
func digestOfFiles(files []*chart.File) string {
	h := sha256.New()
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b *chart.File) int { return strings.Compare(a.Name, b.Name) }) {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Data)) //nolint:errcheck // a hash takes all
		h.Write(f.Data)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// download reads the archive of a chart from its HTTP repository. It verifies the digest of the
// archive if the index of the repository has one.
func download(ctx context.Context, from Reference, fetch func(ctx context.Context, url string) ([]byte, error)) ([]byte, error) {
	if !strings.HasPrefix(from.Repo, "https://") && !strings.HasPrefix(from.Repo, "http://") {
		return nil, fmt.Errorf("chart.repo %q is no http:// or https:// URL: charts of other kinds of registries are given by path", from.Location())
	}
	if from.Name == "" {
		return nil, errors.New("chart.name is missing: it says which chart of the repository")
	}
	at := strings.TrimSuffix(from.Repo, "/") + "/index.yaml"
	content, err := fetch(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", neutral.ShownLocation(at), err)
	}
	entry, err := choose(content, from)
	if err != nil {
		return nil, fmt.Errorf("choose chart from %s: %w", neutral.ShownLocation(at), err)
	}
	base, err := url.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("chart.repo: %w", withoutURL(err))
	}
	resolved, err := base.Parse(entry.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("URL of chart %s in %s: %w", from.Name, neutral.ShownLocation(at), withoutURL(err))
	}
	address := resolved.String()
	archive, err := fetch(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("read chart %s: %w", neutral.ShownLocation(address), err)
	}
	if got := digestOf(archive); entry.Digest != "" && got != strings.TrimPrefix(entry.Digest, "sha256:") {
		return nil, fmt.Errorf("chart %s has digest %s, and %s says %s: the repository or a mirror of it is broken",
			neutral.ShownLocation(address), got, neutral.ShownLocation(at), entry.Digest)
	}
	return archive, nil
}

// withoutURL returns an error of package url without the URL, which may have a password.
func withoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// entry describes a version of a chart in the index of a repository.
type entry struct {
	Version string   `json:"version"`
	URLs    []string `json:"urls"`
	Digest  string   `json:"digest"`
}

// choose returns the version of a chart from the index of its repository. This is from.Version, or
// the newest version that is not a pre-release if from.Version is "".
func choose(index []byte, from Reference) (entry, error) {
	var content struct {
		Entries map[string][]entry `json:"entries"`
	}
	if err := yaml.Unmarshal(index, &content); err != nil {
		return entry{}, fmt.Errorf("parse index: %w", err)
	}
	versions := content.Entries[from.Name]
	if len(versions) == 0 {
		return entry{}, fmt.Errorf("it has no chart %s", from.Name)
	}
	wanted := strings.TrimPrefix(from.Version, "v")
	var newest *semver.Version
	var chosen entry
	var known []string
	for _, e := range versions {
		known = append(known, e.Version)
		if wanted != "" {
			if strings.TrimPrefix(e.Version, "v") == wanted {
				chosen = e
				break
			}
			continue
		}
		v, err := semver.NewVersion(e.Version)
		if err == nil && v.Prerelease() == "" && (newest == nil || v.GreaterThan(newest)) {
			newest, chosen = v, e
		}
	}
	switch {
	case chosen.Version == "":
		return entry{}, fmt.Errorf("it has no version %s of chart %s: it has %s",
			cmp.Or(from.Version, "that is no pre-release"), from.Name, strings.Join(known[:min(len(known), 10)], ", "))
	case len(chosen.URLs) == 0:
		return entry{}, fmt.Errorf("it has no URL of chart %s %s", from.Name, chosen.Version)
	}
	return chosen, nil
}
