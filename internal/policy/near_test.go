package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

func TestNear(t *testing.T) {
	web := object("apps/v1", "Deployment", "shop", "web", map[string]string{"app": "web"})
	ofGroup := kind("extensions/v1beta1", "Deployment")
	for name, tc := range map[string]struct {
		policy *policyv1alpha1.PropagationPolicy
		says   string // "": it is not near
	}{
		"OtherLabels":        {named("shop/p", 0, labelled(map[string]string{"app": "api"})), `resourceSelectors[0].labelSelector: matches app=api, and the object has app=web`},
		"OtherName":          {named("p", 0, deployment("api")), `resourceSelectors[0].name: matches only "api"`},
		"OtherNamespace":     {named("p", 0, in("store", deployments())), `resourceSelectors[0].namespace: matches only namespace "store"`},
		"OtherGroup":         {named("p", 0, ofGroup), `resourceSelectors[0]: matches extensions/v1beta1 Deployment, and the object is apps/v1 Deployment`},
		"SelectsNothing":     {named("shop/p", 0, in("store", deployments())), `resourceSelectors[0].namespace "store" selects nothing`},
		"TheNearestSelector": {named("p", 0, deployment("api"), labelled(map[string]string{"app": "api"})), `resourceSelectors[1].labelSelector`},
		"TwoThingsDiffer":    {named("p", 0, in("store", deployment("api"))), ""},
		"OtherKind":          {named("p", 0, kind("apps/v1", "StatefulSet")), ""},
		"OtherNamespacesOwn": {named("store/p", 0, deployment("api")), ""},
		"Selects":            {named("p", 0, deployments()), ""},
	} {
		t.Run(name, func(t *testing.T) {
			near := Near([]*policyv1alpha1.PropagationPolicy{tc.policy}, web)
			if tc.says == "" {
				if len(near) > 0 {
					t.Errorf("near: %s", near[0].Why)
				}
				return
			}
			if len(near) != 1 || !strings.HasPrefix(near[0].Why, tc.says) {
				t.Errorf("%+v, want one that begins %q", near, tc.says)
			}
		})
	}
}

func TestLoses(t *testing.T) {
	web := object("apps/v1", "Deployment", "shop", "web", map[string]string{"app": "web"})
	never := named("never", 5, deployments())
	never.Spec.Preemption = policyv1alpha1.PreemptNever
	var why []string
	claims := NewIndex(
		named("shop/own", 0, deployments()), named("high", 9, deployments()), never, named("by-name", 0, deployment("web")),
		named("by-kind", 0, deployments()), named("by-kind-too", 0, deployments()),
	).Claims(web)
	for i, c := range claims[1:] {
		why = append(why, Loses(claims[i], c))
	}
	if diff := cmp.Diff([]string{
		"overruled by PropagationPolicy shop/own (policies of the namespace come before cluster-wide ones)",
		"overruled by ClusterPropagationPolicy high (its priority 9 is higher than 5)",
		"overruled by ClusterPropagationPolicy never (its priority 5 is higher than 0)",
		"overruled by ClusterPropagationPolicy by-name (it selects the object by name, and this policy by its kind alone)",
		"overruled by ClusterPropagationPolicy by-kind (equal priority and selectors: the first name in the alphabet wins)",
	}, why); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// A policy whose preemption is Never does not take an object that its policy still selects.
	placed := Settle(NewIndex(never, named("low", 0, deployments())).Claims(web), Kind(""), "low")
	if got, want := Loses(placed[0], placed[1]), "overruled by ClusterPropagationPolicy low (it placed the object first, and this policy has preemption Never)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
