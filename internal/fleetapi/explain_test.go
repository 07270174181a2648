package fleetapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/status"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/testenv"
)

// losable are records that a test can make empty or unreadable.
type losable struct {
	records.Reader

	lost, unreadable atomic.Bool
}

func (l *losable) Decisions(ctx context.Context, template types.UID, limit int) ([]records.Decision, error) {
	switch {
	case l.unreadable.Load():
		return nil, records.ErrUnavailable
	case l.lost.Load():
		return nil, nil
	}
	return l.Reader.Decisions(ctx, template, limit)
}

func (l *losable) Results(ctx context.Context, binding types.UID) ([]records.Result, error) {
	switch {
	case l.unreadable.Load():
		return nil, records.ErrUnavailable
	case l.lost.Load():
		return nil, nil
	}
	return l.Reader.Results(ctx, binding)
}

// newExplainer adds placement, apply and status to a manager, as the server does.
func newExplainer(t *testing.T, mgr manager.Manager, o explanation.Options, hubID string) (*explanation.Explainer, *losable) {
	t.Helper()
	kept, err := records.Open(t.Context(), t.TempDir(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
	templates, err := template.New(mgr)
	if err != nil {
		t.Fatal(err)
	}
	if o.Bindings, err = binding.NewCache(t.Context(), mgr.GetCache()); err != nil {
		t.Fatal(err)
	}
	if o.Placement, err = placement.Add(mgr, placement.Options{
		Bindings: o.Bindings, Templates: templates, Fleet: o.Fleet, Registry: o.Registry, Mirror: o.Mirror, Records: kept,
		Hub: interpreter.Hub{Embedded: true},
	}); err != nil {
		t.Fatal(err)
	}
	if o.Applier, err = apply.Add(mgr, apply.Options{
		Bindings: o.Bindings, Registry: o.Registry, Mirror: o.Mirror, Templates: templates, Decisions: o.Placement, Records: kept, HubID: hubID,
		Fences: fleet.Fences{Cache: o.Fleet},
	}); err != nil {
		t.Fatal(err)
	}
	if err := status.Add(mgr, status.Options{
		Bindings: o.Bindings, Placement: o.Placement, Applier: o.Applier, Mirror: o.Mirror, Registry: o.Registry, Templates: templates, Recorded: o.Applier.Recorded,
	}); err != nil {
		t.Fatal(err)
	}
	lost := &losable{Reader: kept}
	o.Records = lost
	if o.Hub, err = client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()}); err != nil {
		t.Fatal(err)
	}
	o.Mapper = mgr.GetRESTMapper()
	if err := mgr.Add(kept); err != nil {
		t.Fatal(err)
	}
	return explanation.New(o), lost
}

// ask sends a request to the hub's API server as a user; "" is the administrator. It repeats
// the request after a server error or a 429, because no request of these tests changes
// anything.
func (w *world) ask(t *testing.T, user, method, path, body string) (code int, answer string) {
	t.Helper()
	testenv.Eventually(t, "an answer", testenv.Patience, func() error {
		var resp *http.Response
		resp, answer = w.request(t, user, method, path, body)
		if code = resp.StatusCode; code >= http.StatusInternalServerError || code == http.StatusTooManyRequests {
			return fmt.Errorf("%s %s: %s %s", method, path, resp.Status, answer)
		}
		return nil
	})
	return code, answer
}

// request sends a request to the hub's API server as a user, again while the connection fails. The
// body of the response is read and returned.
func (w *world) request(t *testing.T, user, method, path, body string) (resp *http.Response, answer string) {
	t.Helper()
	config := rest.CopyConfig(w.hub.Config())
	config.Impersonate.UserName = user
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a response", testenv.Patience, func() error {
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		if resp, err = c.Do(r); err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		answer = string(text)
		return err
	})
	return resp, answer
}

