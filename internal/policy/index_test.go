package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// named returns a policy; "shop/web" is in the namespace shop, "web" is cluster-wide.
func named(name string, priority int32, selectors ...policyv1alpha1.ResourceSelector) *policyv1alpha1.PropagationPolicy {
	p := &policyv1alpha1.PropagationPolicy{Spec: policyv1alpha1.PropagationSpec{Priority: priority, ResourceSelectors: selectors}}
	p.Name = name
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		p.Namespace, p.Name = namespace, rest
	}
	return p
}

func kind(apiVersion, kind string) policyv1alpha1.ResourceSelector {
	return policyv1alpha1.ResourceSelector{APIVersion: apiVersion, Kind: kind}
}

func deployments() policyv1alpha1.ResourceSelector { return kind("apps/v1", "Deployment") }

func deployment(name string) policyv1alpha1.ResourceSelector {
	s := deployments()
	s.Name = name
	return s
}

func labelled(labels map[string]string) policyv1alpha1.ResourceSelector {
	s := deployments()
	s.LabelSelector = &metav1.LabelSelector{MatchLabels: labels}
	return s
}

func in(namespace string, s policyv1alpha1.ResourceSelector) policyv1alpha1.ResourceSelector {
	s.Namespace = namespace
	return s
}

func object(apiVersion, kind, namespace, name string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetLabels(labels)
	return o
}

// owned gives an object a controller.
func owned(o *unstructured.Unstructured, kind string) *unstructured.Unstructured {
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", UID: "1", Controller: new(true)}})
	return o
}

func claimants(x *Index, o *unstructured.Unstructured) []string {
	var names []string
	for _, c := range x.Claims(o) {
		names = append(names, strings.TrimPrefix(Name(c.Policy).String(), "/"))
	}
	return names
}

