package mirror

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

func TestWanted(t *testing.T) {
	api := func(group, version, kind, resource string, preferred bool, verbs ...string) member.API {
		if len(verbs) == 0 {
			verbs = []string{"get", "list", "watch"}
		}
		return member.API{
			GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Resource: resource, Preferred: preferred, Verbs: verbs,
		}
	}
	served := []member.API{
		api("", "v1", "ConfigMap", "configmaps", true),
		api("", "v1", "Event", "events", true),
		api("", "v1", "Pod", "pods", true),
		api("", "v1", "Binding", "bindings", true, "create"),
		api("apps", "v1", "Deployment", "deployments", true),
		api("apps", "v1beta1", "Deployment", "deployments", false),
		api("apps", "v1beta1", "Old", "olds", false),
		api("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", true, "get", "list"),
		api("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", true),
	}
	kind := func(group, version, kind string) map[schema.GroupVersionKind]bool {
		return map[schema.GroupVersionKind]bool{{Group: group, Version: version, Kind: kind}: true}
	}
	mirror := func(r ...clusterv1alpha1.MirrorResources) *clusterv1alpha1.Mirror {
		return &clusterv1alpha1.Mirror{Resources: r}
	}
	for name, tc := range map[string]struct {
		spec     *clusterv1alpha1.Mirror
		required map[schema.GroupVersionKind]bool
		want     []string
	}{
		"Default":         {nil, nil, []string{"v1/pods", "v1/configmaps", "apps/v1/deployments", "apps/v1beta1/olds"}},
		"RequiredVersion": {nil, kind("apps", "v1beta1", "Deployment"), []string{"v1/pods", "apps/v1beta1/deployments", "v1/configmaps", "apps/v1beta1/olds"}},
		"RequiredNoise":   {nil, kind("", "v1", "Event"), []string{"v1/pods", "v1/events", "v1/configmaps", "apps/v1/deployments", "apps/v1beta1/olds"}},
		"RequiredButNotServed": {
			nil, kind("batch", "v1", "Job"), []string{"v1/pods", "v1/configmaps", "apps/v1/deployments", "apps/v1beta1/olds"},
		},
		"Selected":        {mirror(clusterv1alpha1.MirrorResources{Resources: []string{"events"}}), nil, []string{"v1/pods", "v1/events"}},
		"SelectedGroup":   {mirror(clusterv1alpha1.MirrorResources{Group: "apps", Resources: []string{"*"}}), nil, []string{"v1/pods", "apps/v1/deployments", "apps/v1beta1/olds"}},
		"SelectedVersion": {mirror(clusterv1alpha1.MirrorResources{Group: "apps", Versions: []string{"v1beta1"}, Resources: []string{"deployments"}}), nil, []string{"v1/pods", "apps/v1beta1/deployments"}},
		"RequiredBeyondSelected": {
			mirror(clusterv1alpha1.MirrorResources{Resources: []string{"events"}}), kind("apps", "v1", "Deployment"), []string{"v1/pods", "apps/v1/deployments", "v1/events"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, api := range wanted(served, tc.spec, tc.required) {
				got = append(got, api.GroupVersionKind.GroupVersion().String()+"/"+api.Resource)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	all := clusterv1alpha1.MirrorResources{Group: "apps", Resources: []string{"*"}}
	for name, tc := range map[string]struct {
		types []string
		want  []clusterv1alpha1.MirrorResources
	}{
		"Core":       {[]string{"pods"}, []clusterv1alpha1.MirrorResources{{Resources: []string{"pods"}}}},
		"Group":      {[]string{"ingresses.networking.k8s.io"}, []clusterv1alpha1.MirrorResources{{Group: "networking.k8s.io", Resources: []string{"ingresses"}}}},
		"WholeGroup": {[]string{"*.apps"}, []clusterv1alpha1.MirrorResources{all}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Select(tc.types)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Resources); diff != "" {
				t.Errorf("selection (-want +got):\n%s", diff)
			}
		})
	}
	if got, err := Select(nil); got != nil || err != nil {
		t.Errorf("nothing selects %v, %v", got, err)
	}
	for _, name := range []string{"", "apps/v1", "Deployment", ".apps"} {
		if _, err := Select([]string{name}); err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v, want an error that names it", name, err)
		}
	}
}

// TestListsOfAll: so many lists run at once and no more, but those that hang are not
// waited for.
func TestListsOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(nil, newFleet(), logr.Discard())
		begun := make(chan struct{})
		for range listsOfAll + 1 {
			go func() {
				if _, ok := m.turn(t.Context()); ok {
					begun <- struct{}{}
				}
			}()
		}
		for range listsOfAll {
			<-begun
		}
		start := time.Now()
		<-begun
		if waited := time.Since(start); waited != slowList {
			t.Errorf("one more list began after %s, want %s", waited, slowList)
		}
		time.Sleep(2 * slowList)
		done, ok := m.turn(t.Context())
		if !ok {
			t.Fatal("no turn")
		}
		done()
		done()
		if len(m.listing) != 0 {
			t.Errorf("%d places are taken, want none", len(m.listing))
		}
	})
}