// read returns the answer to a GET, which must succeed.
func read[T any](t *testing.T, w *world, user, path string) (answer T, text string) {
	t.Helper()
	code, text := w.ask(t, user, http.MethodGet, path, "")
	if code != http.StatusOK {
		t.Fatalf("GET %s as %q: %d %s", path, user, code, text)
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	return answer, text
}

func placementOf(of string) string {
	return fleetv1alpha1.PlacementsPath + "?of=" + url.QueryEscape(of)
}
func worksOf(of string) string { return fleetv1alpha1.WorksPath + "?of=" + url.QueryEscape(of) }

// TestExplanations asks, through a real kube-apiserver and as users with few rights, why
// objects are where they are, and what their state is there.
func TestExplanations(t *testing.T) {
	w := newWorld(t)
	shop, store := testenv.Namespace(t, testenv.Config(0)), testenv.Namespace(t, testenv.Config(0))
	inMember, err := client.New(testenv.Config(0), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web", Labels: map[string]string{"app": "web"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.org/web:1"}}},
			},
		},
	}
	w.create(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: store}},
		// ash never answers, and the namespace may not use it.
		&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "ash"}, Spec: clusterv1alpha1.ClusterSpec{
			APIEndpoint: "https://127.0.0.1:1", SecretRef: clusterv1alpha1.SecretReference{Namespace: "orrery-cluster", Name: "ash"},
		}},
		&policyv1alpha1.ClusterAccess{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: policyv1alpha1.ClusterAccessSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: shop}},
			ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak"}},
		}},
		web,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "password", Labels: map[string]string{"app": "web"}}, StringData: map[string]string{"password": "hunter2hunter2"}},
	)
	everything := rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "create"}}
	w.grant(t, "in-shop", shop, everything, "alice")
	w.grant(t, "in-store", store, everything, "bob")
	w.grant(t, "one-type", shop, rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}, "carol")
	of := "Deployment.apps/" + shop + "/web"

	testenv.Eventually(t, "the hub's API server forwards to the fleet API", testenv.Patience, func() error {
		if code, text := w.ask(t, "", http.MethodGet, placementOf(of), ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	testenv.Eventually(t, "nothing claims it", testenv.Patience, func() error {
		p, _ := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of))
		if p.State != fleetv1alpha1.PlacementUnclaimed || !p.Current || p.Of.UID != web.UID {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	policy := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{
				{APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "wbe"}}},
				{APIVersion: "v1", Kind: "Secret", Name: "password"},
			},
			Placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak", "ash"}}},
		},
	}
	everybody := &policyv1alpha1.ClusterPropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "everybody"},
		Spec:       policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment", Namespace: store}}},
	}
	w.create(t, policy, everybody)

	t.Run("NearlySelected", func(t *testing.T) {
		testenv.Eventually(t, "both policies are near", testenv.Patience, func() error {
			p, _ := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of))
			if len(p.Near) != 2 || p.Near[0].Name != "web" || !strings.Contains(p.Near[0].Reason, "app=wbe") || p.Near[1].Name != "everybody" {
				return fmt.Errorf("%+v", p)
			}
			return nil
		})
		// alice may not list cluster-wide policies: she sees neither them nor the namespace
		// that they name. carol may list no policies, and sees none.
		if p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "alice", placementOf(of)); len(p.Near) != 1 || strings.Contains(text, store) {
			t.Errorf("alice: %s", text)
		}
		if p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "carol", placementOf(of)); len(p.Near) != 0 {
			t.Errorf("carol: %s", text)
		}
	})

	w.edit(t, policy, func(s *policyv1alpha1.PropagationSpec) {
		s.ResourceSelectors[0].LabelSelector.MatchLabels["app"] = "web"
	})
	testenv.Eventually(t, "it is placed", testenv.Patience, func() error {
		p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of))
		oak := slices.IndexFunc(p.Clusters, func(c fleetv1alpha1.ExplainedCluster) bool { return c.Name == "oak" && c.Placed })
		if p.State != fleetv1alpha1.PlacementPlaced || !p.Current || p.Decision == nil || oak < 0 || p.Clusters[oak].Result == nil || !p.Clusters[oak].Result.Applied {
			return errors.New(text)
		}
		return nil
	})

	t.Run("Placed", func(t *testing.T) {
		// Nothing waits once oak answers.
		testenv.Eventually(t, "all is said of it", testenv.Patience, func() error {
			p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of))
			ash := slices.IndexFunc(p.Clusters, func(c fleetv1alpha1.ExplainedCluster) bool { return c.Name == "ash" && !c.Placed })
			if p.Policy == nil || p.Policy.Name != "web" || p.Generation != 1 || ash < 0 || p.Hidden != 0 || len(p.Waits) != 0 {
				return errors.New(text)
			}
			var reasons []string
			for _, v := range p.Clusters[ash].Verdicts {
				reasons = append(reasons, v.Reason)
			}
			if diff := cmp.Diff([]string{"Fenced", "Unreachable"}, reasons); diff != "" {
				return fmt.Errorf("verdicts of ash (-want +got)\n%s", diff)
			}
			return nil
		})
	})

	t.Run("InOneNamespace", func(t *testing.T) {
		testenv.Eventually(t, "alice sees oak", testenv.Patience, func() error {
			p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "alice", placementOf(of))
			// Her policy names ash, which looks to her as if it had never joined.
			rest := strings.Replace(text, "ash: UnknownCluster", "", 1)
			if strings.Contains(rest, "ash") || p.Hidden != 0 {
				t.Fatalf("alice: %s", text)
			}
			// oak can fail to answer for a moment.
			if rest == text || p.State != fleetv1alpha1.PlacementPlaced || len(p.Clusters) != 1 || len(p.Clusters[0].Verdicts) != 0 {
				return errors.New(text)
			}
			return nil
		})
		// Existing and missing objects get the same refusal: bob learns nothing about another
		// namespace.
		for _, path := range []string{placementOf("Deployment.apps/" + shop + "/%s"), worksOf("Deployment.apps/" + shop + "/%s"), placementOf("Secret/" + shop + "/%s")} {
			code, there := w.ask(t, "bob", http.MethodGet, strings.ReplaceAll(path, "%25s", "web"), "")
			missing, not := w.ask(t, "bob", http.MethodGet, strings.ReplaceAll(path, "%25s", "not"), "")
			if code != http.StatusForbidden || missing != code || strings.ReplaceAll(there, "web", "not") != not {
				t.Errorf("bob: %d %s\n%d %s", code, there, missing, not)
			}
		}
	})

	t.Run("BadQuestions", func(t *testing.T) {
		for of, want := range map[string]string{
			"": "parameter of", "web": "KIND[.GROUP]/NAMESPACE/NAME", "Deployment.apps/web": "write Deployment.apps/NAMESPACE/NAME", "Namespace/a/b": "write Namespace/NAME",
			"Widget.example.org/a/b": "Widget.example.org", "Deployment.apps//web": "empty part",
		} {
			if code, text := w.ask(t, "", http.MethodGet, placementOf(of), ""); code != http.StatusBadRequest || !strings.Contains(text, want) {
				t.Errorf("%q: %d %s", of, code, text)
			}
		}
		if code, text := w.ask(t, "", http.MethodGet, placementOf("deployments.apps/"+shop+"/nothing"), ""); code != http.StatusNotFound {
			t.Errorf("what is not there: %d %s", code, text)
		}
		if code, text := w.ask(t, "", http.MethodGet, worksOf(of)+"&clusters=oak", ""); code != http.StatusBadRequest || !strings.Contains(text, "parameter clusters") {
			t.Errorf("an unknown parameter: %d %s", code, text)
		}
	})

	t.Run("RecordsAreLost", func(t *testing.T) {
		for name, gone := range map[string]*atomic.Bool{"Lost": &w.records.lost, "Unreadable": &w.records.unreadable} {
			gone.Store(true)
			testenv.Eventually(t, name, testenv.Patience, func() error {
				p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of))
				if p.State != fleetv1alpha1.PlacementPlaced || p.Decision != nil || len(p.Clusters) != 1 || !p.Clusters[0].Placed || !strings.Contains(p.Message, "the reason is unknown") {
					return errors.New(text)
				}
				return nil
			})
			gone.Store(false)
		}
	})

	t.Run("Works", func(t *testing.T) { w.works(t, inMember, policy, shop, of) })
	t.Run("Gone", func(t *testing.T) { w.gone(t, inMember, shop) })
	t.Run("Moves", func(t *testing.T) { w.placementMoves(t, shop, store, policy) })
	t.Run("Reviews", func(t *testing.T) { w.placementReviews(t, shop, store, of) })
	t.Run("Access", func(t *testing.T) {
		if a, text := read[fleetv1alpha1.FleetAccess](t, w, "", fleetv1alpha1.AccessPath); len(a.Types) != len(newMenus()) || !a.Types[0].Verbs[0].Everywhere || len(a.Namespaces) != 0 {
			t.Errorf("the administrator: %s", text)
		}
		a, text := read[fleetv1alpha1.FleetAccess](t, w, "carol", fleetv1alpha1.AccessPath)
		if len(a.Types) != 0 || len(a.Namespaces) != 0 {
			t.Errorf("carol, who may list nothing: %s", text)
		}
		a, text = read[fleetv1alpha1.FleetAccess](t, w, "alice", fleetv1alpha1.AccessPath)
		if diff := cmp.Diff([]string{shop}, a.Namespaces); diff != "" || strings.Contains(text, "true") || a.User != "alice" {
			t.Errorf("alice: %s\n%s", text, diff)
		}
		i := slices.IndexFunc(a.Types, func(t fleetv1alpha1.TypeAccess) bool { return t.Resource == "deployments" })
		want := []fleetv1alpha1.VerbAccess{{Verb: "list", Namespaces: []string{shop}}, {Verb: "create", Namespaces: []string{shop}}}
		if i < 0 || cmp.Diff(want, a.Types[i].Verbs) != "" {
			t.Errorf("alice: %s", text)
		}
	})
}

