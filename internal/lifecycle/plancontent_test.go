package lifecycle_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// configMaps returns a manifest with one object.
func configMaps(value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: planned, namespace: kube-system}\ndata: {value: " + value + "}\n"
}

// write writes a file and creates its parents.
func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// aChart writes a chart whose renderings all differ.
func aChart(t *testing.T, dir, version, value string) string {
	t.Helper()
	write(t, filepath.Join(dir, "Chart.yaml"), "apiVersion: v2\nname: planned\nversion: "+version+"\n")
	write(t, filepath.Join(dir, "templates", "cm.yaml"), `{{ $made := randAlphaNum 20 }}`+configMaps(value)+
		"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: planned, namespace: kube-system, labels: {app.kubernetes.io/managed-by: orrery}, annotations: {made: {{ $made }}}}\n"+
		"spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: example.com/planned:1}]}}}\n")
	return dir
}

// TestPlanCoversObjects: the sources of objects are part of a plan's hash. A run with the hash of a
// plan does nothing if an add-on, a manifest, a chart or its values have changed since. A chart
// with random values has one hash.
func TestPlanCoversObjects(t *testing.T) {
	l := built(t, 1, 1)
	l.engine.Local = true
	dir := t.TempDir()
	manifest, chart := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "chart")
	spec := func(a ...clusterv1alpha1.Addon) *clusterv1alpha1.Provision {
		s := l.spec.DeepCopy()
		s.Addons = a
		return s
	}
	yamls := func() *clusterv1alpha1.Provision {
		return spec(clusterv1alpha1.Addon{Name: "a", YAML: []string{manifest}})
	}
	charts := func(values string) *clusterv1alpha1.Provision {
		return spec(clusterv1alpha1.Addon{Name: "a", Chart: &clusterv1alpha1.Chart{Path: chart, Values: &apiextensionsv1.JSON{Raw: []byte(values)}}})
	}
	for name, c := range map[string]struct {
		before, after func() *clusterv1alpha1.Provision
	}{
		"Added": {func() *clusterv1alpha1.Provision { return spec() }, func() *clusterv1alpha1.Provision { write(t, manifest, configMaps("a")); return yamls() }},
		"Manifest": {
			func() *clusterv1alpha1.Provision { write(t, manifest, configMaps("b")); return yamls() },
			func() *clusterv1alpha1.Provision { write(t, manifest, configMaps("c")); return yamls() },
		},
		"Removed": {func() *clusterv1alpha1.Provision { write(t, manifest, configMaps("a")); return yamls() }, func() *clusterv1alpha1.Provision { return spec() }},
		"Chart": {
			func() *clusterv1alpha1.Provision { aChart(t, chart, "1.0.0", "a"); return charts("{}") },
			func() *clusterv1alpha1.Provision { aChart(t, chart, "1.0.0", "b"); return charts("{}") },
		},
		"ChartVersion": {
			func() *clusterv1alpha1.Provision { aChart(t, chart, "1.0.0", "a"); return charts("{}") },
			func() *clusterv1alpha1.Provision { aChart(t, chart, "1.0.1", "a"); return charts("{}") },
		},
		"Values": {
			func() *clusterv1alpha1.Provision { aChart(t, chart, "1.0.0", "a"); return charts(`{"x":1}`) },
			func() *clusterv1alpha1.Provision { return charts(`{"x":2}`) },
		},
		"Network": {
			func() *clusterv1alpha1.Provision {
				s := spec()
				s.Network.Manifest = write(t, manifest, configMaps("a"))
				return s
			},
			func() *clusterv1alpha1.Provision {
				s := spec()
				s.Network.Manifest = write(t, manifest, configMaps("b"))
				return s
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			hashOf := func(s *clusterv1alpha1.Provision) string {
				t.Helper()
				_, changes, err := l.engine.Plan(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				return changes.Hash
			}
			before := c.before()
			hash := hashOf(before)
			if again := hashOf(before); again != hash {
				t.Errorf("the same has another hash: %s and %s", hash, again)
			}
			after := c.after()
			l.fleet.Forget()
			_, err := l.run(lifecyclev1alpha1.ActionApply, after, func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = hash })
			says(t, err, "the plan is", "not "+hash)
			if _, err := l.cs.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "planned", metav1.GetOptions{}); err == nil {
				t.Error("the add-on is applied")
			}
			if hash == hashOf(after) {
				t.Error("both have one hash")
			}
		})
	}
	t.Run("DoneByItsHash", func(t *testing.T) {
		aChart(t, chart, "1.0.0", "a")
		_, changes, err := l.engine.Plan(t.Context(), charts("{}"))
		if err != nil {
			t.Fatal(err)
		}
		l.must(lifecyclev1alpha1.ActionApply, charts("{}"), func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = changes.Hash })
		if _, err := l.cs.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "planned", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestPlanListsContent: a plan lists everything from external sources: release files, the sources
// of objects, and images.
func TestPlanListsContent(t *testing.T) {
	l := newLab(t, 2, 1)
	l.engine.Local = true
	chart := aChart(t, filepath.Join(t.TempDir(), "chart"), "1.2.3", "a")
	l.spec.Addons = []clusterv1alpha1.Addon{{Name: "a", Chart: &clusterv1alpha1.Chart{Path: chart}}}
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(changes.Content.Files, func(b plan.Blob) bool { return strings.HasSuffix(b.URL, "kubelet") && len(b.Hosts) == 2 }) {
		t.Errorf("files: %+v", changes.Content.Files)
	}
	var groups, images []string
	for _, o := range changes.Content.Objects {
		groups = append(groups, o.Group)
		for _, s := range o.Sources {
			if s.Digest == "" {
				t.Errorf("source of %s without a digest: %+v", o.Group, s)
			}
		}
	}
	for _, i := range changes.Content.Images {
		images = append(images, i.For)
		if i.For == "addon-a" && i.Reference != "example.com/planned:1" {
			t.Errorf("%+v", i)
		}
	}
	if !slices.Equal(groups, []string{"bootstrap", "dns", "network", "addon-a"}) {
		t.Errorf("objects: %v", groups)
	}
	for _, want := range []string{"sandbox", "dns", "network", "addon-a"} {
		if !slices.Contains(images, want) {
			t.Errorf("there is no image for %s: %+v", want, changes.Content.Images)
		}
	}
	var shown strings.Builder
	changes.PrintDetail(&shown)
	for _, want := range []string{"* Objects bootstrap, dns, network, addon-a\n", "objects of addon-a: chart planned 1.2.3 (", "image example.com/planned:1 for addon-a"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("the plan does not show %q", want)
		}
	}
}

// TestPlanShowsWhatWasApplied: the plan shows how a content differs from the applied one also if
// the content depends on images, whose references depend on the spec.
func TestPlanShowsWhatWasApplied(t *testing.T) {
	l := newLab(t, 1, 1)
	l.spec.Network.Plugin = plan.NetworkNone
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.spec.Registry.PrivateRegistry = "registry.example.com"
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	changes.PrintDetail(&shown)
	for _, want := range []string{"registry.k8s.io/pause", "registry.example.com/pause"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not shown:\n%s", want, shown.String())
		}
	}
}
