package render

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

func TestOverriders(t *testing.T) {
	const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns, labels: {app: x}, annotations: {note: old}}, spec: {replicas: 2, template: {spec: {
		initContainers: [{name: init, image: busybox}],
		containers: [{name: main, image: "registry.example.org:5000/team/app:v1", command: [run, -v], args: [--a, --b]}, {name: bare}]}}}}`
	const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns}, data: {
		app.json: '{"db":{"host":"<a>","port":1},"list":[1,2]}', app.yaml: "# database\ndb:\n  host: a\n", two.yaml: "a: 1\n---\nb: 2\n"}}`
	cases := map[string]struct {
		template string
		rules    string // spec.overrideRules[0].overriders
		path     string // of the value to compare
		want     any
	}{
		"ImageRegistryEverywhere": {
			deployment, `{imageOverrider: [{component: Registry, operator: replace, value: mirror.local}]}`,
			"/spec/template/spec",
			map[string]any{
				"initContainers": []any{map[string]any{"name": "init", "image": "mirror.local/busybox"}},
				"containers": []any{
					map[string]any{"name": "main", "image": "mirror.local/team/app:v1", "command": []any{"run", "-v"}, "args": []any{"--a", "--b"}},
					map[string]any{"name": "bare"},
				},
			},
		},
		"ImageAtPath": {
			deployment, `{imageOverrider: [{predicate: {path: /spec/template/spec/initContainers/0/image}, component: Tag, operator: add, value: "1.36"}]}`,
			"/spec/template/spec/initContainers/0/image", "busybox:1.36",
		},
		"ImageOfAPod": {
			`{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: c, image: a}]}}`,
			`{imageOverrider: [{component: Tag, operator: replace, value: v2}]}`, "/spec/containers/0/image", "a:v2",
		},
		"ImageOfACronJob": {
			`{apiVersion: batch/v1, kind: CronJob, metadata: {name: x}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: a}]}}}}}}`,
			`{imageOverrider: [{component: Tag, operator: replace, value: v2}]}`, "/spec/jobTemplate/spec/template/spec/containers/0/image", "a:v2",
		},
		"CommandAdd":    {deployment, `{commandOverrider: [{containerName: main, operator: add, value: [-x, "y z"]}]}`, "/spec/template/spec/containers/0/command", []any{"run", "-v", "-x", "y z"}},
		"CommandToBare": {deployment, `{commandOverrider: [{containerName: bare, operator: add, value: [sh]}]}`, "/spec/template/spec/containers/1/command", []any{"sh"}},
		"ArgsRemove":    {deployment, `{argsOverrider: [{containerName: main, operator: remove, value: [--a, --nope]}]}`, "/spec/template/spec/containers/0/args", []any{"--b"}},
		"ArgsRemoveAll": {deployment, `{argsOverrider: [{containerName: main, operator: remove, value: [--a, --b]}]}`, "/spec/template/spec/containers/0/args", nil},
		"ContainerOfAnotherWorkload": {
			deployment, `{argsOverrider: [{containerName: other, operator: add, value: [--c]}]}`, "/spec/template/spec/containers/0/args", []any{"--a", "--b"},
		},
		"LabelsAddKeepsWhatIsThere": {deployment, `{labelsOverrider: [{operator: add, value: {app: other, zone: a}}]}`, "/metadata/labels", map[string]any{"app": "x", "zone": "a"}},
		"LabelsReplaceAddsNothing":  {deployment, `{labelsOverrider: [{operator: replace, value: {app: other, zone: a}}]}`, "/metadata/labels", map[string]any{"app": "other"}},
		"LabelsRemove":              {deployment, `{labelsOverrider: [{operator: remove, value: {app: "", zone: ""}}]}`, "/metadata/labels", nil},
		"AnnotationsToNone":         {config, `{annotationsOverrider: [{operator: add, value: {a: b}}]}`, "/metadata/annotations", map[string]any{"a": "b"}},
		"FieldJSON": {
			config, `{fieldOverrider: [{fieldPath: /data/app.json, json: [{subPath: /db/port, operator: replace, value: 2}, {subPath: /list/0, operator: remove}, {subPath: /new, operator: add, value: {k: v}}]}]}`,
			"/data/app.json", `{"db":{"host":"<a>","port":2},"list":[2],"new":{"k":"v"}}`,
		},
		"FieldYAML": {
			config, `{fieldOverrider: [{fieldPath: /data/app.yaml, yaml: [{subPath: /db/host, operator: replace, value: b}]}]}`, "/data/app.yaml", "db:\n  host: b\n",
		},
		"Plaintext": {
			deployment, `{plaintext: [{path: /spec/replicas, operator: replace, value: 7}, {path: /metadata/annotations/a~1b, operator: add, value: "1"}, {path: /metadata/annotations/note, operator: remove}]}`,
			"/metadata/annotations",
			map[string]any{"a/b": "1"},
		},
		"PlaintextKeepsNumbers": {deployment, `{plaintext: [{path: /spec/revisionHistoryLimit, operator: add, value: 3}]}`, "/spec/revisionHistoryLimit", int64(3)},
		// The image is overridden first, then the patch replaces it.
		"OrderOfTheFields": {
			deployment, `{plaintext: [{path: /spec/template/spec/initContainers/0/image, operator: replace, value: last}], imageOverrider: [{component: Tag, operator: add, value: first}]}`,
			"/spec/template/spec/initContainers/0/image", "last",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, digest, err := Render(Input{
				Template: object(t, tc.template), Cluster: aCluster(), Binding: binding,
				Overrides: compiled(overridePolicy(t, "ns", "p", `{overrideRules: [{overriders: `+tc.rules+`}]}`)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, at(bare(t, got, digest), tc.path)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.path, diff)
			}
		})
	}
}

