package addon

import (
	"testing"

	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/manifest"
)

func FuzzParseManifest(f *testing.F) {
	for _, seed := range []string{
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n", "---\n---\n", "{", "a: *b",
		"apiVersion: v1\nkind: List\nitems: {}\n", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 1}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: 3, annotations: [1]}\nspec: {containers: [1, {image: 2}]}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		found, err := manifest.Parse(content, yaml.YAMLToJSONStrict)
		if err != nil {
			return
		}
		g := Group{Name: "fuzz", Namespace: "default", Objects: found}
		finish(&g, clusterv1alpha1.Registry{PrivateRegistry: "hub.example"})
		if settle([]Group{g}) != nil {
			return
		}
		for _, o := range found {
			if o.GetName() == "" || o.GetKind() == "" || o.GetAPIVersion() == "" {
				t.Errorf("an object without a name: %v", o.Object)
			}
			if got := labelled(o, "fuzz").GetLabels()[groupLabel]; got != "fuzz" {
				t.Errorf("label of the group is %q", got)
			}
		}
	})
}
