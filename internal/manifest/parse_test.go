package manifest

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestParse(t *testing.T) {
	cases := map[string]struct {
		manifest string
		want     []string
		err      string
	}{
		"Empty":        {"", nil, ""},
		"OnlyComments": {"# a\n---\n# b\n---\n", nil, ""},
		"Documents": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: b, namespace: c}\n",
			[]string{"ConfigMap a", "Secret c/b"},
			"",
		},
		"JSON":         {`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}`, []string{"ConfigMap a"}, ""},
		"WindowsLines": {"apiVersion: v1\r\nkind: ConfigMap\r\nmetadata: {name: a}\r\n", []string{"ConfigMap a"}, ""},
		"List": {
			"apiVersion: v1\nkind: ConfigMapList\nitems:\n" +
				"- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n",
			[]string{"ConfigMap a", "ConfigMap b"},
			"",
		},
		"ListOfNothing":  {"apiVersion: v1\nkind: List\nitems: []\n", nil, ""},
		"ListWithNumber": {"apiVersion: v1\nkind: List\nitems: [1]\n", nil, "document 1: decode List"},
		"ListNoName":     {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap}\n", nil, "document 1: items[0]: ConfigMap has no metadata.name"},
		"BadYAML":        {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n\t{", nil, "document 2: parse YAML"},
		"KeyTwice":       {"apiVersion: v1\nkind: ConfigMap\nkind: Secret\nmetadata: {name: a}\n", nil, "document 1: parse YAML"},
		"HTML":           {"<html><body>sign in</body></html>", nil, `document 1: it is no Kubernetes object with apiVersion and kind: it begins with "<html>`},
		"NoKind":         {"apiVersion: v1\nmetadata: {name: a}\n", nil, "document 1: it is no Kubernetes object"},
		"KindIsNumber":   {"apiVersion: v1\nkind: 1\n", nil, "document 1: it is no Kubernetes object"},
		"MetadataIsText": {"apiVersion: v1\nkind: ConfigMap\nmetadata: a\n", nil, "document 1: "},
		"NoName":         {"apiVersion: v1\nkind: ConfigMap\n", nil, "document 1: ConfigMap has no metadata.name"},
		"GenerateName":   {"apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: a-}\n", nil, "Job has generateName"},
		"TooManyDocuments": {
			strings.Repeat("---\na: b\n", maxDocuments+1), nil, "document 1: ",
		},
		"LargeDocument": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: " + strings.Repeat("x", maxDocument) + "}\n", nil, "document 1: it has",
		},
		"Bomb": {
			"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
				"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n" +
				"g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
			nil, "document 1: parse YAML",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			found, err := Parse([]byte(tc.manifest), yaml.YAMLToJSONStrict)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("got error %v, want one with %q", err, tc.err)
			}
			var got []string
			for _, o := range found {
				got = append(got, strings.TrimSpace(o.GetKind()+" "+path.Join(o.GetNamespace(), o.GetName())))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestParseOfServer: Parse removes the fields that an API server has set in an object.
func TestParseOfServer(t *testing.T) {
	found, err := Parse([]byte(`
apiVersion: v1
kind: ConfigMap
metadata:
  {name: a, uid: b, resourceVersion: "1", creationTimestamp: null, generation: 3, managedFields: [], labels: {c: d},
  selfLink: /a, deletionTimestamp: "2026-01-02T03:04:05Z", deletionGracePeriodSeconds: 30}
status: {}
data: {number: "1"}
`), yaml.YAMLToJSON)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"number": "1"},
		"metadata": map[string]any{"name": "a", "labels": map[string]any{"c": "d"}},
	}
	if diff := cmp.Diff(want, found[0].Object); diff != "" {
		t.Error(diff)
	}
}
