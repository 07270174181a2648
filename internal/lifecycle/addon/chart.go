package addon

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
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/manifest"
)

// release is a chart with its values.
type release struct {
	name, namespace string
	chart           clusterv1alpha1.Chart
	// values are ours. Values of the chart in the spec have precedence.
	values map[string]any
}

// chartObjects renders a chart. The source identifies what it is rendered from, because each
// rendering may be different.
func chartObjects(ctx context.Context, in Input, r release) ([]*unstructured.Unstructured, plan.Source, error) {
	c, source, err := loadChart(ctx, in, r.chart)
	if err != nil {
		return nil, source, err
	}
	if v := c.Metadata.KubeVersion; v != "" && !chartutil.IsCompatibleRange(v, in.Spec.Kubernetes.Version) {
		return nil, source, fmt.Errorf("chart %s %s needs Kubernetes %s, and spec.provision.kubernetes.version is %s: choose another version of one of them",
			c.Name(), c.Metadata.Version, v, in.Spec.Kubernetes.Version)
	}
	values := map[string]any{}
	if r.chart.Values != nil && len(r.chart.Values.Raw) > 0 {
		if err := json.Unmarshal(r.chart.Values.Raw, &values); err != nil {
			return nil, source, fmt.Errorf("values of chart %s: %w", c.Name(), err)
		}
	}
	values = chartutil.CoalesceTables(values, r.values)
	source.Values = digestOf(values)
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, source, fmt.Errorf("process dependencies of chart %s: %w", c.Name(), err)
	}
	first, err := render(c, values, in.Spec.Kubernetes.Version, r)
	if err != nil {
		return nil, source, fmt.Errorf("render chart %s %s: %w", c.Name(), c.Metadata.Version, err)
	}
	// Differences between two renderings are random, such as passwords. They are no reason to apply an
	// object again, so they are not in the object's digest.
	second, err := render(c, values, in.Spec.Kubernetes.Version, r)
	if err != nil {
		return nil, source, fmt.Errorf("render chart %s %s: %w", c.Name(), c.Metadata.Version, err)
	}
	for i, o := range first {
		if i < len(second) && !reflect.DeepEqual(o.Object, second[i].Object) {
			setDigest(o, digestOf(common(o.Object, second[i].Object)))
		}
	}
	return first, source, nil
}

// common returns the parts that are equal in both values. Different parts become nil.
func common(a, b any) any {
	switch a := a.(type) {
	case map[string]any:
		b, _ := b.(map[string]any)
		both := make(map[string]any, len(a))
		for key := range a {
			both[key] = common(a[key], b[key])
		}
		return both
	case []any:
		b, _ := b.([]any)
		both := make([]any, len(a))
		for i := range a {
			if i < len(b) {
				both[i] = common(a[i], b[i])
			}
		}
		return both
	default:
		if reflect.DeepEqual(a, b) {
			return a
		}
		return nil
	}
}

// loadChart reads a chart from its path or repository.
func loadChart(ctx context.Context, in Input, from clusterv1alpha1.Chart) (*chart.Chart, plan.Source, error) {
	var c *chart.Chart
	source := plan.Source{Kind: plan.SourceChart, Location: catalog.ShownLocation(cmp.Or(from.Path, from.Repo))}
	if from.Path != "" {
		if err := localPath(in); err != nil {
			return nil, source, fmt.Errorf("chart.path %s: %w", from.Path, err)
		}
		var err error
		if c, err = loader.Load(from.Path); err != nil {
			return nil, source, fmt.Errorf("load chart %s: %w", from.Path, err)
		}
		source.Digest = digestOfFiles(c.Raw)
	} else {
		archive, err := fetchChart(ctx, in, from)
		if err != nil {
			return nil, source, err
		}
		if c, err = loader.LoadArchive(bytes.NewReader(archive)); err != nil {
			return nil, source, fmt.Errorf("load chart %s of %s: %w", from.Name, from.Repo, err)
		}
		source.Digest = digestOfBytes(archive)
	}
	if err := c.Validate(); err != nil {
		return nil, source, fmt.Errorf("validate chart: %w", err)
	}
	source.Name, source.Version = c.Name(), c.Metadata.Version
	if c.Metadata.Type == "library" {
		return nil, source, fmt.Errorf("chart %s is a library: it has no objects", c.Name())
	}
	for _, d := range c.Metadata.Dependencies {
		if !slices.ContainsFunc(c.Dependencies(), func(had *chart.Chart) bool { return had.Name() == d.Name }) {
			return nil, source, fmt.Errorf("chart %s needs chart %s, which is not in its folder charts: run helm dependency build", c.Name(), d.Name)
		}
	}
	return c, source, nil
}