// at returns the value at a JSON pointer; nil if there is none.
func at(v any, pointer string) any {
	for _, part := range strings.Split(pointer, "/")[1:] {
		switch node := v.(type) {
		case map[string]any:
			v = node[part]
		case []any:
			v = node[part[0]-'0']
		default:
			return nil
		}
	}
	return v
}

// An overrider that does not fit is refused with an error that names the policy and its field.
func TestOverridersRefused(t *testing.T) {
	const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns, labels: {app: x}}, data: {k: "a: 1", two.yaml: "a: 1\n---\nb: 2\n", bad: "{"}}`
	cases := map[string]struct{ overriders, want string }{
		"PathAbsent":        {`{plaintext: [{path: /data/k, operator: remove}, {path: /data/none, operator: remove}]}`, "overriders.plaintext[1]: remove /data/none:"},
		"ReplaceAbsent":     {`{plaintext: [{path: /data/none, operator: replace, value: x}]}`, "overriders.plaintext[0]: replace /data/none:"},
		"ParentAbsent":      {`{plaintext: [{path: /spec/a/b, operator: add, value: x}]}`, "overriders.plaintext[0]: add /spec/a/b:"},
		"Kind":              {`{plaintext: [{path: /kind, operator: replace, value: Secret}]}`, "overrideRules[0]: "},
		"APIVersion":        {`{plaintext: [{path: /apiVersion, operator: replace, value: v2}]}`, "overrideRules[0]: "},
		"Name":              {`{plaintext: [{path: /metadata/name, operator: replace, value: other}]}`, "overrideRules[0]: "},
		"Namespace":         {`{plaintext: [{path: /metadata/namespace, operator: remove}]}`, "overrideRules[0]: "},
		"UID":               {`{plaintext: [{path: /metadata/uid, operator: add, value: u}]}`, "metadata.uid"},
		"Metadata":          {`{plaintext: [{path: /metadata, operator: remove}]}`, "overrideRules[0]: "},
		"WholeObject":       {`{plaintext: [{path: "", operator: replace, value: [1]}]}`, "overriders.plaintext: "},
		"Status":            {`{plaintext: [{path: /status, operator: add, value: {}}]}`, "status"},
		"OurLabel":          {`{labelsOverrider: [{operator: add, value: {work.orrery.dev/binding: x}}]}`, "metadata.labels[work.orrery.dev/binding]"},
		"OurAnnotation":     {`{plaintext: [{path: /metadata/annotations, operator: add, value: {work.orrery.dev/digest: x}}]}`, "metadata.annotations[work.orrery.dev/digest]"},
		"LabelsNoMap":       {`{plaintext: [{path: /metadata/labels, operator: replace, value: 7}]}`, "metadata.labels"},
		"ImagePathAbsent":   {`{imageOverrider: [{predicate: {path: /spec/image}, component: Tag, operator: remove}]}`, "imageOverrider[0]: path /spec/image"},
		"ImageNoString":     {`{imageOverrider: [{predicate: {path: /data}, component: Tag, operator: remove}]}`, "imageOverrider[0]: path /data"},
		"NoRepositoryLeft":  {`{imageOverrider: [{predicate: {path: /data/k}, component: Repository, operator: remove}]}`, "imageOverrider[0]: "},
		"FieldAbsent":       {`{fieldOverrider: [{fieldPath: /data/none, json: [{subPath: /a, operator: remove}]}]}`, "fieldOverrider[0]: path /data/none"},
		"FieldNoJSON":       {`{fieldOverrider: [{fieldPath: /data/k, json: [{subPath: /a, operator: remove}]}]}`, "fieldOverrider[0]: "},
		"FieldNoYAML":       {`{fieldOverrider: [{fieldPath: /data/bad, yaml: [{subPath: /a, operator: remove}]}]}`, "fieldOverrider[0]: "},
		"FieldTwoDocuments": {`{fieldOverrider: [{fieldPath: /data/two.yaml, yaml: [{subPath: /a, operator: remove}]}]}`, "several YAML documents"},
		"FieldPathAbsent":   {`{fieldOverrider: [{fieldPath: /data/k, yaml: [{subPath: /b, operator: remove}]}]}`, "fieldOverrider[0]: yaml[0]: remove /b"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, err := Render(Input{
				Template: object(t, config), Cluster: aCluster(), Binding: binding,
				Overrides: compiled(overridePolicy(t, "ns", "tune", `{overrideRules: [{overriders: `+tc.overriders+`}]}`)),
			})
			if err == nil {
				t.Fatal("not refused")
			}
			for _, want := range []string{"OverridePolicy ns/tune: spec.overrideRules[0]", tc.want} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestOverrideRulesAreForTheirClusters(t *testing.T) {
	spec := `{overrideRules: [
		{targetCluster: {clusterNames: [c1]}, overriders: {labelsOverrider: [{operator: add, value: {first: "yes"}}]}},
		{targetCluster: {clusterNames: [c2]}, overriders: {labelsOverrider: [{operator: add, value: {second: "yes"}}]}},
		{targetCluster: {labelSelector: {matchLabels: {env: prod}}}, overriders: {labelsOverrider: [{operator: replace, value: {first: again}}]}}]}`
	got, digest, err := Render(Input{
		Template: object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`), Cluster: aCluster(), Binding: binding,
		Overrides: compiled(overridePolicy(t, "", "p", spec)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"first": "again"}, at(bare(t, got, digest), "/metadata/labels")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// The older form of a policy with one rule.
	for cluster, want := range map[string]any{"c1": map[string]any{"first": "yes"}, "c2": nil} {
		old := `{targetCluster: {clusterNames: [` + cluster + `]}, overriders: {labelsOverrider: [{operator: add, value: {first: "yes"}}]}}`
		got, digest, err := Render(Input{
			Template: object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`), Cluster: aCluster(), Binding: binding,
			Overrides: compiled(overridePolicy(t, "", "p", old)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, at(bare(t, got, digest), "/metadata/labels")); diff != "" {
			t.Errorf("the older way, for %s: -want +got:\n%s", cluster, diff)
		}
	}
	_, _, err = Render(Input{
		Template: object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`), Cluster: aCluster(), Binding: binding,
		Overrides: compiled(overridePolicy(t, "", "p", `{overriders: {plaintext: [{path: /none, operator: remove}]}}`)),
	})
	if err == nil || !strings.Contains(err.Error(), "ClusterOverridePolicy p: spec.overriders.plaintext[0]") {
		t.Errorf("a change that does not fit, written the older way: %v", err)
	}

	unreadable := overridePolicy(t, "", "p", `{overrideRules: [{targetCluster: {labelSelector: {matchExpressions: [{key: a, operator: Near}]}}, overriders: {plaintext: [{path: /a, operator: remove}]}}]}`)
	_, _, err = Render(Input{
		Template: object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`), Cluster: aCluster(), Binding: binding,
		Overrides: compiled(unreadable),
	})
	if err == nil || !strings.Contains(err.Error(), "ClusterOverridePolicy p: spec.overrideRules[0].targetCluster.labelSelector") {
		t.Errorf("an affinity that cannot be read: %v", err)
	}
}

func TestImages(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	type change struct {
		component policyv1alpha1.ImageComponent
		operator  policyv1alpha1.OverriderOperator
		value     string
	}
	cases := map[string]struct {
		image string
		change
		want string
	}{
		"ReplaceRegistry":          {"docker.io/library/nginx:1", change{"Registry", "replace", "r.io"}, "r.io/library/nginx:1"},
		"ReplaceRegistryWithPort":  {"host:5000/nginx", change{"Registry", "replace", "r.io"}, "r.io/nginx"},
		"ReplaceLocalhost":         {"localhost/nginx", change{"Registry", "replace", "r.io"}, "r.io/nginx"},
		"NamespaceIsNoRegistry":    {"library/nginx", change{"Registry", "replace", "r.io"}, "r.io/library/nginx"},
		"AddToRegistry":            {"r.io/nginx", change{"Registry", "add", ":5000"}, "r.io:5000/nginx"},
		"AddRegistryWhereNone":     {"nginx", change{"Registry", "add", "r.io"}, "r.io/nginx"},
		"RemoveRegistry":           {"host:5000/a/b:c", change{"Registry", "remove", ""}, "a/b:c"},
		"ReplaceRepository":        {"r.io/a/b:c", change{"Repository", "replace", "d"}, "r.io/d:c"},
		"AddToRepository":          {"r.io/a/b:c", change{"Repository", "add", "-slim"}, "r.io/a/b-slim:c"},
		"ReplaceTag":               {"host:5000/a:v1", change{"Tag", "replace", "v2"}, "host:5000/a:v2"},
		"AddTagWhereNone":          {"host:5000/a", change{"Tag", "add", "v1"}, "host:5000/a:v1"},
		"AddToTag":                 {"a:v1", change{"Tag", "add", "-alpine"}, "a:v1-alpine"},
		"RemoveTag":                {"host:5000/a:v1", change{"Tag", "remove", ""}, "host:5000/a"},
		"ReplaceTagByDigest":       {"a:v1", change{"Tag", "replace", digest}, "a@" + digest},
		"ReplaceDigestByTag":       {"a@" + digest, change{"Tag", "replace", "v2"}, "a:v2"},
		"RemoveDigestAndTag":       {"a:v1@" + digest, change{"Tag", "remove", ""}, "a"},
		"ReplaceTagAndDigest":      {"a:v1@" + digest, change{"Tag", "replace", "v2"}, "a:v2"},
		"ReplaceBothByDigest":      {"a:v1@sha256:old", change{"Tag", "replace", digest}, "a@" + digest},
		"AddToTagBesideDigest":     {"a:v1@" + digest, change{"Tag", "add", "-alpine"}, "a:v1-alpine"},
		"RegistryKeepsBoth":        {"q.io/a:v1@" + digest, change{"Registry", "replace", "r.io"}, "r.io/a:v1@" + digest},
		"RemoveRegistryKeepsBoth":  {"host:5000/a:v1@" + digest, change{"Registry", "remove", ""}, "a:v1@" + digest},
		"RepositoryKeepsBoth":      {"r.io/a:v1@" + digest, change{"Repository", "replace", "b"}, "r.io/b:v1@" + digest},
		"IPv6Registry":             {"[fd00::1]:5000/a:v1", change{"Registry", "replace", "r.io"}, "r.io/a:v1"},
		"RepositoryKeepsTheDigest": {"r.io/a@" + digest, change{"Repository", "replace", "b"}, "r.io/b@" + digest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseImage(tc.image).change(&policyv1alpha1.ImageOverrider{Component: tc.component, Operator: tc.operator, Value: tc.value})
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if parsed := parseImage(tc.want).String(); parsed != tc.want {
				t.Errorf("%s is read as %s", tc.want, parsed)
			}
		})
	}
}

func TestOverrides(t *testing.T) {
	const rules = `overrideRules: [{overriders: {plaintext: [{path: /a, operator: remove}]}}]`
	all := map[string]*policyv1alpha1.OverridePolicy{
		"ns/b-all":       overridePolicy(t, "ns", "b-all", `{`+rules+`}`),
		"ns/a-kind":      overridePolicy(t, "ns", "a-kind", `{resourceSelectors: [{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: ConfigMap}], `+rules+`}`),
		"ns/name":        overridePolicy(t, "ns", "name", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, name: second}], `+rules+`}`),
		"ns/labels":      overridePolicy(t, "ns", "labels", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, labelSelector: {matchLabels: {app: x}}}], `+rules+`}`),
		"ns/unreadable":  overridePolicy(t, "ns", "unreadable", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, labelSelector: {matchExpressions: [{key: a, operator: Near}]}}], `+rules+`}`),
		"ns/elsewhere":   overridePolicy(t, "ns", "elsewhere", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, namespace: other}], `+rules+`}`),
		"other/all":      overridePolicy(t, "other", "all", `{`+rules+`}`),
		"/z-all":         overridePolicy(t, "", "z-all", `{`+rules+`}`),
		"/a-namespace":   overridePolicy(t, "", "a-namespace", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, namespace: ns}], `+rules+`}`),
		"/otherversion":  overridePolicy(t, "", "otherversion", `{resourceSelectors: [{apiVersion: v2, kind: ConfigMap}], `+rules+`}`),
		"/othernamespce": overridePolicy(t, "", "othernamespce", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, namespace: other}], `+rules+`}`),
	}
	cases := map[string]struct {
		template string
		want     []string
	}{
		"Namespaced": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns, labels: {app: x}}}`,
			[]string{"/z-all", "/a-namespace", "ns/b-all", "ns/a-kind", "ns/labels", "ns/unreadable"},
		},
		"ByName":        {`{apiVersion: v1, kind: ConfigMap, metadata: {name: second, namespace: ns}}`, []string{"/z-all", "/a-namespace", "ns/b-all", "ns/a-kind", "ns/unreadable", "ns/name"}},
		"ClusterScoped": {`{apiVersion: v1, kind: Namespace, metadata: {name: x}}`, []string{"/z-all"}},
		"OtherKind":     {`{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: ns}}`, []string{"/z-all", "ns/b-all"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			index := NewOverrides()
			for p := range maps.Values(all) { // in random order
				index.Set(overridePolicy(t, p.Namespace, p.Name, `{}`)) // an earlier version
				index.Set(p)
			}
			template := object(t, tc.template)
			got := make([]string, 0, len(all))
			for _, v := range index.Of(template) {
				got = append(got, v.Policy.Namespace+"/"+v.Policy.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}

	index := NewOverrides(slices.Collect(maps.Values(all))...)
	needed := []types.NamespacedName{{Namespace: "ns", Name: "b-all"}, {Name: "b-all"}, {Name: "z-all"}}
	if _, missing := index.With(object(t, cases["Namespaced"].template), needed); !cmp.Equal(missing, needed[1:2]) {
		t.Errorf("missing are %v", missing)
	}
	for _, p := range all {
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		before := index.Get(name)
		index.Set(p)
		if index.Delete(before) || !index.Delete(index.Get(name)) {
			t.Errorf("%s: what was replaced is deleted, or what is there is not", name)
		}
	}
	if left := index.Of(object(t, cases["Namespaced"].template)); len(left) > 0 || len(index.scopes) > 0 {
		t.Errorf("of policies that are gone there are left: %v, %v", left, index.scopes)
	}

	// An override whose selector cannot be read may be for the object, so it is not left out
	// silently.
	template := object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns}}`)
	_, _, err := Render(Input{Template: template, Cluster: aCluster(), Overrides: compiled(all["ns/unreadable"])})
	if err == nil || !strings.Contains(err.Error(), "OverridePolicy ns/unreadable: spec.resourceSelectors[0].labelSelector") {
		t.Errorf("a selector that cannot be read: %v", err)
	}
}