func TestClaims(t *testing.T) {
	web := object("apps/v1", "Deployment", "shop", "web", map[string]string{"app": "web", "tier": "front"})
	type policies = []*policyv1alpha1.PropagationPolicy
	cases := map[string]struct {
		policies policies
		object   *unstructured.Unstructured // default web
		want     []string                   // the winner first
	}{
		"Nobody": {},
		"NamespacedBeforeClusterWide": {
			policies: policies{named("a", 9, deployment("web")), named("shop/z", 0, deployments())},
			want:     []string{"shop/z", "a"},
		},
		"PriorityBeforeSpecificity": {
			policies: policies{named("shop/a", 0, deployment("web")), named("shop/z", 1, deployments())},
			want:     []string{"shop/z", "shop/a"},
		},
		"NegativePriority": {
			policies: policies{named("shop/a", -1, deployment("web")), named("shop/z", 0, deployments())},
			want:     []string{"shop/z", "shop/a"},
		},
		"NameBeforeLabelsBeforeKind": {
			policies: policies{
				named("shop/a", 0, deployments()), named("shop/b", 0, labelled(map[string]string{"app": "web"})), named("shop/c", 0, deployment("web")),
			},
			want: []string{"shop/c", "shop/b", "shop/a"},
		},
		"BestSelectorCounts": {
			policies: policies{named("shop/a", 0, labelled(map[string]string{"app": "web"})), named("shop/b", 0, deployments(), deployment("web"))},
			want:     []string{"shop/b", "shop/a"},
		},
		"ThenTheAlphabet": {
			policies: policies{named("shop/b", 0, deployments()), named("shop/a", 0, deployments())},
			want:     []string{"shop/a", "shop/b"},
		},
		"OtherNamespace":     {policies: policies{named("mail/a", 0, deployments())}},
		"OtherName":          {policies: policies{named("shop/a", 0, deployment("api"))}},
		"OtherKind":          {policies: policies{named("shop/a", 0, kind("apps/v1", "StatefulSet"))}},
		"OtherGroup":         {policies: policies{named("shop/a", 0, kind("example.org/v1", "Deployment"))}},
		"OtherVersion":       {policies: policies{named("shop/a", 0, kind("apps/v2", "Deployment"))}, want: []string{"shop/a"}},
		"OneLabelOfTwo":      {policies: policies{named("shop/a", 0, labelled(map[string]string{"app": "web", "env": "prod"}))}},
		"EveryLabel":         {policies: policies{named("shop/a", 0, labelled(map[string]string{"app": "web", "tier": "front"}))}, want: []string{"shop/a"}},
		"OwnNamespaceNamed":  {policies: policies{named("shop/a", 0, in("shop", deployments()))}, want: []string{"shop/a"}},
		"ForeignNamespace":   {policies: policies{named("mail/a", 0, in("shop", deployments()))}},
		"ClusterWideIn":      {policies: policies{named("a", 0, in("shop", deployments()))}, want: []string{"a"}},
		"ClusterWideInOther": {policies: policies{named("a", 0, in("mail", deployments()))}},
		"LabelExpression": {
			policies: policies{named("a", 0, policyv1alpha1.ResourceSelector{
				APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpDoesNotExist}},
				},
			})},
			want: []string{"a"},
		},
		"BadLabelExpression": {
			policies: policies{named("a", 0, policyv1alpha1.ResourceSelector{
				APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Is"}},
				},
			})},
		},
		"ClusterScoped": {
			policies: policies{named("shop/a", 0, kind("rbac.authorization.k8s.io/v1", "ClusterRole")), named("a", 0, kind("rbac.authorization.k8s.io/v1", "ClusterRole"))},
			object:   object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "view-all", nil),
			want:     []string{"a"},
		},
		"SystemNamespace": {
			policies: policies{named("a", 0, deployments())},
			object:   object("apps/v1", "Deployment", "kube-system", "dns", nil),
		},
		"SystemNamespaceNamed": {
			policies: policies{named("a", 0, in("orrery-cluster", deployments()))},
			object:   object("apps/v1", "Deployment", "orrery-cluster", "dns", nil),
			want:     []string{"a"},
		},
		"SystemNamespaceFromInside": {
			policies: policies{named("kube-system/a", 0, deployments())},
			object:   object("apps/v1", "Deployment", "kube-system", "dns", nil),
			want:     []string{"kube-system/a"},
		},
		"NamespaceObjects": {
			policies: policies{named("a", 0, kind("v1", "Namespace"))},
			object:   object("v1", "Namespace", "", "shop", nil), want: []string{"a"},
		},
		"SystemNamespaceObject": {
			policies: policies{named("a", 0, kind("v1", "Namespace"))},
			object:   object("v1", "Namespace", "", "kube-system", nil),
		},
		"DefaultNamespaceObject": {
			policies: policies{named("a", 0, kind("v1", "Namespace"))},
			object:   object("v1", "Namespace", "", "default", nil),
		},
		"RootCA": {
			policies: policies{named("shop/a", 0, kind("v1", "ConfigMap"))}, object: object("v1", "ConfigMap", "shop", "kube-root-ca.crt", nil),
		},
		"DefaultServiceAccount": {
			policies: policies{named("shop/a", 0, kind("v1", "ServiceAccount"))}, object: object("v1", "ServiceAccount", "shop", "default", nil),
		},
		"OtherServiceAccount": {
			policies: policies{named("shop/a", 0, kind("v1", "ServiceAccount"))}, object: object("v1", "ServiceAccount", "shop", "web", nil),
			want: []string{"shop/a"},
		},
		"KubernetesService": {
			policies: policies{named("default/a", 0, kind("v1", "Service"))}, object: object("v1", "Service", "default", "kubernetes", nil),
		},
		"KubernetesServiceElsewhere": {
			policies: policies{named("shop/a", 0, kind("v1", "Service"))}, object: object("v1", "Service", "shop", "kubernetes", nil),
			want: []string{"shop/a"},
		},
		"ReplicaSetOfADeployment": {
			policies: policies{named("shop/a", 0, kind("apps/v1", "ReplicaSet"))},
			object:   owned(object("apps/v1", "ReplicaSet", "shop", "web-7d4b9c", nil), "Deployment"),
		},
		"ReplicaSet": {
			policies: policies{named("shop/a", 0, kind("apps/v1", "ReplicaSet"))}, object: object("apps/v1", "ReplicaSet", "shop", "web", nil),
			want: []string{"shop/a"},
		},
		"ControllerRevisionOfAStatefulSet": {
			policies: policies{named("shop/a", 0, kind("apps/v1", "ControllerRevision"))},
			object:   owned(object("apps/v1", "ControllerRevision", "shop", "db-7d4b9c", nil), "StatefulSet"),
		},
		"DeploymentOfAController": {
			policies: policies{named("shop/a", 0, deployments())},
			object:   owned(object("apps/v1", "Deployment", "shop", "web", nil), "Website"), want: []string{"shop/a"},
		},
		"ControllersSlice": {
			policies: policies{named("shop/a", 0, kind("discovery.k8s.io/v1", "EndpointSlice"))},
			object: object("discovery.k8s.io/v1", "EndpointSlice", "shop", "web-x7k2p",
				map[string]string{"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}),
		},
		"TokenSecret": {
			policies: policies{named("shop/a", 0, kind("v1", "Secret"))},
			object: func() *unstructured.Unstructured {
				o := object("v1", "Secret", "shop", "token", nil)
				o.Object["type"] = "kubernetes.io/service-account-token"
				return o
			}(),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := tc.object
			if o == nil {
				o = web
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 5 { // in any order of policies
				random.Shuffle(len(tc.policies), func(i, j int) { tc.policies[i], tc.policies[j] = tc.policies[j], tc.policies[i] })
				x := NewIndex(tc.policies...)
				if diff := cmp.Diff(tc.want, claimants(x, o), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("claims (-want +got):\n%s", diff)
				}
				for _, p := range tc.policies {
					x.Set(p.DeepCopy()) // replaces, and does not add
				}
				if diff := cmp.Diff(tc.want, claimants(x, o), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("claims after every policy was set again (-want +got):\n%s", diff)
				}
				for _, p := range tc.policies {
					x.Delete(Name(p))
				}
				if len(x.Claims(o)) > 0 || len(x.scopes) > 0 || len(x.All()) > 0 {
					t.Fatal("something is left of deleted policies")
				}
			}
		})
	}
}

