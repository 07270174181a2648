package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// webChart is a chart with hooks, a CustomResourceDefinition and a random password.
const webChart = "testdata/charts/web"

// objects renders a chart with values.
func objects(t *testing.T, c *Chart, given string) []Object {
	t.Helper()
	values, err := c.Values([]byte(given), map[string]any{"replicas": 2, "message": "of the defaults"})
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Render(values, Release{Name: "web", Namespace: "kube-system", Kubernetes: "v1.36.3"})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// web loads webChart.
func web(t *testing.T) *Chart {
	t.Helper()
	c, err := Load(t.Context(), Reference{Path: webChart}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// find returns an object by its kind and name.
func find(t *testing.T, all []Object, kind, name string) Object {
	t.Helper()
	for _, o := range all {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return Object{}
}

// at returns a field of an object.
func at(t *testing.T, o Object, path ...string) any {
	t.Helper()
	value, _, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestRender: objects are in the order of applying. Values of the user have precedence over
// defaults.
func TestRender(t *testing.T) {
	all := objects(t, web(t), `{"replicas": 3}`)
	var names []string
	for _, o := range all {
		names = append(names, o.GetKind()+" "+o.GetName())
	}
	want := []string{
		"ConfigMap before-1", "ConfigMap before-2", "CustomResourceDefinition gadgets.web.example.org",
		"Secret web", "Deployment web", "Gadget web", "Job after",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	deployment := find(t, all, "Deployment", "web")
	if got := at(t, deployment, "spec", "replicas"); got != int64(3) {
		t.Errorf("replicas are %v, want the 3 of the values", got)
	}
	if got := at(t, deployment, "spec", "template", "metadata", "annotations", "version"); got != "v1.36.3" {
		t.Errorf("the chart was told of Kubernetes %v", got)
	}
	if got := at(t, find(t, objects(t, web(t), "{}"), "Deployment", "web"), "spec", "replicas"); got != int64(2) {
		t.Errorf("replicas are %v, want the 2 of the defaults", got)
	}
}

// TestStable: random parts of an object are not in its stable value. Only an object with such parts
// has a stable value.
func TestStable(t *testing.T) {
	all, again := objects(t, web(t), "{}"), objects(t, web(t), "{}")
	for i, o := range all {
		if random := o.GetKind() == "Secret"; (o.Stable != nil) != random {
			t.Errorf("%s %s has the stable value %v", o.GetKind(), o.GetName(), o.Stable)
		}
		if !reflect.DeepEqual(o.Stable, again[i].Stable) {
			t.Errorf("%s %s has the stable values %v and %v", o.GetKind(), o.GetName(), o.Stable, again[i].Stable)
		}
	}
	if a, b := find(t, all, "Secret", "web"), find(t, again, "Secret", "web"); reflect.DeepEqual(a.Object, b.Object) {
		t.Error("the password is not random")
	}
	if o := find(t, objects(t, web(t), `{"message": "bye"}`), "Secret", "web"); reflect.DeepEqual(o.Stable, find(t, all, "Secret", "web").Stable) {
		t.Error("another user has the same stable value")
	}
}

// repository serves charts/web in several versions. edit may change the index and the archive.
func repository(t *testing.T, edit func(index string, archive []byte) (string, []byte)) *httptest.Server {
	t.Helper()
	archive := packed(t, webChart)
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
		chart Reference
		err   string
	}{
		"Version":        {same, Reference{Name: "web", Version: "1.2.0"}, ""},
		"VersionWithV":   {same, Reference{Name: "web", Version: "v1.10.0"}, ""},
		"Newest":         {same, Reference{Name: "web"}, ""},
		"UnknownVersion": {same, Reference{Name: "web", Version: "3.0.0"}, "no version 3.0.0 of chart web: it has 2.0.0-rc.1, 1.10.0"},
		"UnknownChart":   {same, Reference{Name: "db"}, "no chart db"},
		"NoName":         {same, Reference{}, "chart.name is missing"},
		"NoURL":          {same, Reference{Name: "web", Version: "1.1.0"}, "no URL of chart web 1.1.0"},
		"Missing":        {same, Reference{Name: "web", Version: "1.9.0"}, "missing.tgz: 404"},
		"BadDigest": {
			func(index string, archive []byte) (string, []byte) { return index, append(archive, 0) },
			Reference{Name: "web"},
			"a mirror of it is broken",
		},
		"BadIndex": {
			func(_ string, archive []byte) (string, []byte) { return "<html>", archive },
			Reference{Name: "web"},
			"parse index",
		},
		"BadArchive": {
			func(index string, _ []byte) (string, []byte) {
				return strings.ReplaceAll(index, "digest:", "was:"), []byte("<html>")
			},
			Reference{Name: "web"},
			"load chart web",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.chart.Repo = repository(t, tc.edit).URL + "/charts"
			c, err := Load(t.Context(), tc.chart, fetch)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			find(t, objects(t, c, "{}"), "Deployment", "web")
		})
	}
}

// TestErrorsHidePasswords: no error shows the password or the token in the URL of a repository or
// of an archive.
func TestErrorsHidePasswords(t *testing.T) {
	const repo = "https://me:secret@example.com/charts?token=secret"
	index := func(url string) string {
		return "entries: {web: [{version: 1.0.0, urls: ['" + url + "'], digest: ab}]}"
	}
	for name, c := range map[string]struct{ repo, index, archive string }{
		"OtherScheme":       {repo: "oci://me:secret@example.com/charts"},
		"Unparsable":        {repo: "https://me:sec%zzret@example.com", index: index("web.tgz")},
		"NoIndex":           {repo: repo},
		"BadIndex":          {repo: repo, index: "<html>"},
		"NoChart":           {repo: repo, index: "entries: {}"},
		"NoURL":             {repo: repo, index: "entries: {web: [{version: 1.0.0}]}"},
		"UnparsableArchive": {repo: repo, index: index("https://me:sec%zzret@example.com/web.tgz")},
		"NoArchive":         {repo: repo, index: index("https://me:secret@example.com/web.tgz?token=secret")},
		"BadDigest":         {repo: repo, index: index("https://me:secret@example.com/web.tgz?token=secret"), archive: "x"},
		"BadArchive":        {repo: repo, index: strings.ReplaceAll(index("https://me:secret@example.com/web.tgz"), "digest", "was"), archive: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(t.Context(), Reference{Repo: c.repo, Name: "web"}, func(_ context.Context, url string) ([]byte, error) {
				content := c.archive
				if strings.HasSuffix(url, "/index.yaml") {
					content = c.index
				}
				if content == "" {
					return nil, errors.New("no network")
				}
				return []byte(content), nil
			})
			if err == nil || strings.Contains(err.Error(), "sec") {
				t.Errorf("got error %v, want one without the password", err)
			}
		})
	}
}