// edit changes the spec of a policy, whose status placement may write meanwhile.
func (w *world) edit(t *testing.T, p *policyv1alpha1.PropagationPolicy, change func(*policyv1alpha1.PropagationSpec)) {
	t.Helper()
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	before := p.DeepCopy()
	change(&p.Spec)
	if err := w.client.Patch(t.Context(), p, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// works checks that the copy is compared with the rendered manifest, and that no data of
// Secrets is returned.
func (w *world) works(t *testing.T, inMember client.Client, policy *policyv1alpha1.PropagationPolicy, shop, of string) {
	row := func(user string, check func(fleetv1alpha1.Work) bool) fleetv1alpha1.Work {
		t.Helper()
		var found fleetv1alpha1.Work
		testenv.Eventually(t, "works", testenv.Patience, func() error {
			list, text := read[fleetv1alpha1.WorkList](t, w, user, worksOf(of))
			if len(list.Items) != 1 || !check(list.Items[0]) {
				return errors.New(text)
			}
			found = list.Items[0]
			return nil
		})
		return found
	}
	// oak can fail to answer for a moment.
	one := row("alice", func(o fleetv1alpha1.Work) bool {
		return o.State == fleetv1alpha1.WorkPresent && o.DriftUnknown == "" && len(o.Drift) == 0 && o.Result != nil && o.Result.Applied &&
			o.Wanted != nil && o.Asked != nil && o.Ready != nil && o.Health == "Unhealthy"
	})
	if one.Cluster != "oak" || !one.Placed || *one.Wanted != 3 || *one.Asked != 3 || *one.Ready != 0 || one.Health != "Unhealthy" ||
		cmp.Diff([]fleetv1alpha1.WorkImage{{Container: "web", Wanted: "example.org/web:1", Live: "example.org/web:1"}}, one.Images) != "" {
		t.Errorf("%+v", one)
	}

	// While changes are suspended, another client changes a field of ours and adds one of its
	// own.
	w.edit(t, policy, func(s *policyv1alpha1.PropagationSpec) {
		s.Suspension = &policyv1alpha1.Suspension{Dispatching: new(true)}
	})
	testenv.Eventually(t, "changes are held back", testenv.Patience, func() error {
		b := &unstructured.Unstructured{}
		b.SetAPIVersion("work.orrery.dev/v1alpha2")
		b.SetKind("ResourceBinding")
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: shop, Name: "web-deployment"}, b); err != nil {
			return err
		}
		if _, held, _ := unstructured.NestedMap(b.Object, "spec", "suspension"); !held {
			return errors.New("not yet")
		}
		return nil
	})
	patch := []byte(`{"metadata": {"annotations": {"theirs": "1"}}, "spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example.org/web:2"}]}}}}`)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"}}
	testenv.Eventually(t, "somebody changes fields", testenv.Patience, func() error {
		return inMember.Patch(t.Context(), d, client.RawPatch(types.StrategicMergePatchType, patch))
	})
	one = row("", func(o fleetv1alpha1.Work) bool { return len(o.Drift) > 0 })
	if diff := cmp.Diff([]fleetv1alpha1.FieldDifference{
		{Path: "spec.template.spec.containers[0].image", Before: json.RawMessage(`"example.org/web:1"`), After: json.RawMessage(`"example.org/web:2"`)},
	}, one.Drift); diff != "" {
		t.Errorf("drift (-want +got)\n%s", diff)
	}
	testenv.Eventually(t, "the explanation says that changes are held back", testenv.Patience, func() error {
		p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of))
		if !slices.ContainsFunc(p.Waits, func(p fleetv1alpha1.PlacementWait) bool {
			return p.For == fleetv1alpha1.WaitSuspension && slices.Equal(p.Clusters, []string{"oak"})
		}) {
			return errors.New(text)
		}
		return nil
	})

	testenv.Eventually(t, "the manifests are there", testenv.Patience, func() error {
		whole, text := read[fleetv1alpha1.WorkList](t, w, "alice", worksOf(of)+"&cluster=oak")
		if len(whole.Items) != 1 || !strings.Contains(string(whole.Items[0].Rendered), "web:1") || !strings.Contains(string(whole.Items[0].Live), "web:2") {
			return errors.New(text)
		}
		return nil
	})
	// A hidden cluster and a missing one get the same answer.
	hidden, closed := w.ask(t, "alice", http.MethodGet, worksOf(of)+"&cluster=ash", "")
	none, unknown := w.ask(t, "alice", http.MethodGet, worksOf(of)+"&cluster=elm", "")
	if hidden != http.StatusNotFound || none != hidden || strings.ReplaceAll(closed, "ash", "elm") != unknown {
		t.Errorf("%d %s\n%d %s", hidden, closed, none, unknown)
	}

	testenv.Eventually(t, "the Secret is there", testenv.Patience, func() error {
		path := worksOf("Secret/"+shop+"/password") + "&cluster=oak"
		if code, text := w.ask(t, "", http.MethodGet, path, ""); code == http.StatusNotFound {
			return errors.New(text) // it is not placed yet
		}
		list, text := read[fleetv1alpha1.WorkList](t, w, "", path)
		if strings.Contains(text, "hunter2") || strings.Contains(text, "aHVudGVyMmh1bnRlcjI") {
			t.Fatalf("the data of a Secret is told: %s", text)
		}
		if len(list.Items) != 1 || list.Items[0].State != fleetv1alpha1.WorkPresent || list.Items[0].Live == nil || list.Items[0].DriftUnknown != "only the metadata could be compared: the data is not mirrored" || len(list.Items[0].Drift) > 0 {
			return errors.New(text)
		}
		return nil
	})

	w.edit(t, policy, func(s *policyv1alpha1.PropagationSpec) {
		s.Suspension, s.DependentOverrides = nil, []string{"needed"}
	})
	// Without an override policy that it needs, the object cannot be rendered as anybody wants
	// it. Its drift is unknown.
	one = row("", func(o fleetv1alpha1.Work) bool { return strings.Contains(o.DriftUnknown, "needed") })
	if len(one.Drift) > 0 || one.Images[0].Wanted != "" || one.Images[0].Live != "example.org/web:2" {
		t.Errorf("%+v", one)
	}

	remove(t.Context(), t, inMember, d)
	row("", func(o fleetv1alpha1.Work) bool {
		return o.State == fleetv1alpha1.WorkAbsent && o.Health == "" && o.Message != ""
	})
}

