package placement

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/test/spine"
)

// clusterAccess returns a ClusterAccess of the clusters for a tenant's namespaces.
func clusterAccess(name, tenant string, clusters ...string) string {
	return fmt.Sprintf(`---
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterAccess
metadata: {name: %s}
spec:
  namespaceSelector: {matchLabels: {example.org/tenant: %s}}
  clusterAffinity: {clusterNames: [%s]}
`, name, tenant, strings.Join(clusters, ", "))
}

// tenant returns a namespace of the tenant who, and makes the user its admin.
func tenant(ns, who string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {example.org/tenant: %[2]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[2]s}]
`, ns, who)
}

// found returns, as CLUSTER/NAME, the ConfigMaps that a search in the namespace shows the user.
// An empty ns means all namespaces.
func found(w *spine.World, u *user, ns string) ([]string, error) {
	w.Helper()
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	if ns == "" {
		path = "/api/v1/configmaps"
	}
	code, body, err := u.get(w.Context(), fleetv1alpha1.FleetPath+path)
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("search in %s: %d %s", ns, code, body)
	}
	var list unstructured.UnstructuredList
	w.Must(json.Unmarshal(body, &list))
	all := []string{}
	for _, o := range list.Items {
		if !spine.BuiltIn(&o) {
			all = append(all, o.GetAnnotations()[fleetv1alpha1.ClusterAnnotation]+"/"+o.GetName())
		}
	}
	slices.Sort(all)
	return all, nil
}

// sees waits until a search shows the user exactly want. It fails the test if the search ever
// shows an object in another cluster than these.
func sees(w *spine.World, u *user, ns string, want []string, clusters ...string) {
	w.Helper()
	w.Eventually(fmt.Sprintf("a search in namespace %q shows %v", ns, want), func() error {
		got, err := found(w, u, ns)
		if err != nil {
			return err
		}
		for _, one := range got {
			if cluster, _, _ := strings.Cut(one, "/"); !slices.Contains(clusters, cluster) {
				w.Fatalf("the user sees %v", got)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// TestFence: an administrator gives each of two tenants one cluster. Neither tenant places
// objects in the cluster of the other, nor sees the content of a namespace of the same name
// there. Copies in a cluster stay when its access ends, and the binding reports that.
func TestFence(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "fence-a")
	const other = "fence-b"
	t.Cleanup(func() {
		for _, name := range []string{"fence-a", "fence-b"} {
			w.Hub.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterAccess", "", name)
		}
		w.Hub.Remove(t, "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "fence-carol")
		w.Hub.Remove(t, "v1", "Namespace", "", other)
	})
	alice, bob := newUser(w, "fence-alice"), newUser(w, "fence-bob")
	w.Hub.Apply(t, clusterAccess("fence-a", "fence-alice", "oak")+clusterAccess("fence-b", "fence-bob", "pine")+
		tenant(w.Namespace, "fence-alice")+tenant(other, "fence-bob"))
	cfg, err := w.Hub.Config()
	w.Must(err)
	administrator := &user{API: w.Hub.API, config: cfg}

	// Pine has a namespace with the name of alice's that the hub does not manage.
	w.Pine.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.Namespace+"}\n"+spine.ConfigMap(w.Namespace, "theirs", "secret"))

	// A policy without a placement selects every cluster.
	alice.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, "")+spine.ConfigMap(w.Namespace, "first", "one"))
	bob.Apply(t, spine.Policy(other, "all", spine.Everything, "")+spine.ConfigMap(other, "first", "one"))
	w.Moved("ResourceBinding", "first-configmap", "oak")
	w.Placed(w.Oak, "v1", "ConfigMap", "first")
	w.Eventually("what bob placed is in pine", func() error {
		_, err := w.Pine.Find(t.Context(), "v1", "ConfigMap", other, "first")
		return err
	})
	if o := w.Lookup(w.Oak.API, "v1", "Namespace", "", other); o != nil {
		t.Errorf("oak has bob's namespace: %v", o)
	}
	if o := w.Lookup(w.Birch.API, "v1", "Namespace", "", w.Namespace); o != nil {
		t.Errorf("birch has alice's namespace: %v", o)
	}
	sees(w, administrator, w.Namespace, []string{"oak/first", "pine/theirs"}, spine.ClusterNames...)
	for _, ns := range []string{w.Namespace, ""} { // a search in all namespaces shows only hers
		sees(w, alice, ns, []string{"oak/first"}, "oak")
	}
	for _, path := range []string{"/clusters/pine/api/v1/namespaces/" + w.Namespace + "/configmaps", "/clusters/pine/api/v1/namespaces/" + w.Namespace + "/configmaps/theirs"} {
		if code, body := alice.ask(w, fleetv1alpha1.FleetPath+path); code != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := bob.ask(w, fleetv1alpha1.FleetPath+"/api/v1/namespaces/"+w.Namespace+"/configmaps"); code != http.StatusForbidden {
		t.Errorf("bob in alice's namespace: %d %s", code, body)
	}

	// Only administrators may change the fence: neither a tenant nor a user with the role admin
	// in all namespaces.
	if err := w.Answered("alice makes a ClusterAccess", func() error {
		return alice.TryApply(t.Context(), clusterAccess("fence-mine", "fence-alice", "pine"))
	}); !apierrors.IsForbidden(err) {
		t.Errorf("alice makes a ClusterAccess: %v", err)
	}
	w.Hub.Apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fence-carol}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: carol}]
`)
	may := func(group, resource string) bool {
		var review *authorizationv1.SubjectAccessReview
		w.Eventually("ask what carol may", func() error {
			review = &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "carol", ResourceAttributes: &authorizationv1.ResourceAttributes{Group: group, Resource: resource, Verb: "create"},
			}}
			return w.Hub.Create(t.Context(), review)
		})
		return review.Status.Allowed
	}
	w.Eventually("carol is an admin", func() error {
		if !may("policy.orrery.dev", "propagationpolicies") {
			return fmt.Errorf("she may not create policies")
		}
		return nil
	})
	if may("policy.orrery.dev", "clusteraccesses") {
		t.Error("the role admin gives ClusterAccesses")
	}
	if may("policy.orrery.dev", "clustertaintpolicies") {
		t.Error("the role admin gives ClusterTaintPolicies")
	}
	if may("config.orrery.dev", "mirrorpolicies") {
		t.Error("the role admin gives MirrorPolicies")
	}

	// Alice loses oak and gets birch.
	w.Hub.Apply(t, clusterAccess("fence-a", "fence-alice", "birch"))
	w.Moved("ResourceBinding", "first-configmap", "oak", "birch")
	alice.Apply(t, spine.ConfigMap(w.Namespace, "later", "one"))
	w.Moved("ResourceBinding", "later-configmap", "birch")
	w.Eventually("the binding says what stays", func() error {
		b, err := alice.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, "first-configmap")
		if err != nil {
			return err
		}
		text := fmt.Sprint(b.Object["status"])
		if !strings.Contains(text, "oak: the namespace may not use it any more, and what was placed there before stays") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	// A copy that stays is still updated.
	alice.Apply(t, spine.ConfigMap(w.Namespace, "first", "two"))
	w.Data(w.Oak, "first", "two")
	w.NoDeletions(w.Oak, w.Marks["oak"])
	sees(w, alice, w.Namespace, []string{"birch/first", "birch/later"}, "oak", "birch")
}
