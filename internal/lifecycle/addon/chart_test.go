package addon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// webChart is a chart with hooks, a CustomResourceDefinition and a random password.
const webChart = "../../chart/testdata/charts/web"

func names(g Group) []string {
	var all []string
	for _, o := range g.Objects {
		all = append(all, refOf(o, "").String())
	}
	return all
}

func webAddon(c clusterv1alpha1.Chart) func(*Input) {
	return addonWith(clusterv1alpha1.Addon{Name: "web", Chart: &c})
}

func TestChartObjects(t *testing.T) {
	g := mustObjects(t, input(webAddon(clusterv1alpha1.Chart{
		Path: webChart, Values: &apiextensionsv1.JSON{Raw: []byte(`{"replicas": 3}`)},
	})))["addon-web"]
	want := []string{
		"ConfigMap before-1", "ConfigMap before-2", "CustomResourceDefinition gadgets.web.example.org",
		"Secret web", "Deployment web", "Gadget web", "Job after",
	}
	if diff := cmp.Diff(want, names(g)); diff != "" {
		t.Error(diff)
	}
	deployment := find(t, g, "Deployment", "web")
	if got := at(t, deployment, "spec", "replicas"); got != int64(3) {
		t.Errorf("replicas are %v, want the 3 of the values", got)
	}
	if got := at(t, deployment, "spec", "template", "metadata", "annotations", "version"); got != "v1.36.3" {
		t.Errorf("the chart was told of Kubernetes %v", got)
	}
}

// TestChartDigest: random parts of a chart do not change an object's digest, and all other parts
// do.
func TestChartDigest(t *testing.T) {
	secret := func(values string) (digest string, password any) {
		g := mustObjects(t, input(webAddon(clusterv1alpha1.Chart{
			Path: webChart, Values: &apiextensionsv1.JSON{Raw: []byte(values)},
		})))["addon-web"]
		o := find(t, g, "Secret", "web")
		return o.GetAnnotations()[digestAnnotation], at(t, o, "stringData", "password")
	}
	digest, password := secret("{}")
	again, other := secret("{}")
	if password == other {
		t.Fatal("the password is not random")
	}
	if digest == "" || digest != again {
		t.Errorf("digests are %q and %q, want the same", digest, again)
	}
	if changed, _ := secret(`{"message": "bye"}`); changed == digest {
		t.Error("another user has the same digest")
	}
}

func TestBadCharts(t *testing.T) {
	cases := map[string]struct {
		files  map[string]string
		values string
		err    string
	}{
		"NoChart":      {map[string]string{"x": ""}, "", "Chart.yaml"},
		"OldVersion":   {map[string]string{"Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\nkubeVersion: '<1.20'\n"}, "", "needs Kubernetes <1.20, and spec.provision.kubernetes.version is v1.36.3"},
		"Library":      {map[string]string{"Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\ntype: library\n"}, "", "is a library"},
		"Dependency":   {map[string]string{"Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\ndependencies: [{name: b, version: 1.0.0, repository: 'https://192.0.2.1'}]\n"}, "", "needs chart b"},
		"Template":     {map[string]string{"Chart.yaml": chartYAML, "templates/a.yaml": "{{ fail `port is missing` }}"}, "", "port is missing"},
		"Syntax":       {map[string]string{"Chart.yaml": chartYAML, "templates/a.yaml": "{{ .Values"}, "", "templates/a.yaml"},
		"NoObject":     {map[string]string{"Chart.yaml": chartYAML, "templates/a.yaml": "a: b"}, "", "templates/a.yaml: document 1: it is no Kubernetes object"},
		"Schema":       {map[string]string{"Chart.yaml": chartYAML, "values.schema.json": `{"properties": {"port": {"type": "integer"}}}`}, `{"port": "x"}`, "port"},
		"ValuesNoMap":  {map[string]string{"Chart.yaml": chartYAML}, `[1]`, "values of chart a"},
		"EndlessLoop":  {map[string]string{"Chart.yaml": chartYAML, "templates/a.yaml": `{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}`}, "", "templates/a.yaml"},
		"NothingAtAll": {map[string]string{"Chart.yaml": chartYAML}, "", "no object in it"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tc.files {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			chart := clusterv1alpha1.Chart{Path: dir}
			if tc.values != "" {
				chart.Values = &apiextensionsv1.JSON{Raw: []byte(tc.values)}
			}
			_, err := Objects(t.Context(), input(webAddon(chart)))
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got error %v, want one with %q", err, tc.err)
			}
		})
	}
}

const chartYAML = "apiVersion: v2\nname: a\nversion: 1.0.0\n"