// digestOfFiles returns the digest of the files of a chart, independent of their directory.
func digestOfFiles(files []*chart.File) string {
	h := sha256.New()
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b *chart.File) int { return strings.Compare(a.Name, b.Name) }) {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Data)) //nolint:errcheck // a hash takes all
		h.Write(f.Data)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// fetchChart reads the archive of a chart from its repository, and checks its digest if the index
// has one.
func fetchChart(ctx context.Context, in Input, from clusterv1alpha1.Chart) ([]byte, error) {
	if !isURL(from.Repo) {
		return nil, fmt.Errorf("chart.repo %q is no http:// or https:// URL: charts of other kinds of registries are given by path", from.Repo)
	}
	if from.Name == "" {
		return nil, errors.New("chart.name is missing: it says which chart of the repository")
	}
	at := strings.TrimSuffix(from.Repo, "/") + "/index.yaml"
	content, err := read(ctx, in, at)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", catalog.ShownLocation(at), err)
	}
	entry, err := choose(content, from)
	if err != nil {
		return nil, fmt.Errorf("choose chart from %s: %w", catalog.ShownLocation(at), err)
	}
	base, err := url.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("chart.repo: %w", err)
	}
	address, err := base.Parse(entry.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("URL of chart %s in %s: %w", from.Name, at, err)
	}
	archive, err := read(ctx, in, address.String())
	if err != nil {
		return nil, fmt.Errorf("read chart %s: %w", catalog.ShownLocation(address.String()), err)
	}
	sum := sha256.Sum256(archive)
	if got := hex.EncodeToString(sum[:]); entry.Digest != "" && got != strings.TrimPrefix(entry.Digest, "sha256:") {
		return nil, fmt.Errorf("chart %s has digest %s, and %s says %s: the repository or a mirror of it is broken",
			catalog.ShownLocation(address.String()), got, catalog.ShownLocation(at), entry.Digest)
	}
	return archive, nil
}

// entry is a version of a chart in the index of a repository.
type entry struct {
	Version string   `json:"version"`
	URLs    []string `json:"urls"`
	Digest  string   `json:"digest"`
}

// choose returns the version of a chart from the index of its repository: the wanted one, or else
// the newest that is not a pre-release.
func choose(index []byte, from clusterv1alpha1.Chart) (entry, error) {
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

// render renders the objects of a chart: those of the crds folder and pre-install hooks, the rest,
// and post-install hooks.
func render(c *chart.Chart, values map[string]any, kubernetes string, r release) ([]*unstructured.Unstructured, error) {
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return nil, fmt.Errorf("spec.provision.kubernetes.version: %w", err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	all, err := chartutil.ToRenderValues(c, values,
		chartutil.ReleaseOptions{Name: r.name, Namespace: r.namespace, Revision: 1, IsInstall: true}, capabilities)
	if err != nil {
		return nil, fmt.Errorf("merge values: %w", err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	var found rendered
	for _, crd := range c.CRDObjects() {
		if err := found.add(crd.Filename, crd.File.Data); err != nil {
			return nil, err
		}
	}
	for _, name := range sortedKeys(files) {
		if base := path.Base(name); base == "NOTES.txt" || strings.HasPrefix(base, "_") {
			continue
		}
		if err := found.add(name, []byte(files[name])); err != nil {
			return nil, err
		}
	}
	return found.objects(), nil
}

// rendered has the objects of a chart by the time of applying.
type rendered struct {
	before, main, after []*unstructured.Unstructured
}

const (
	hookAnnotation       = "helm.sh/hook"
	hookWeightAnnotation = "helm.sh/hook-weight"
)

func (r *rendered) add(name string, content []byte) error {
	// Many charts repeat a key. Helm takes the last value.
	found, err := manifest.Parse(content, yaml.YAMLToJSON)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, o := range found {
		hooks := strings.Split(strings.ReplaceAll(o.GetAnnotations()[hookAnnotation], " ", ""), ",")
		switch {
		case hooks[0] == "":
			r.main = append(r.main, o)
		case slices.Contains(hooks, "pre-install"), slices.Contains(hooks, "crd-install"):
			r.before = append(r.before, o)
		case slices.Contains(hooks, "post-install"):
			r.after = append(r.after, o)
		}
	}
	return nil
}

func (r *rendered) objects() []*unstructured.Unstructured {
	byWeight := func(a, b *unstructured.Unstructured) int { return cmp.Compare(hookWeight(a), hookWeight(b)) }
	slices.SortStableFunc(r.before, byWeight)
	slices.SortStableFunc(r.after, byWeight)
	return slices.Concat(r.before, r.main, r.after)
}

// hookWeight returns the weight of a hook. As in Helm, an invalid number is 0.
func hookWeight(o *unstructured.Unstructured) int {
	weight, err := strconv.Atoi(o.GetAnnotations()[hookWeightAnnotation])
	if err != nil {
		return 0
	}
	return weight
}