// placementReviews: a user who may create a policy sees the decision that it would cause,
// without clusters that the user may not see. Invalid placements are refused as the hub refuses
// the policy.
func (w *world) placementReviews(t *testing.T, shop, store, of string) {
	post := func(user, body string) (int, fleetv1alpha1.PlacementReview, string) {
		t.Helper()
		code, text := w.ask(t, user, http.MethodPost, fleetv1alpha1.PlacementReviewsPath, body)
		var review fleetv1alpha1.PlacementReview
		if code == http.StatusCreated {
			if err := json.Unmarshal([]byte(text), &review); err != nil {
				t.Fatal(err)
			}
		}
		return code, review, text
	}
	placed := func(r fleetv1alpha1.PlacementReview) (names []string) {
		for _, c := range r.Status.Clusters {
			if c.Placed {
				names = append(names, c.Name)
			}
		}
		return names
	}
	for name, c := range map[string]struct {
		user, body string
		code       int
		says       string
		placed     []string
	}{
		"Anything":      {body: `{"spec": {"placement": {}}}`, code: http.StatusCreated, placed: []string{"oak"}},
		"WithReplicas":  {body: `{"spec": {"placement": {}, "replicas": 4}}`, code: http.StatusCreated, placed: []string{"oak"}, says: `"replicas":4`},
		"OfTheHub":      {body: `{"spec": {"namespace": "` + shop + `", "placement": {"clusterAffinity": {"clusterNames": ["ash"]}}, "of": "` + of + `"}}`, code: http.StatusCreated, says: `"NoClusterFits"`},
		"AnObject":      {user: "alice", body: `{"spec": {"namespace": "` + shop + `", "placement": {}, "object": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2}}}}`, code: http.StatusCreated, placed: []string{"oak"}},
		"Hidden":        {user: "alice", body: `{"spec": {"namespace": "` + shop + `", "placement": {"clusterAffinity": {"clusterNames": ["oak"]}}}}`, code: http.StatusCreated, placed: []string{"oak"}},
		"NoRight":       {user: "bob", body: `{"spec": {"namespace": "` + shop + `", "placement": {}}}`, code: http.StatusForbidden},
		"NoWideRight":   {user: "alice", body: `{"spec": {"placement": {}}}`, code: http.StatusForbidden},
		"AnothersThing": {user: "bob", body: `{"spec": {"namespace": "` + store + `", "placement": {}, "of": "` + of + `"}}`, code: http.StatusForbidden},
		"Invalid":       {body: `{"spec": {"placement": {"spreadConstraints": [{"spreadByField": "planet"}]}}}`, code: http.StatusUnprocessableEntity, says: "spec.placement.spreadConstraints"},
		"UnknownField":  {body: `{"spec": {"placement": {"clusterAfinity": {}}}}`, code: http.StatusBadRequest, says: "clusterAfinity"},
		"BothObjects":   {body: `{"spec": {"placement": {}, "of": "a/b", "object": {}}}`, code: http.StatusBadRequest, says: "at most one"},
		"NoNamespace":   {body: `{"spec": {"placement": {}, "object": {"apiVersion": "v1", "kind": "ConfigMap"}}}`, code: http.StatusBadRequest, says: "spec.object.metadata.namespace"},
		"OfAnother":     {body: `{"spec": {"namespace": "` + store + `", "placement": {}, "of": "` + of + `"}}`, code: http.StatusBadRequest, says: "places nothing of namespace " + shop},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Eventually(t, "the review", testenv.Patience, func() error {
				code, review, text := post(c.user, c.body)
				if code != c.code {
					t.Fatalf("%d %s", code, text)
				}
				if !strings.Contains(text, c.says) {
					return errors.New(text)
				}
				if code != http.StatusCreated {
					return nil
				}
				if review.Status.Hidden != 0 || c.user != "" && strings.Contains(text, "ash") {
					t.Fatal(text)
				}
				// oak can fail to answer for a moment.
				if diff := cmp.Diff(c.placed, placed(review)); diff != "" {
					return fmt.Errorf("%s\n%s", text, diff)
				}
				return nil
			})
		})
	}
	var policies policyv1alpha1.ClusterPropagationPolicyList
	if err := w.client.List(t.Context(), &policies); err != nil || len(policies.Items) != 1 {
		t.Errorf("policies after the reviews: %d, %v", len(policies.Items), err)
	}
}

