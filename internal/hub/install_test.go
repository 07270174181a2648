package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// TestDeletionProtection: an object with the label cannot be deleted on the hub, by any
// request.
func TestDeletionProtection(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	h, _ := run(t, Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig})
	c := client(t, h.Config())
	ns := testenv.Namespace(t, testenv.Config(0))
	configMaps := c.CoreV1().ConfigMaps(ns)
	create := func(name, protection string) {
		t.Helper()
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if protection != "" {
			o.Labels = map[string]string{"resourcetemplate.orrery.dev/deletion-protected": protection}
		}
		if _, err := configMaps.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("protected", "Always")
	create("other", "Never")
	create("plain", "")
	refused := func(err error) error {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "remove the label resourcetemplate.orrery.dev/deletion-protected") {
			return errors.Join(errors.New("it was not refused"), err)
		}
		return nil
	}
	// The API server takes a moment to apply a new policy.
	eventually(t, "the policy is in force", func() error {
		return refused(configMaps.Delete(t.Context(), "protected", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	})
	if err := refused(configMaps.Delete(t.Context(), "protected", metav1.DeleteOptions{})); err != nil {
		t.Error(err)
	}
	if err := refused(configMaps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"other", "plain"} {
		if err := configMaps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	unlabel := []byte(`{"metadata":{"labels":{"resourcetemplate.orrery.dev/deletion-protected":null}}}`)
	if _, err := configMaps.Patch(t.Context(), "protected", "application/merge-patch+json", unlabel, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configMaps.Delete(t.Context(), "protected", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// warnings collects the warnings in the answers to a client.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestSelectorsOfNoNamespace: a policy in a namespace that selects a cluster-scoped kind is
// accepted with a warning.
func TestSelectorsOfNoNamespace(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	h, _ := run(t, Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig})
	var said warnings
	config := rest.CopyConfig(h.Config())
	config.WarningHandler = &said
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	policies := c.Resource(policyv1alpha1.GroupVersion.WithResource("propagationpolicies")).Namespace(testenv.Namespace(t, testenv.Config(0)))
	create := func(kinds ...schema.GroupVersionKind) []string {
		t.Helper()
		said = nil
		selectors := make([]any, 0, len(kinds))
		for _, k := range kinds {
			selectors = append(selectors, map[string]any{"apiVersion": k.GroupVersion().String(), "kind": k.Kind})
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"resourceSelectors": selectors}}}
		o.SetGroupVersionKind(policyv1alpha1.GroupVersion.WithKind("PropagationPolicy"))
		o.SetName("p")
		if _, err := policies.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
		return said
	}
	core, rbac := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	// The API server takes a moment to apply a new policy.
	eventually(t, "the policy is in force", func() error {
		if got := create(core.WithKind("ConfigMap"), core.WithKind("Namespace"), rbac.WithKind("ClusterRole")); len(got) != 1 ||
			!strings.Contains(got[0], "resourceSelectors: Namespace, ClusterRole is in no namespace") || !strings.Contains(got[0], "use a ClusterPropagationPolicy") {
			return fmt.Errorf("warnings %q", got)
		}
		return nil
	})
	if got := create(core.WithKind("ConfigMap"), rbac.WithKind("Role")); len(got) > 0 {
		t.Errorf("of kinds in namespaces: %q", got)
	}
}

// TestNamesOfNoCluster: a policy that names an unknown cluster is accepted with a warning, once
// the hub has published the names of its clusters. A user who may not list the clusters gets no
// warning, since it would reveal which names exist.
func TestNamesOfNoCluster(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	h, _ := run(t, Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig})
	var said warnings
	config := rest.CopyConfig(h.Config())
	config.WarningHandler = &said
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	create := func(kind, placement string) []string {
		t.Helper()
		said = nil
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(`spec: {resourceSelectors: [{apiVersion: v1, kind: ConfigMap}], placement: `+placement+`}`), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetGroupVersionKind(policyv1alpha1.GroupVersion.WithKind(kind))
		o.SetName("p")
		var policies dynamic.ResourceInterface = c.Resource(policyv1alpha1.GroupVersion.WithResource("clusterpropagationpolicies"))
		if kind == "PropagationPolicy" {
			policies = c.Resource(policyv1alpha1.GroupVersion.WithResource("propagationpolicies")).Namespace("default")
		}
		if _, err := policies.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
		return said
	}
	write := func(names string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, clusterv1alpha1.NamesAnnotation, names)
		if _, err := client(t, h.Config()).CoreV1().Namespaces().Patch(context.Background(), clusterv1alpha1.SecretNamespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { write("null") })
	write("null")
	if got := create("PropagationPolicy", `{clusterAffinity: {clusterNames: [elm]}}`); len(got) > 0 {
		t.Errorf("while it is not known which clusters there are: %q", got)
	}
	write(`"oak,pine"`)
	// The API server takes a moment to apply a new policy and its parameter.
	eventually(t, "the policy is in force", func() error {
		if got := create("PropagationPolicy", `{clusterAffinity: {clusterNames: [oak, elm]}}`); len(got) != 1 ||
			!strings.Contains(got[0], "placement: the hub has no cluster elm; copies are placed there once it joins") {
			return fmt.Errorf("warnings %q", got)
		}
		return nil
	})
	for placement, want := range map[string]string{
		`{}`: "",
		`{clusterAffinity: {clusterNames: [oak, pine]}}`:                                                             "",
		`{clusterAffinity: {labelSelector: {matchLabels: {a: b}}}}`:                                                  "",
		`{clusterAffinities: [{affinityName: a, clusterNames: [oak]}, {affinityName: b}]}`:                           "",
		`{clusterAffinities: [{affinityName: a, clusterNames: [oak, ash]}, {affinityName: b, clusterNames: [elm]}]}`: "ash, elm",
	} {
		for _, kind := range []string{"PropagationPolicy", "ClusterPropagationPolicy"} {
			got := create(kind, placement)
			if (want == "") != (len(got) == 0) || want != "" && !strings.Contains(got[0], "the hub has no cluster "+want+";") {
				t.Errorf("%s with %s: warnings %q, want %q", kind, placement, got, want)
			}
		}
	}

	admin := client(t, h.Config())
	tenant := metav1.ObjectMeta{Name: "tenant", Namespace: "default"}
	role := &rbacv1.Role{ObjectMeta: tenant, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{policyv1alpha1.GroupVersion.Group}, Resources: []string{"propagationpolicies"}, Verbs: []string{"create"},
	}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: tenant, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: tenant.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: tenant.Name}},
	}
	_, err = admin.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{})
	if err == nil {
		_, err = admin.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(
			admin.RbacV1().RoleBindings("default").Delete(context.Background(), tenant.Name, metav1.DeleteOptions{}),
			admin.RbacV1().Roles("default").Delete(context.Background(), tenant.Name, metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the tenant may create policies", func() error {
		answered, err := admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: tenant.Name, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: "default", Verb: "create", Group: policyv1alpha1.GroupVersion.Group, Resource: "propagationpolicies",
			},
		}}, metav1.CreateOptions{})
		if err == nil && !answered.Status.Allowed {
			err = errors.New("not yet")
		}
		return err
	})
	config.Impersonate.UserName = tenant.Name
	if c, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"oak", "elm"} {
		if got := create("PropagationPolicy", "{clusterAffinity: {clusterNames: ["+name+"]}}"); len(got) > 0 {
			t.Errorf("the tenant is warned of %s: %q", name, got)
		}
	}
}