func TestSkipped(t *testing.T) {
	const system, reserved = policyv1alpha1.ReasonSystemNamespace, policyv1alpha1.ReasonReservedObject
	root := object("v1", "ConfigMap", "shop", "kube-root-ca.crt", map[string]string{"a": "b"})
	dns := object("apps/v1", "Deployment", "kube-system", "dns", map[string]string{"app": "dns"})
	rootNamed := kind("v1", "ConfigMap")
	rootNamed.Name = root.GetName()
	namespaceNamed := kind("v1", "Namespace")
	namespaceNamed.Name = "kube-system"
	type policies = []*policyv1alpha1.PropagationPolicy
	cases := map[string]struct {
		policies policies
		object   *unstructured.Unstructured
		want     []string
	}{
		"Nobody":            {object: dns},
		"OrdinaryObject":    {policies: policies{named("a", 0, deployments())}, object: object("apps/v1", "Deployment", "shop", "web", nil)},
		"ByKind":            {policies: policies{named("a", 0, deployments())}, object: dns, want: []string{"a " + system}},
		"ByLabel":           {policies: policies{named("a", 0, labelled(map[string]string{"app": "dns"}))}, object: dns, want: []string{"a " + system}},
		"ByName":            {policies: policies{named("a", 0, deployment("dns"))}, object: dns, want: []string{"a " + system + " named"}},
		"OtherLabel":        {policies: policies{named("a", 0, labelled(map[string]string{"app": "web"}))}, object: dns},
		"NamespaceNamed":    {policies: policies{named("a", 0, in("kube-system", deployments()))}, object: dns},
		"AlsoNamed":         {policies: policies{named("a", 0, deployments(), in("kube-system", deployments()))}, object: dns},
		"FromInside":        {policies: policies{named("kube-system/a", 0, deployments())}, object: dns},
		"OncePerPolicy":     {policies: policies{named("a", 0, deployments(), deployment("dns"))}, object: dns, want: []string{"a " + system + " named"}},
		"OneOfTwo":          {policies: policies{named("a", 0, deployments()), named("b", 0, in("kube-system", deployments()))}, object: dns, want: []string{"a " + system}},
		"Namespace":         {policies: policies{named("a", 0, kind("v1", "Namespace"))}, object: object("v1", "Namespace", "", "kube-system", nil), want: []string{"a " + system}},
		"NamespaceByName":   {policies: policies{named("a", 0, namespaceNamed)}, object: object("v1", "Namespace", "", "kube-system", nil)},
		"Reserved":          {policies: policies{named("a", 0, kind("v1", "ConfigMap"))}, object: root, want: []string{"a " + reserved}},
		"ReservedNamed":     {policies: policies{named("shop/a", 0, rootNamed)}, object: root, want: []string{"shop/a " + reserved + " named"}},
		"ReservedElsewhere": {policies: policies{named("mail/a", 0, rootNamed)}, object: root},
		"ReservedInSystemNamespace": {
			policies: policies{named("a", 0, kind("v1", "ConfigMap"), in("kube-system", rootNamed))},
			object:   object("v1", "ConfigMap", "kube-system", "kube-root-ca.crt", nil),
			want:     []string{"a " + reserved + " named"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range NewIndex(tc.policies...).Skipped(tc.object) {
				text := strings.TrimPrefix(Name(s.Policy).String(), "/") + " " + s.Reason
				if s.Named {
					text += " named"
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReserved: a policy by kind alone, or by name, claims no object of the hub or of Kubernetes
// itself.
func TestReserved(t *testing.T) {
	const rbac, registration = "rbac.authorization.k8s.io/v1", "apiregistration.k8s.io/v1"
	bootstrap := map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}
	flowSchema := object("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "", "probes", nil)
	flowSchema.SetAnnotations(map[string]string{"apf.kubernetes.io/autoupdate-spec": "true"})
	for name, c := range map[string]struct {
		object *unstructured.Unstructured
		free   bool
	}{
		"BootstrapRole":          {object: object(rbac, "ClusterRole", "", "cluster-admin", bootstrap)},
		"BootstrapBinding":       {object: object(rbac, "ClusterRoleBinding", "", "system:basic-user", bootstrap)},
		"BootstrapRoleInside":    {object: object(rbac, "Role", "kube-public", "system:controller:bootstrap-signer", bootstrap)},
		"OrrerysRole":            {object: object(rbac, "ClusterRole", "", "orrery:search", nil)},
		"OrrerysBinding":         {object: object(rbac, "ClusterRoleBinding", "", "orrery:search", nil)},
		"UsersRole":              {object: object(rbac, "ClusterRole", "", "orrery-users", nil), free: true},
		"UsersBootstrap":         {object: object("v1", "ConfigMap", "shop", "a", bootstrap), free: true},
		"ManagedAPIService":      {object: object(registration, "APIService", "", "v1.apps", map[string]string{"kube-aggregator.kubernetes.io/automanaged": "onstart"})},
		"APIServiceOfADefiniton": {object: object(registration, "APIService", "", "v1.acme.io", map[string]string{"kube-aggregator.kubernetes.io/automanaged": "true"})},
		"FleetAPI":               {object: object(registration, "APIService", "", "v1alpha1.fleet.orrery.dev", nil)},
		"UsersAPIService":        {object: object(registration, "APIService", "", "v1beta1.metrics.k8s.io", nil), free: true},
		"OrrerysDefinition":      {object: object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "clusters.cluster.orrery.dev", nil)},
		"UsersDefinition":        {object: object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "things.acme.io", nil), free: true},
		"AuthenticationConfig":   {object: object("v1", "ConfigMap", "kube-system", "extension-apiserver-authentication", nil)},
		"RootCA":                 {object: object("v1", "ConfigMap", "shop", "kube-root-ca.crt", nil)},
		"Credentials":            {object: object("v1", "Secret", "orrery-cluster", "oak", nil)},
		"HubRestore":             {object: object("v1", "ConfigMap", "orrery-cluster", "hub-restore", nil)},
		"KubernetesService":      {object: object("v1", "Service", "default", "kubernetes", nil)},
		"KubernetesEndpoints":    {object: object("v1", "Endpoints", "default", "kubernetes", nil)},
		"FleetService":           {object: object("v1", "Service", "orrery-system", "orrery-fleet", nil)},
		"FlowSchema":             {object: flowSchema},
		"PriorityClass":          {object: object("scheduling.k8s.io/v1", "PriorityClass", "", "system-node-critical", nil)},
		"UsersPriorityClass":     {object: object("scheduling.k8s.io/v1", "PriorityClass", "", "batch", nil), free: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.object
			byKind := kind(o.GetAPIVersion(), o.GetKind())
			byKind.Namespace = o.GetNamespace() // reaches into a system namespace, too
			byName := byKind
			byName.Name = o.GetName()
			for how, s := range map[string]policyv1alpha1.ResourceSelector{"kind": byKind, "name": byName} {
				x := NewIndex(named("a", 0, s))
				if claimed := len(x.Claims(o)) > 0; claimed != c.free {
					t.Errorf("by %s: claimed is %v, want %v", how, claimed, c.free)
				}
				if !c.free {
					want := []Skip{{Policy: x.All()[0], Reason: policyv1alpha1.ReasonReservedObject, Named: how == "name"}}
					if diff := cmp.Diff(want, x.Skipped(o)); diff != "" {
						t.Errorf("by %s: skipped (-want +got):\n%s", how, diff)
					}
				}
			}
		})
	}
}

func TestSetForgetsOldSelectors(t *testing.T) {
	x := NewIndex(named("shop/a", 0, deployment("web"), labelled(map[string]string{"app": "web"})))
	x.Set(named("shop/a", 0, deployment("api")))
	if got := claimants(x, object("apps/v1", "Deployment", "shop", "web", map[string]string{"app": "web"})); len(got) > 0 {
		t.Errorf("claimed by %v", got)
	}
}

func TestProblems(t *testing.T) {
	bad := labelled(nil)
	bad.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Is"}}
	cases := map[string]struct {
		policy *policyv1alpha1.PropagationPolicy
		want   []string
	}{
		"None":             {policy: named("shop/a", 0, in("shop", deployments()))},
		"ClusterWide":      {policy: named("a", 0, in("shop", deployments()))},
		"ForeignNamespace": {policy: named("mail/a", 0, deployments(), in("shop", deployments())), want: []string{"resourceSelectors[1].namespace"}},
		"BadLabels":        {policy: named("a", 0, bad), want: []string{"resourceSelectors[0].labelSelector"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var fields []string
			for _, err := range Problems(tc.policy) {
				field, _, _ := strings.Cut(err.Error(), " ")
				fields = append(fields, field)
			}
			if !slices.Equal(fields, tc.want) {
				t.Errorf("problems with %v, want %v", fields, tc.want)
			}
		})
	}
}

// BenchmarkClaims: a lookup among 10,000 policies must not check all of them.
func BenchmarkClaims(b *testing.B) {
	const policies = 10_000
	web := object("apps/v1", "Deployment", "shop", "web-5000", map[string]string{"app": "web-5000"})
	for name, policy := range map[string]func(i int) *policyv1alpha1.PropagationPolicy{
		"ByName": func(i int) *policyv1alpha1.PropagationPolicy {
			return named(fmt.Sprint("p", i), 0, deployment(fmt.Sprint("web-", i)))
		},
		"ByLabel": func(i int) *policyv1alpha1.PropagationPolicy {
			return named(fmt.Sprint("p", i), 0, labelled(map[string]string{"app": fmt.Sprint("web-", i)}))
		},
		"ByNamespace": func(i int) *policyv1alpha1.PropagationPolicy {
			return named(fmt.Sprintf("shop%d/p", i), 0, deployments())
		},
	} {
		b.Run(name, func(b *testing.B) {
			x := NewIndex()
			for i := range policies {
				x.Set(policy(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				x.Claims(web)
			}
		})
	}
}

// TestSettle: a policy whose preemption is Never takes nothing from the policy that places an
// object. All others keep their order.
func TestSettle(t *testing.T) {
	claim := func(name string, preemption policyv1alpha1.PreemptionBehavior) Claim {
		p := &policyv1alpha1.PropagationPolicy{Spec: policyv1alpha1.PropagationSpec{Preemption: preemption}}
		p.Name, p.Namespace = name, "ns"
		return Claim{Policy: p}
	}
	always, never, unset := claim("always", policyv1alpha1.PreemptAlways), claim("never", policyv1alpha1.PreemptNever), claim("unset", "")
	for name, tc := range map[string]struct {
		claims  []Claim
		current string
		want    []string
	}{
		"Nobody":                {[]Claim{never, always}, "", []string{"never", "always"}},
		"SomebodyElse":          {[]Claim{never, always}, "gone", []string{"never", "always"}},
		"TheFirst":              {[]Claim{never, always}, "never", []string{"never", "always"}},
		"NeverTakesNothing":     {[]Claim{never, always}, "always", []string{"always", "never"}},
		"AlwaysTakes":           {[]Claim{always, never}, "never", []string{"always", "never"}},
		"UnsetTakes":            {[]Claim{unset, never}, "never", []string{"unset", "never"}},
		"TheFirstThatMayTakes":  {[]Claim{never, always, unset}, "unset", []string{"always", "never", "unset"}},
		"OnlyTheFormerMayTake":  {[]Claim{never, unset, always}, "unset", []string{"unset", "never", "always"}},
		"NothingIsLostOrDouble": {[]Claim{never, unset, always}, "always", []string{"unset", "never", "always"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.claims)
			var got []string
			for _, c := range Settle(tc.claims, "PropagationPolicy", tc.current) {
				got = append(got, c.Policy.Name)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			for i := range before {
				if tc.claims[i].Policy != before[i].Policy {
					t.Error("the claims themselves were changed")
				}
			}
		})
	}
	if got := Settle([]Claim{never, always}, "ClusterPropagationPolicy", "always"); got[0].Policy != never.Policy {
		t.Error("a policy of another kind counts as the one that places the object")
	}
}