// placementMoves: a user who may change a policy sees the moves that the change causes, for
// objects that the user may get and clusters that the user may see. The others are counted.
func (w *world) placementMoves(t *testing.T, shop, store string, policy *policyv1alpha1.PropagationPolicy) {
	w.create(t, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: store, Name: "till"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "till"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "till"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "till", Image: "example.org/till:1"}}},
			},
		},
	})
	w.grant(t, "policies", shop, rbacv1.PolicyRule{APIGroups: []string{"policy.orrery.dev"}, Resources: []string{"*"}, Verbs: []string{"*"}}, "dave", "alice")
	w.grant(t, "widely", "", rbacv1.PolicyRule{APIGroups: []string{"policy.orrery.dev", "cluster.orrery.dev"}, Resources: []string{"*"}, Verbs: []string{"create", "update", "patch", "delete"}}, "erin")
	w.grant(t, "tills", store, rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}, "erin")
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); err != nil {
		t.Fatal(err)
	}
	edited := func(change func(*policyv1alpha1.PropagationSpec)) string {
		spec := policy.Spec.DeepCopy()
		change(spec)
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return `{"spec": {"moves": {"policy": {"namespace": "` + shop + `", "name": "web", "spec": ` + string(text) + `}}}}`
	}
	away := edited(func(s *policyv1alpha1.PropagationSpec) { s.Placement.ClusterAffinity.ClusterNames = []string{"elm"} })
	fewer := edited(func(s *policyv1alpha1.PropagationSpec) { s.ResourceSelectors = s.ResourceSelectors[1:] })
	taker := `{"spec": {"moves": {"policy": {"name": "taker", "spec": {"resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "` + store + `"}], "priority": 9,
		"placement": {"clusterAffinity": {"clusterNames": ["elm"]}}}}}}}`
	leaves := `{"spec": {"moves": {"cluster": {"name": "oak", "leaves": true}}}}`
	testenv.Eventually(t, "all is placed", testenv.Patience, func() error {
		for of, policy := range map[string]string{"Deployment.apps/" + shop + "/web": "web", "Deployment.apps/" + store + "/till": "everybody"} {
			if p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "", placementOf(of)); p.State != fleetv1alpha1.PlacementPlaced || p.PlacedBy != nil || p.Policy.Name != policy {
				return errors.New(text)
			}
		}
		return nil
	})
	for name, c := range map[string]struct {
		user, body string
		code       int
		says       string
		items      []string
		hidden     int
	}{
		"Edit":            {body: away, code: http.StatusCreated, items: []string{"Deployment web oak stays=false", "Secret password oak stays=false"}},
		"Selectors":       {body: fewer, code: http.StatusCreated},
		"OneWhoMay":       {user: "alice", body: away, code: http.StatusCreated, items: []string{"Deployment web oak stays=false", "Secret password oak stays=false"}},
		"OneWhoSeesNone":  {user: "dave", body: away, code: http.StatusCreated, hidden: 2},
		"TakesOver":       {body: taker, code: http.StatusCreated, items: []string{"Deployment till oak stays=false"}, says: `"name":"taker"`},
		"SomeAreHidden":   {user: "erin", body: leaves, code: http.StatusCreated, items: []string{"Deployment till oak stays=false"}, hidden: 2},
		"Leaves":          {body: leaves, code: http.StatusCreated, items: []string{"Deployment till oak stays=false", "Deployment web oak stays=false", "Secret password oak stays=false"}, says: `"atOnce":true`},
		"Labels":          {body: `{"spec": {"moves": {"cluster": {"name": "oak", "labels": {}}}}}`, code: http.StatusCreated, says: `"exact":true`},
		"Deleted":         {body: `{"spec": {"moves": {"policy": {"namespace": "` + shop + `", "name": "web"}}}}`, code: http.StatusCreated},
		"NoRight":         {user: "bob", body: away, code: http.StatusForbidden},
		"NoRightToCreate": {user: "dave", body: taker, code: http.StatusForbidden},
		"NoRightToLeave":  {user: "alice", body: leaves, code: http.StatusForbidden},
		"NoCluster":       {body: `{"spec": {"moves": {"cluster": {"name": "elm", "leaves": true}}}}`, code: http.StatusNotFound, says: "elm"},
		"Invalid": {body: edited(func(s *policyv1alpha1.PropagationSpec) {
			s.Placement.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: "planet"}}
		}), code: http.StatusUnprocessableEntity, says: "spec.placement.spreadConstraints"},
		"Both":    {body: `{"spec": {"moves": {"policy": {"name": "a"}, "cluster": {"name": "oak", "leaves": true}}}}`, code: http.StatusBadRequest, says: "exactly one"},
		"Neither": {body: `{"spec": {"moves": {"cluster": {"name": "oak"}}}}`, code: http.StatusBadRequest, says: "exactly one"},
		"AndMore": {body: `{"spec": {"moves": {"policy": {"name": "a"}}, "replicas": 1}}`, code: http.StatusBadRequest, says: "no other field"},
		"NoName":  {body: `{"spec": {"moves": {"policy": {}}}}`, code: http.StatusBadRequest, says: "spec.moves.policy.name"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Eventually(t, "the review", testenv.Patience, func() error {
				code, text := w.ask(t, c.user, http.MethodPost, fleetv1alpha1.PlacementReviewsPath, c.body)
				if code != c.code {
					t.Fatalf("%d %s", code, text)
				}
				if !strings.Contains(text, c.says) {
					return errors.New(text)
				}
				if code != http.StatusCreated {
					return nil
				}
				var review fleetv1alpha1.PlacementReview
				if err := json.Unmarshal([]byte(text), &review); err != nil {
					t.Fatal(err)
				}
				m := review.Status.Moves
				if m == nil {
					t.Fatal(text)
				}
				if status, err := json.Marshal(review.Status); err != nil || c.user != "" && c.user != "erin" && strings.Contains(string(status), "ash") {
					t.Fatalf("ash is named: %s, %v", text, err)
				}
				var items []string
				for _, i := range m.Items {
					for _, c := range i.Clusters {
						if c.From != nil && c.To == nil {
							items = append(items, fmt.Sprintf("%s %s %s stays=%t", i.Of.Kind, i.Of.Name, c.Name, c.Stays))
						}
					}
				}
				slices.Sort(items)
				// oak can fail to answer for a moment.
				if diff := cmp.Diff(c.items, items); diff != "" || m.Hidden != c.hidden || m.Moving != len(m.Items)+m.Hidden || !m.Exact {
					return fmt.Errorf("%s\n%s", text, diff)
				}
				return nil
			})
		})
	}
	var policies policyv1alpha1.ClusterPropagationPolicyList
	if err := w.client.List(t.Context(), &policies); err != nil || len(policies.Items) != 1 {
		t.Errorf("policies after the reviews: %d, %v", len(policies.Items), err)
	}
}

// TestParametersOfAQuestion: the error for an unknown parameter names those that the question has,
// or says that it has none.
func TestParametersOfAQuestion(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/x?cluster=oak&timeout=1s&pretty=1", nil)
	for want, known := range map[string][]string{
		"parameter cluster: there is none such here; there is of, name":           {"of", "name"},
		"parameter cluster: there is none such here; this path has no parameters": nil,
	} {
		if _, err := parameters(r, known...); err == nil || err.Error() != want {
			t.Errorf("with %v: %v, want %s", known, err, want)
		}
	}
}
