package fleetapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// changing matches what differs between two answers to one request, including the names that a
// review gives to policies.
var changing = regexp.MustCompile(`"(resourceVersion|uid|continue)":"[^"]*"|\d{4}-\d\d-\d\dT[0-9:.]+Z|review-[a-z0-9]{5}`)

// answerTo returns the answer of the hub's API server to a user: the code, the warnings and the
// body.
func (w *world) answerTo(t *testing.T, user, method, path, body string) string {
	t.Helper()
	resp, text := w.request(t, user, method, path, body)
	return resp.Status + "\n" + strings.Join(resp.Header.Values("Warning"), "\n") + "\n" + changing.ReplaceAllString(text, "then")
}

// TestHiddenIsAbsent: a tenant asks about a cluster that the tenant's namespace may not use, by
// its name, its labels or its fields. Each request is answered as for a cluster that does not
// exist. The objects that the controllers write into the namespace reveal as little.
func TestHiddenIsAbsent(t *testing.T) {
	const hidden, absent = "pine", "yews"
	w := newWorld(t)
	shop := testenv.Namespace(t, testenv.Config(0))
	web := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web", Labels: map[string]string{"app": "web"}}}
	w.create(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}},
		// Each value that can be selected is the name of the cluster.
		&clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: hidden, Labels: map[string]string{"secret": hidden, hidden: "yes"}},
			Spec: clusterv1alpha1.ClusterSpec{
				APIEndpoint: "https://127.0.0.1:1", SecretRef: clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: hidden},
				Provider: hidden, Region: hidden, Zones: []string{hidden}, Taints: []corev1.Taint{{Key: hidden, Effect: corev1.TaintEffectNoSchedule}},
			},
		},
		&policyv1alpha1.ClusterAccess{ObjectMeta: metav1.ObjectMeta{Name: "only-oak"}, Spec: policyv1alpha1.ClusterAccessSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: shop}},
			ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak"}},
		}},
		web,
		&policyv1alpha1.PropagationPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"},
			Spec:       policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: "web"}}},
		},
	)
	w.grant(t, "in-shop", shop, rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}, "ann")
	of := "ConfigMap/" + shop + "/web"
	testenv.Eventually(t, "it is placed", testenv.Patience, func() error {
		code, text := w.ask(t, "ann", http.MethodGet, placementOf(of), "")
		var p fleetv1alpha1.PlacementExplanation
		if code != http.StatusOK {
			return errors.New(text)
		}
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return err
		}
		if p.State != fleetv1alpha1.PlacementPlaced || len(p.Clusters) != 1 || p.Clusters[0].Result == nil || p.Decision == nil {
			return errors.New(text)
		}
		if p.Hidden > 0 || strings.Contains(text, "only-oak") || strings.Contains(text, hidden) || strings.Contains(p.Decision.Message, " of 2 clusters") {
			t.Fatalf("what is hidden is counted or named: %s", text)
		}
		// Oak did not answer for a moment: the next decision counts it again.
		if !strings.Contains(p.Decision.Message, "1 of 1 clusters") {
			return errors.New(text)
		}
		// The requests below must have answers to compare, not only refusals.
		if code, text = w.ask(t, "ann", http.MethodGet, fleetv1alpha1.FleetPath+"/api/v1/namespaces/"+shop+"/configmaps/web", ""); code != http.StatusOK {
			return errors.New(text)
		}
		return nil
	})

	type request struct{ method, path, body string }
	var requests []request
	get := func(paths ...string) {
		for _, path := range paths {
			requests = append(requests, request{http.MethodGet, path, ""})
		}
	}
	for _, placement := range []string{
		`{"clusterAffinity": {"clusterNames": ["NAME"]}}`,
		`{"clusterAffinity": {"clusterNames": ["oak", "NAME"]}}`,
		`{"clusterAffinity": {"clusterNames": ["oak", "NAME"], "exclude": ["NAME"]}}`,
		`{"clusterAffinity": {"exclude": ["NAME"]}}`,
		`{"clusterAffinity": {"labelSelector": {"matchLabels": {"secret": "NAME"}}}}`,
		`{"clusterAffinity": {"labelSelector": {"matchExpressions": [{"key": "NAME", "operator": "Exists"}]}}}`,
		`{"clusterAffinity": {"labelSelector": {"matchExpressions": [{"key": "NAME", "operator": "DoesNotExist"}]}}}`,
		`{"clusterAffinity": {"labelSelector": {"matchExpressions": [{"key": "secret", "operator": "NotIn", "values": ["NAME"]}]}}}`,
		`{"clusterAffinity": {"fieldSelector": {"matchExpressions": [{"key": "provider", "operator": "In", "values": ["NAME"]}]}}}`,
		`{"clusterAffinity": {"fieldSelector": {"matchExpressions": [{"key": "region", "operator": "In", "values": ["NAME"]}]}}}`,
		`{"clusterAffinity": {"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["NAME"]}]}}}`,
		`{"clusterAffinity": {"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["NAME"]}]}}}`,
		`{"clusterAffinities": [{"affinityName": "a", "clusterNames": ["NAME"]}, {"affinityName": "b", "clusterNames": ["oak"]}]}`,
		`{"clusterAffinities": [{"affinityName": "a", "clusterNames": ["oak"]}, {"affinityName": "b", "clusterNames": ["NAME"]}]}`,
		`{"clusterAffinities": [{"affinityName": "a", "clusterNames": ["oak"], "overflowAffinities": [{"affinityName": "o", "clusterNames": ["NAME"]}]}],
			"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"}}`,
		`{"spreadConstraints": [{"spreadByLabel": "NAME"}]}`,
		`{"spreadConstraints": [{"spreadByField": "region"}, {"spreadByField": "cluster", "minGroups": 2}]}`,
		`{"clusterTolerations": [{"key": "NAME", "operator": "Exists"}]}`,
		`{"replicaScheduling": {"replicaSchedulingType": "Divided", "weightPreference": {"staticWeightList": [{"targetCluster": {"clusterNames": ["NAME"]}, "weight": 2}]}}}`,
		`{"replicaScheduling": {"replicaSchedulingType": "Divided", "weightPreference": {"dynamicWeight": "AvailableReplicas"}}, "clusterAffinity": {"clusterNames": ["oak", "NAME"]}}`,
	} {
		for _, about := range []string{``, `, "replicas": 3`, `, "of": "` + of + `"`, `, "object": {"apiVersion": "v1", "kind": "Secret"}`} {
			requests = append(requests, request{http.MethodPost, fleetv1alpha1.PlacementReviewsPath, `{"spec": {"namespace": "` + shop + `", "placement": ` + placement + about + `}}`})
		}
		spec := `{"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "web"}], "placement": ` + placement + `}`
		requests = append(requests,
			request{http.MethodPost, fleetv1alpha1.PlacementReviewsPath, `{"spec": {"moves": {"policy": {"namespace": "` + shop + `", "name": "web", "spec": ` + spec + `}}}}`},
			request{
				http.MethodPost, "/apis/policy.orrery.dev/v1alpha1/namespaces/" + shop + "/propagationpolicies?dryRun=All",
				`{"apiVersion": "policy.orrery.dev/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "another"}, "spec": ` + spec + `}`,
			})
	}
	for _, change := range []string{`"leaves": true`, `"labels": {}`} {
		requests = append(requests, request{http.MethodPost, fleetv1alpha1.PlacementReviewsPath, `{"spec": {"moves": {"cluster": {"name": "NAME", ` + change + `}}}}`})
	}
	requests = append(requests, request{http.MethodPost, fleetv1alpha1.PlacementReviewsPath, `{"spec": {"placement": {"clusterAffinity": {"clusterNames": ["NAME"]}}}}`})
	const clusters, inCluster = "/apis/fleet.orrery.dev/v1alpha1/clusters/NAME", fleetv1alpha1.FleetPath + "/clusters/NAME"
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete, http.MethodPut, http.MethodPatch} {
		requests = append(requests, request{method, clusters + "/proxy/api/v1/namespaces/" + shop + "/configmaps/web", ""}, request{method, clusters + "/mirror", ""})
	}
	review := `{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"namespace": "` + shop + `", "verb": "list", "resource": "pods"}}}`
	requests = append(requests, request{http.MethodPost, inCluster + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review})
	get(placementOf(of)+"&cluster=NAME", worksOf(of)+"&cluster=NAME", placementOf("ConfigMap/"+shop+"/NAME"), placementOf("Cluster.cluster.orrery.dev/NAME"), worksOf("Cluster.cluster.orrery.dev/NAME"),
		clusters, clusters+"/proxy", clusters+"/proxy/", clusters+"/proxy/version", clusters+"/nothing",
		inCluster, inCluster+"/openapi/v2", inCluster+"/openapi/v3", inCluster+"/openapi/v3/api/v1", inCluster+"/api/v1", inCluster+"/apis", inCluster+"/version",
		"/apis/cluster.orrery.dev/v1alpha1/clusters/NAME", "/apis/cluster.orrery.dev/v1alpha1/clusters?fieldSelector=metadata.name%3DNAME", "/apis/cluster.orrery.dev/v1alpha1/clusters?labelSelector=secret%3DNAME",
		"/api/v1/namespaces/"+clusterv1alpha1.SecretNamespace, "/api/v1/namespaces/"+clusterv1alpha1.SecretNamespace+"/secrets/NAME", "/apis/policy.orrery.dev/v1alpha1/clusteraccesses/NAME",
	)
	for _, path := range []string{"/api/v1/namespaces/" + shop + "/configmaps", "/api/v1/namespaces/" + shop + "/events", "/api/v1/configmaps"} {
		get(inCluster+path, inCluster+path+"?watch=true")
		for _, query := range []string{
			"clusters=NAME", "clusters=oak,NAME", "q=cluster:NAME", "q=-cluster:NAME", "filter=" + url.QueryEscape(`cluster == "NAME"`), "group=cluster&clusters=NAME",
			"history=true&clusters=NAME", "deleted=true&clusters=NAME", "watch=true&clusters=NAME", "labelSelector=secret%3DNAME",
		} {
			get(fleetv1alpha1.FleetPath + path + "?" + query)
		}
	}
	get(fleetv1alpha1.QualifiedPath+"/api/v1/namespaces/"+shop+"@NAME/configmaps", fleetv1alpha1.QualifiedPath+"/api/v1/namespaces/"+shop+"@NAME/configmaps/web",
		fleetv1alpha1.FleetPath+"/search?q=cluster:NAME", fleetv1alpha1.FleetPath+"/search?q=kind:ConfigMap&clusters=NAME",
		fleetv1alpha1.FleetPath+"/graph?of=configmaps/"+shop+"/web&clusters=NAME",
		fleetv1alpha1.FleetPath+"/apis/clusterpedia.io/v1beta1/collectionresources/any?resources=configmaps&clusters=NAME",
	)
	for _, r := range requests {
		ask := func(name string) string {
			named := strings.NewReplacer("NAME", name)
			return strings.ReplaceAll(w.answerTo(t, "ann", r.method, named.Replace(r.path), named.Replace(r.body)), name, "NAME")
		}
		var of, not string
		testenv.Eventually(t, "two answers of one time", testenv.Patience, func() error {
			not, of = ask(absent), ask(hidden)
			if of == not {
				return nil
			}
			// The answer can have changed meanwhile, for example because oak failed to answer
			// for a moment.
			if again := ask(absent); again != not {
				return fmt.Errorf("of a cluster that there is not: %s, then %s", not, again)
			}
			return nil
		})
		if diff := cmp.Diff(not, of); diff != "" {
			t.Errorf("%s %s %s: -absent +hidden:\n%s", r.method, r.path, r.body, diff)
		}
		if strings.Contains(of, "only-oak") {
			t.Errorf("%s %s %s: the ClusterAccess is named: %s", r.method, r.path, r.body, of)
		}
	}
	t.Run("Bindings", func(t *testing.T) { w.bindingsOfHidden(t, shop, hidden, absent) })
}

