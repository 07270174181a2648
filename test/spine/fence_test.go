package spine

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
)

// clusterAccess lets the namespaces of a tenant into clusters.
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

// tenant is the namespace of a tenant, who is its admin.
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

// found are the ConfigMaps of a namespace, or with none of all, that a search shows to a user, as CLUSTER/NAME.
func (w *world) found(u *user, ns string) []string {
	w.Helper()
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	if ns == "" {
		path = "/api/v1/configmaps"
	}
	code, body, err := u.get(w.Context(), fleetv1alpha1.FleetPath+path)
	w.must(err)
	if code != http.StatusOK {
		w.Fatalf("search in %s: %d %s", ns, code, body)
	}
	var list unstructured.UnstructuredList
	w.must(json.Unmarshal(body, &list))
	all := []string{}
	for _, o := range list.Items {
		if !builtIn(&o) {
			all = append(all, o.GetAnnotations()[fleetv1alpha1.ClusterAnnotation]+"/"+o.GetName())
		}
	}
	slices.Sort(all)
	return all
}

// TestFence has two tenants, whom an administrator lets into a cluster each. Neither places
// anything in the other's cluster, nor sees what is in a namespace of their name there; what stood
// in a cluster when it was closed stays and says so.
func TestFence(t *testing.T) {
	w := start(t, "fence-a")
	const other = "fence-b"
	t.Cleanup(func() {
		for _, name := range []string{"fence-a", "fence-b"} {
			w.hub.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterAccess", "", name)
		}
		w.hub.Remove(t, "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "fence-carol")
		w.hub.Remove(t, "v1", "Namespace", "", other)
	})
	alice, bob := w.user("fence-alice"), w.user("fence-bob")
	w.hub.Apply(t, clusterAccess("fence-a", "fence-alice", "oak")+clusterAccess("fence-b", "fence-bob", "pine")+
		tenant(w.ns, "fence-alice")+tenant(other, "fence-bob"))
	cfg, err := w.hub.Config()
	w.must(err)
	administrator := &user{API: w.hub.API, config: cfg}

	// In the clusters are namespaces of that name of which the hub knows nothing.
	w.pine.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.ns+"}\n"+configMap(w.ns, "theirs", "secret"))

	// A policy without a placement means every cluster.
	alice.Apply(t, policy(w.ns, "all", everything, "")+configMap(w.ns, "first", "one"))
	bob.Apply(t, policy(other, "all", everything, "")+configMap(other, "first", "one"))
	w.moved("ResourceBinding", "first-configmap", "oak")
	w.placed(w.oak, "v1", "ConfigMap", "first")
	w.eventually("what bob placed is in pine", func() error {
		_, err := w.pine.Find(t.Context(), "v1", "ConfigMap", other, "first")
		return err
	})
	if _, err := w.oak.Find(t.Context(), "v1", "Namespace", "", other); !apierrors.IsNotFound(err) {
		t.Errorf("oak has bob's namespace: %v", err)
	}
	if _, err := w.birch.Find(t.Context(), "v1", "Namespace", "", w.ns); !apierrors.IsNotFound(err) {
		t.Errorf("birch has alice's namespace: %v", err)
	}
	w.eventually("administrators see all of them", func() error {
		if diff := cmp.Diff([]string{"oak/first", "pine/theirs"}, w.found(administrator, w.ns)); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
	for _, ns := range []string{w.ns, ""} { // of all namespaces hers are shown
		if diff := cmp.Diff([]string{"oak/first"}, w.found(alice, ns)); diff != "" {
			t.Errorf("alice sees in %q (-want +got):\n%s", ns, diff)
		}
	}
	for _, path := range []string{"/clusters/pine/api/v1/namespaces/" + w.ns + "/configmaps", "/clusters/pine/api/v1/namespaces/" + w.ns + "/configmaps/theirs"} {
		if code, body, err := alice.get(t.Context(), fleetv1alpha1.FleetPath+path); err != nil || code != http.StatusNotFound {
			t.Errorf("%s: %d %s %v", path, code, body, err)
		}
	}
	if code, body, err := bob.get(t.Context(), fleetv1alpha1.FleetPath+"/api/v1/namespaces/"+w.ns+"/configmaps"); err != nil || code != http.StatusForbidden {
		t.Errorf("bob in alice's namespace: %d %s %v", code, body, err)
	}

	// The fence is the administrators': neither a tenant nor who has the role admin everywhere moves it.
	if err := alice.TryApply(t.Context(), clusterAccess("fence-mine", "fence-alice", "pine")); !apierrors.IsForbidden(err) {
		t.Errorf("alice makes a ClusterAccess: %v", err)
	}
	w.hub.Apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fence-carol}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: carol}]
`)
	may := func(group, resource string) bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "carol", ResourceAttributes: &authorizationv1.ResourceAttributes{Group: group, Resource: resource, Verb: "create"},
		}}
		w.must(w.hub.Create(t.Context(), review))
		return review.Status.Allowed
	}
	w.eventually("carol is an admin", func() error {
		if !may("policy.orrery.dev", "propagationpolicies") {
			return errorf("she may not create policies")
		}
		return nil
	})
	if may("policy.orrery.dev", "clusteraccesses") {
		t.Error("the role admin gives ClusterAccesses")
	}
	if may("config.orrery.dev", "mirrorpolicies") {
		t.Error("the role admin gives MirrorPolicies")
	}

	// Oak is closed to alice and birch is opened.
	w.hub.Apply(t, clusterAccess("fence-a", "fence-alice", "birch"))
	w.moved("ResourceBinding", "first-configmap", "oak", "birch")
	alice.Apply(t, configMap(w.ns, "later", "one"))
	w.moved("ResourceBinding", "later-configmap", "birch")
	w.eventually("the binding says what stays", func() error {
		b, err := alice.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.ns, "first-configmap")
		if err != nil {
			return err
		}
		text := fmt.Sprint(b.Object["status"])
		if !contains(text, "oak: ClusterAccess fence-a lets its namespace into other clusters only; what was placed there before stays") {
			return errorf("%s", text)
		}
		return nil
	})
	// What stays is kept as it is wanted.
	alice.Apply(t, configMap(w.ns, "first", "two"))
	w.data(w.oak, "first", "two")
	w.noDeletions(w.oak, w.marks["oak"])
	w.eventually("alice sees what is in birch", func() error {
		if diff := cmp.Diff([]string{"birch/first", "birch/later"}, w.found(alice, w.ns)); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}
