package render

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// repeated returns n lines; line returns the text of the i-th.
func repeated(n int, line func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i))
	}
	return b.String()
}

// A document of some kilobytes that expands to gigabytes is refused before it is expanded.
func TestDocumentsAreBoundedBeforeTheyAreBuilt(t *testing.T) {
	bomb := "a: &a '" + strings.Repeat("x", 100_000) + "'\n" + repeated(900, func(i int) string { return fmt.Sprintf("k%d: *a\n", i) })
	laughs := "a0: &a0 [" + strings.Repeat("lol, ", 9) + "lol]\n" + repeated(12, func(i int) string {
		return fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	})
	merges := "a0: &a0 {text: '" + strings.Repeat("x", 1000) + "'}\n" + repeated(30, func(i int) string {
		return fmt.Sprintf("a%d: &a%d {l: *a%d, r: *a%d, <<: *a%d}\n", i+1, i+1, i, i, i)
	})
	const (
		emptied = `{subPath: "", operator: replace, value: {}}`
		remove  = `{subPath: /0, operator: remove}`
		add     = `{subPath: /b, operator: add, value: 1}`
	)
	cases := map[string]struct {
		document, change string
		want             error
		most             uint64 // bytes that may be allocated
	}{
		"AnchorTimesAliases": {bomb, emptied, errAliases, 8 << 20},
		"BillionLaughs":      {laughs, emptied, errAliases, 8 << 20},
		"Merges":             {merges, emptied, errAliases, 8 << 20},
		"HoldsItself":        {"a: &a [*a]\n", emptied, errAliases, 8 << 20},
		"InTheSecond":        {"---\n# nothing\n---\n" + bomb, emptied, errAliases, 8 << 20},
		"DeepAndWide":        {"[1, " + strings.Repeat("[", 1000) + strings.Repeat("1,", 50_000) + "1" + strings.Repeat("]", 1001), remove, errDocument, 128 << 20},
		"DeepLines":          {strings.Repeat("{a: ", 500) + `"` + strings.Repeat(`\n`, 50_000) + `"` + strings.Repeat("}", 500), add, errDocument, 128 << 20},
		"DeepWords":          {strings.Repeat("{a: ", 500) + `"` + strings.Repeat(`a `, 50_000) + `"` + strings.Repeat("}", 500), add, errDocument, 128 << 20},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := Input{
				Template: &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x", "namespace": "ns"}, "data": map[string]any{"doc": tc.document},
				}},
				Cluster: aCluster(), Binding: binding,
				Overrides: compiled(overridePolicy(t, "ns", "tune",
					`{overrideRules: [{overriders: {fieldOverrider: [{fieldPath: /data/doc, yaml: [`+tc.change+`]}]}}]}`)),
			}
			built := allocated(func() {
				_, _, err := Render(in)
				if err == nil || !strings.Contains(err.Error(), tc.want.Error()) || !strings.Contains(err.Error(), "OverridePolicy ns/tune") {
					t.Errorf("Render: %v, want %v", err, tc.want)
				}
			})
			if built > tc.most {
				t.Errorf("%d bytes were made of %d, want at most %d", built, len(tc.document), tc.most)
			}
		})
	}
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// An object almost as large as etcd accepts is rendered, and a document with legitimate aliases
// can be changed.
func TestLargeAndAliasedDocumentsAreRendered(t *testing.T) {
	document := "base: &base {image: app, tag: v1}\n" + repeated(2000, func(i int) string { return fmt.Sprintf("s%d: {<<: *base, port: %d}\n", i, i) })
	large := strings.Repeat("one line of a text, with words\n", 30_000)
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x", "namespace": "ns"},
		"data": map[string]any{"doc": document, "large": large},
	}}
	got, _, err := Render(Input{
		Template: o, Cluster: aCluster(), Binding: binding,
		Overrides: compiled(overridePolicy(t, "ns", "tune",
			`{overrideRules: [{overriders: {fieldOverrider: [{fieldPath: /data/doc, yaml: [{subPath: /s7/tag, operator: replace, value: v2}]}]}}]}`)),
	})
	if err != nil {
		t.Fatal(err)
	}
	changed, _ := at(got.Object, "/data/doc").(string)
	if !strings.Contains(changed, "s7:\n  image: app\n  port: 7\n  tag: v2\n") || at(got.Object, "/data/large") != large {
		t.Errorf("data is not what it should be: %.200s", changed)
	}
}

// Small overrides of many fields are bounded, too.
func TestManifestsAreBounded(t *testing.T) {
	containers := make([]any, 20_000)
	for i := range containers {
		containers[i] = map[string]any{"name": "c", "image": "i"}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1", "kind": "Many", "metadata": map[string]any{"name": "x", "namespace": "ns"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers}}},
	}}
	long := strings.Repeat("x", 1024)
	for name, overriders := range map[string]policyv1alpha1.Overriders{
		"Images":   {ImageOverrider: []policyv1alpha1.ImageOverrider{{Component: "Tag", Operator: "add", Value: long}}},
		"Commands": {CommandOverrider: []policyv1alpha1.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{long, long}}}},
		"Args":     {ArgsOverrider: []policyv1alpha1.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{long, long}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := overridePolicy(t, "ns", "tune", `{overrideRules: [{}]}`)
			p.Spec.OverrideRules[0].Overriders = overriders
			built := allocated(func() {
				_, _, err := Render(Input{Template: o, Cluster: aCluster(), Binding: binding, Overrides: compiled(p)})
				if err == nil || !strings.Contains(err.Error(), errManifest.Error()) {
					t.Errorf("Render: %v", err)
				}
			})
			if most := uint64(64 << 20); built > most {
				t.Errorf("%d bytes were made, want at most %d", built, most)
			}
		})
	}
	t.Run("Template", func(t *testing.T) {
		_, _, err := Render(Input{Cluster: aCluster(), Binding: binding, Template: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x"}, "data": map[string]any{"k": strings.Repeat("x", limit)},
		}}})
		if err == nil || !strings.Contains(err.Error(), errManifest.Error()) {
			t.Errorf("Render: %v", err)
		}
	})
}
