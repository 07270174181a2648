package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/testenv"
)

const enforce = "pod-security.kubernetes.io/enforce"

// level labels a namespace with a Pod Security level; "" removes the label.
func (f *fleet) level(c client.Client, ns, level string) {
	f.t.Helper()
	value := "null"
	if level != "" {
		value = `"` + level + `"`
	}
	f.must(c.Patch(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+enforce+`":`+value+`}}}`))))
}

// security waits until a namespace has exactly these Pod Security labels.
func (f *fleet) security(c client.Client, ns string, want map[string]string) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("namespace %s has %v", ns, want), func() error {
		n := &corev1.Namespace{}
		if err := c.Get(f.t.Context(), client.ObjectKey{Name: ns}, n); err != nil {
			return err
		}
		if diff := cmp.Diff(want, podsecurity.Labels(n.Labels)); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

func privileged(ns, name string) *unstructured.Unstructured {
	o := deployment(ns, name, 1, "image")
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	containers[0].(map[string]any)["securityContext"] = map[string]any{"privileged": true}
	_ = unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers")
	return o
}

// The Pod Security level of a namespace of the hub applies to its pods in the members.
func TestPodSecurity(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	run := func(name string, test func(f *fleet, ns string)) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			test(f, testenv.Namespace(t, testenv.Config(hubServer)))
		})
	}

	run("PodsAreHeldAgainstTheNamespacesLevel", func(f *fleet, ns string) {
		f.level(f.hub, ns, "baseline")
		f.eventually("the applier knows the level", func() error {
			n, err := f.applier.hubNamespace(f.t.Context(), ns)
			if err == nil && n.Labels["pod-security.kubernetes.io/enforce"] != "baseline" {
				err = errors.New("it does not")
			}
			return err
		})
		b := f.bind(privileged(ns, "root"), nil, "oak")
		if r := f.result(b, "oak", workv1alpha2.ReasonPodSecurity); !strings.Contains(r.Message, `violates PodSecurity "baseline:latest": privileged`) {
			t.Errorf("the result says %q", r.Message)
		} else if shown := f.applier.Rendered(f.t.Context(), b, "oak"); shown.Manifest != nil || shown.Message != r.Message {
			t.Errorf("explanations show %v: %q", shown.Manifest, shown.Message)
		}
		if err := oak.Get(f.t.Context(), client.ObjectKey{Name: ns}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
			t.Errorf("something was done in the cluster: %v", err)
		}
		f.level(f.hub, ns, "") // the administrator of the hub allows it
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.level(f.hub, ns, "restricted") // the copy that is there stays
		f.result(b, "oak", workv1alpha2.ReasonPodSecurity)
	})

	run("MembersNamespacesFollow", func(f *fleet, ns string) {
		f.level(f.hub, ns, "baseline")
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.security(oak, ns, map[string]string{enforce: "baseline"})
		f.level(f.hub, ns, "restricted")
		f.security(oak, ns, map[string]string{enforce: "restricted"})
		f.level(oak, ns, "privileged") // drift
		f.security(oak, ns, map[string]string{enforce: "restricted"})
		f.level(oak, ns, "")
		f.security(oak, ns, map[string]string{enforce: "restricted"})
		f.level(f.hub, ns, "")
		f.security(oak, ns, nil)
		f.level(oak, ns, "restricted") // stricter, while the hub sets no level
		f.level(f.hub, ns, "baseline")
		f.security(oak, ns, map[string]string{enforce: "baseline"})
	})

	run("WhatTheMembersPeopleSetStays", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.level(oak, ns, "restricted")
		f.must(f.hub.Patch(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/warn":"baseline"}}}`))))
		f.security(oak, ns, map[string]string{enforce: "restricted", "pod-security.kubernetes.io/warn": "baseline"})
	})

	run("OthersNamespacesAreLeftAlone", func(f *fleet, ns string) {
		f.must(oak.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		f.level(f.hub, ns, "baseline")
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.security(oak, ns, nil)
		held := f.bind(privileged(ns, "root"), nil, "oak") // our own objects there are checked
		f.result(held, "oak", workv1alpha2.ReasonPodSecurity)
	})

	run("AnOverrideGivesNoRight", func(f *fleet, ns string) {
		view := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
			"metadata": map[string]any{"name": "alice", "namespace": ns, "uid": "template-" + ns},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
			"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}},
		}}
		spec := policyv1alpha1.OverrideSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding", Namespace: ns}},
			OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{
				Path: "/roleRef/name", Operator: policyv1alpha1.OverriderOpReplace, Value: &apiextensionsv1.JSON{Raw: []byte(`"cluster-admin"`)},
			}}}}},
		}
		p := &policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "escalate"}, Spec: spec}
		f.must(f.hub.Create(f.t.Context(), p))
		f.eventually("the override is known", func() error {
			if len(f.applier.Overrides(view)) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		b := f.bind(view, nil, "oak")
		if r := f.result(b, "oak", workv1alpha2.ReasonRenderFailed); !strings.Contains(r.Message, "OverridePolicy "+ns+"/escalate") ||
			!strings.Contains(r.Message, "roleRef") {
			t.Errorf("the result says %q", r.Message)
		}
		there := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "alice"}}
		if err := oak.Get(f.t.Context(), client.ObjectKeyFromObject(there), there); !apierrors.IsNotFound(err) {
			t.Errorf("in the cluster there is %v (%v)", there.RoleRef, err)
		}
		wide := &policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: spec}
		f.must(f.hub.Create(f.t.Context(), wide)) // an administrator may do this
		f.must(f.hub.Delete(f.t.Context(), p))
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.must(oak.Get(f.t.Context(), client.ObjectKeyFromObject(there), there))
		if there.RoleRef.Name != "cluster-admin" {
			t.Errorf("roleRef is %v", there.RoleRef)
		}
		f.must(f.hub.Delete(f.t.Context(), wide))
	})

	run("AQuotaOfTheHubSaysWhatItDoesNot", func(f *fleet, ns string) {
		f.must(f.hub.Create(f.t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"}}))
		f.eventually("an event says so", func() error {
			list := &corev1.EventList{}
			f.must(f.hub.List(f.t.Context(), list, client.InNamespace(ns)))
			if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return e.Reason == "QuotaNotEnforced" && e.InvolvedObject.Kind == "ResourceQuota" && e.InvolvedObject.Name == "none"
			}) {
				return fmt.Errorf("none of %d does", len(list.Items))
			}
			return nil
		})
	})
	f.unjoin("oak")
}
