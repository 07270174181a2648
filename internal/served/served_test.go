package served

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

func kind(group, version, name, resource string, namespaced bool) Type {
	return Type{schema.GroupVersionKind{Group: group, Version: version, Kind: name}, resource, namespaced}
}

func TestResources(t *testing.T) {
	pods := kind("", "v1", "Pod", "pods", true)
	got := Resources([]Cluster{
		{Name: "ash", Types: []Type{pods, kind("g", "v1", "A", "as", true), kind("g", "v1", "S", "ss", true), kind("g", "v1", "K", "ks", true)}},
		{Name: "elm", Types: []Type{pods, kind("g", "v1", "A", "as", true), kind("g", "v2", "A", "as", true), kind("g", "v1", "S", "ss", false), kind("g", "v1", "Q", "ks", true)}},
		{Name: "oak", Types: []Type{pods, kind("g", "v2", "A", "as", true)}},
	})
	all := []string{"ash", "elm", "oak"}
	want := []*Resource{
		{Resource: "pods", Kind: "Pod", Versions: map[string][]string{"v1": all}, Namespaced: all},
		{Group: "g", Resource: "as", Kind: "A", Versions: map[string][]string{"v1": {"ash", "elm"}, "v2": {"elm", "oak"}}, Namespaced: all, Conflicts: []Conflict{NoCommonVersion}},
		{Group: "g", Resource: "ks", Kind: "K", Versions: map[string][]string{"v1": {"ash", "elm"}}, Namespaced: []string{"ash", "elm"}, Missing: []string{"oak"}, Conflicts: []Conflict{OtherKind}},
		{Group: "g", Resource: "ss", Kind: "S", Versions: map[string][]string{"v1": {"ash", "elm"}}, Namespaced: []string{"ash"}, ClusterScoped: []string{"elm"}, Missing: []string{"oak"}, Conflicts: []Conflict{OtherScope}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want, +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"v2", "v1"}, got[1].VersionNames()); diff != "" {
		t.Errorf("(-want, +got):\n%s", diff)
	}
}

// TestRemovals: some removals that Kubernetes has announced are found in its own types.
func TestRemovals(t *testing.T) {
	removals := Removals(scheme.Scheme)
	job := schema.GroupVersionKind{Group: "batch", Version: "v1beta1", Kind: "CronJob"}
	if diff := cmp.Diff(Removal{25, job.GroupKind().WithVersion("v1")}, removals[job]); diff != "" {
		t.Errorf("CronJob of batch/v1beta1 (-want, +got):\n%s", diff)
	}
	if r, ok := removals[job.GroupKind().WithVersion("v1")]; ok {
		t.Errorf("CronJob of batch/v1 goes: %v", r)
	}
	for minor, want := range map[int][]string{
		15: {"apps/v1beta1", "apps/v1beta2"}, 16: {}, 0: {"apps/v1beta1", "apps/v1beta2"},
	} {
		got := Leaving(removals, schema.GroupKind{Group: "apps", Kind: "Deployment"}, minor)
		for _, version := range want {
			if got[version].Minor != 16 {
				t.Errorf("at 1.%d %s is said to go in 1.%d, want 1.16", minor, version, got[version].Minor)
			}
		}
		if len(got) != len(want) {
			t.Errorf("at 1.%d: %v, want %v", minor, got, want)
		}
	}
}