// bindingsOfHidden compares what controllers write into a namespace for policies that select a
// hidden cluster with what they write for policies that select an absent one.
func (w *world) bindingsOfHidden(t *testing.T, shop, hidden, absent string) {
	kinds := []string{"name", "names", "label", "region"}
	for _, cluster := range []string{hidden, absent} {
		for _, kind := range kinds {
			name := kind + "-" + cluster
			a := &policyv1alpha1.ClusterAffinity{}
			switch kind {
			case "name":
				a.ClusterNames = []string{cluster}
			case "names":
				a.ClusterNames = []string{"oak", cluster}
			case "label":
				a.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"secret": cluster}}
			case "region":
				a.FieldSelector = &policyv1alpha1.FieldSelector{MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{
					{Key: "region", Operator: metav1.LabelSelectorOpIn, Values: []string{cluster}},
				}}
			}
			w.create(t,
				&policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name}, Spec: policyv1alpha1.PropagationSpec{
					ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: name}}, Placement: policyv1alpha1.Placement{ClusterAffinity: a},
				}},
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name}})
		}
	}
	// written returns the binding, the policy's status and the events for a policy.
	written := func(kind, cluster string) (string, error) {
		name := kind + "-" + cluster
		b := &workv1alpha2.ResourceBinding{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: shop, Name: name + "-configmap"}, b); err != nil {
			return "", err
		}
		p := &policyv1alpha1.PropagationPolicy{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: shop, Name: name}, p); err != nil {
			return "", err
		}
		scheduled := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionScheduled)
		complete := meta.FindStatusCondition(p.Status.Conditions, policyv1alpha1.ConditionComplete)
		if scheduled == nil || scheduled.ObservedGeneration != b.Generation || complete == nil || p.Status.Claimed != 1 {
			return "", fmt.Errorf("%s: %+v, %+v", name, b.Status, p.Status)
		}
		if kind == "names" && !meta.IsStatusConditionTrue(b.Status.Conditions, workv1alpha2.ConditionFullyApplied) {
			return "", fmt.Errorf("%s: %+v", name, b.Status)
		}
		var list eventsv1.EventList
		if err := w.client.List(t.Context(), &list, client.InNamespace(shop)); err != nil {
			return "", err
		}
		var said []string
		for _, e := range list.Items {
			if strings.HasPrefix(e.Regarding.Name, name) {
				said = append(said, fmt.Sprint(e.Regarding.Kind, " ", e.Regarding.Name, " ", e.Type, " ", e.Reason, " ", e.Note))
			}
		}
		slices.Sort(said)
		said = slices.Compact(said) // a repeated decision repeats its event
		if len(said) < map[string]int{"name": 2, "names": 1}[kind] {
			return "", fmt.Errorf("%s: events %q", name, said)
		}
		text, err := json.MarshalIndent([]any{b.Spec.Clusters, b.Spec.GracefulEvictionTasks, b.Status, p.Status, said}, "", " ")
		return strings.ReplaceAll(changing.ReplaceAllString(string(text), "then"), cluster, "NAME"), err
	}
	for _, kind := range kinds {
		testenv.Eventually(t, kind+": equal", testenv.Patience, func() error {
			of, err := written(kind, hidden)
			if err != nil {
				return err
			}
			not, err := written(kind, absent)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(not, of); diff != "" {
				return fmt.Errorf("-absent +hidden:\n%s", diff)
			}
			if strings.Contains(of, "only-oak") || strings.Contains(of, "closed") {
				return fmt.Errorf("what is closed is told: %s", of)
			}
			return nil
		})
	}
}
