package addon

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

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
		Path: "testdata/charts/web", Values: &apiextensionsv1.JSON{Raw: []byte(`{"replicas": 3}`)},
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
			Path: "testdata/charts/web", Values: &apiextensionsv1.JSON{Raw: []byte(values)},
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

// repository serves charts/web in several versions. edit may change the index and the archive.
func repository(t *testing.T, edit func(index string, archive []byte) (string, []byte)) *httptest.Server {
	t.Helper()
	archive := packed(t, "testdata/charts/web")
	sum := sha256.Sum256(archive)
	index := fmt.Sprintf(`
apiVersion: v1
entries:
  web:
  - {version: 2.0.0-rc.1, urls: [missing.tgz]}
  - {version: 1.10.0, urls: [files/web.tgz], digest: %[1]s}
  - {version: 1.9.0, urls: [missing.tgz]}
  - {version: v1.2.0, urls: ["files/web.tgz"], digest: "sha256:%[1]s"}
  - {version: 1.1.0, urls: []}
`, hex.EncodeToString(sum[:]))
	index, archive = edit(index, archive)
	mux := http.NewServeMux()
	serve := func(content []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }
	}
	mux.HandleFunc("/charts/index.yaml", serve([]byte(index)))
	mux.HandleFunc("/charts/files/web.tgz", serve(archive))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func packed(t *testing.T, dir string) []byte {
	t.Helper()
	var content bytes.Buffer
	zipped := gzip.NewWriter(&content)
	archive := tar.NewWriter(zipped)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(filepath.Dir(dir), path)
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err = archive.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return content.Bytes()
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

func TestChartFromRepository(t *testing.T) {
	same := func(index string, archive []byte) (string, []byte) { return index, archive }
	cases := map[string]struct {
		edit  func(string, []byte) (string, []byte)
		chart clusterv1alpha1.Chart
		err   string
	}{
		"Version":        {same, clusterv1alpha1.Chart{Name: "web", Version: "1.2.0"}, ""},
		"VersionWithV":   {same, clusterv1alpha1.Chart{Name: "web", Version: "v1.10.0"}, ""},
		"Newest":         {same, clusterv1alpha1.Chart{Name: "web"}, ""},
		"UnknownVersion": {same, clusterv1alpha1.Chart{Name: "web", Version: "3.0.0"}, "no version 3.0.0 of chart web: it has 2.0.0-rc.1, 1.10.0"},
		"UnknownChart":   {same, clusterv1alpha1.Chart{Name: "db"}, "no chart db"},
		"NoName":         {same, clusterv1alpha1.Chart{}, "chart.name is missing"},
		"NoURL":          {same, clusterv1alpha1.Chart{Name: "web", Version: "1.1.0"}, "no URL of chart web 1.1.0"},
		"Missing":        {same, clusterv1alpha1.Chart{Name: "web", Version: "1.9.0"}, "missing.tgz: 404"},
		"BadDigest": {
			func(index string, archive []byte) (string, []byte) { return index, append(archive, 0) },
			clusterv1alpha1.Chart{Name: "web"},
			"a mirror of it is broken",
		},
		"BadIndex": {
			func(_ string, archive []byte) (string, []byte) { return "<html>", archive },
			clusterv1alpha1.Chart{Name: "web"},
			"parse index",
		},
		"BadArchive": {
			func(index string, _ []byte) (string, []byte) {
				return strings.ReplaceAll(index, "digest:", "was:"), []byte("<html>")
			},
			clusterv1alpha1.Chart{Name: "web"},
			"load chart web",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.chart.Repo = repository(t, tc.edit).URL + "/charts"
			in := input(webAddon(tc.chart))
			in.Fetch = fetch
			in.Local = false
			groups, err := Objects(t.Context(), in)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			find(t, groups[len(groups)-1], "Deployment", "web")
		})
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
