package explanation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
)

// someFacts returns facts about a Deployment that a policy places in oak and elm, after the
// decision and the applies.
func someFacts() facts {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("apps/v1")
	o.SetKind("Deployment")
	o.SetNamespace("shop")
	o.SetName("web")
	o.SetUID("web")
	o.SetGeneration(3)
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment", UID: "binding"},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Generation: 3},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "web"}, PlacementHash: "hash",
			Clusters: []workv1alpha2.TargetCluster{{Name: "elm", Replicas: new(int32(1))}, {Name: "oak", Replicas: new(int32(2))}},
		},
	}
	p := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 2}}
	applied := fleetv1alpha1.PlacementResult{Applied: true, Reason: workv1alpha2.ReasonFullyApplied, Current: true}
	return facts{
		subject:   &subject{object: o, binding: b, visibility: visibility{everything: true, sees: func(string) bool { return true }}},
		placeable: true, known: true,
		claims:  placement.Claims{Order: []policy.Claim{{Policy: p}}, Hash: "hash"},
		outcome: &placement.Outcome{Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Message: "2 of 3 clusters; ash: it does not answer"},
		decision: &records.Decision{
			Binding: "binding", Template: records.Template{UID: "web", Generation: 1}, Time: time.Unix(1, 0), PlacementHash: "hash",
			Reason: workv1alpha2.ReasonScheduled, Message: "2 of 3 clusters; ash: it does not answer", Replicas: new(int32(3)), Divided: true,
			Targets:  []records.Target{{Cluster: "elm", Replicas: new(int32(1))}, {Cluster: "oak", Replicas: new(int32(2))}},
			Verdicts: []records.Verdict{{Reason: "Unreachable", Message: "it does not answer", Clusters: []string{"ash"}}},
		},
		results: map[string]fleetv1alpha1.PlacementResult{"elm": applied, "oak": applied}, recorded: true,
		copies: []string{"elm", "oak"}, keeping: []string{"elm", "oak"},
	}
}

func TestExplain(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(f *facts)
		state   fleetv1alpha1.PlacementState
		current bool
		message string   // a part
		waits   []string // FOR CLUSTERS
	}{
		"Placed":            {func(*facts) {}, fleetv1alpha1.PlacementPlaced, true, "it is placed in 2 clusters by PropagationPolicy shop/web", nil},
		"TemplateIsNewer":   {func(f *facts) { f.object.SetGeneration(4) }, fleetv1alpha1.PlacementPlaced, false, "placed in 2 clusters", []string{"Decision []"}},
		"PolicyIsNewer":     {func(f *facts) { f.claims.Hash = "another" }, fleetv1alpha1.PlacementPlaced, false, "placed in 2 clusters", nil},
		"DecidedAnewSince":  {func(f *facts) { f.decision.Targets = f.decision.Targets[1:] }, fleetv1alpha1.PlacementPlaced, false, "placed in 2 clusters", nil},
		"NoRecord":          {func(f *facts) { f.decision = nil }, fleetv1alpha1.PlacementPlaced, true, "the reason is unknown: the hub has no record of the decision", nil},
		"Unreadable":        {func(f *facts) { f.decision, f.unread = nil, errors.New("disk") }, fleetv1alpha1.PlacementPlaced, true, "the hub's records cannot be read now", nil},
		"NothingIsKnownYet": {func(f *facts) { f.known = false }, fleetv1alpha1.PlacementUnknown, false, "try again in a few seconds", nil},
		"Undecided":         {func(f *facts) { f.binding = nil }, fleetv1alpha1.PlacementWaiting, false, "PropagationPolicy shop/web selects it; its clusters are chosen in a moment", []string{"Decision []"}},
		"NoClass":           {func(f *facts) { f.binding, f.claims.NoClass = nil, "urgent" }, fleetv1alpha1.PlacementWaiting, false, "PriorityClass urgent", []string{"PriorityClass []"}},
		"Unclaimed":         {func(f *facts) { f.binding, f.claims = nil, placement.Claims{} }, fleetv1alpha1.PlacementUnclaimed, true, "no policy places it, so it is on the hub only: create a PropagationPolicy that selects it", nil},
		"Reserved":          {func(f *facts) { f.binding, f.claims, f.placeable = nil, placement.Claims{}, false }, fleetv1alpha1.PlacementReserved, true, "no policy may place it", nil},
		"PolicyGone":        {func(f *facts) { f.claims = placement.Claims{} }, fleetv1alpha1.PlacementPlaced, true, "no policy selects it any more, and its copies stay", nil},
		"Nowhere": {func(f *facts) {
			f.binding.Spec.Clusters, f.decision = nil, nil
			f.outcome = &placement.Outcome{Reason: workv1alpha2.ReasonNoClusterFits, Message: "no cluster fits; ash: it does not answer"}
		}, fleetv1alpha1.PlacementNowhere, true, "no cluster fits; ash: it does not answer", []string{"Room []"}},
		"NowhereOfAnEarlierProcess": {func(f *facts) {
			f.binding.Spec.Clusters, f.decision, f.outcome = nil, nil, nil
			f.binding.Status.Conditions = []metav1.Condition{{Type: workv1alpha2.ConditionScheduled, Reason: workv1alpha2.ReasonNoClusterFits, Message: "no cluster fits; all left"}}
		}, fleetv1alpha1.PlacementNowhere, true, "all left", []string{"Room []"}},
		"Removed": {func(f *facts) { f.binding.DeletionTimestamp = new(metav1.Now()) }, fleetv1alpha1.PlacementWaiting, false, "is being removed", []string{"Removal [elm oak]"}},
		"RemovedAndKept": {func(f *facts) {
			f.binding.DeletionTimestamp = new(metav1.Now())
			f.results["oak"] = fleetv1alpha1.PlacementResult{Reason: workv1alpha2.ReasonListFails, Message: "the cluster cannot list it", Current: true}
		}, fleetv1alpha1.PlacementWaiting, false, "is being removed", []string{"Removal [elm]", "Removal [oak]"}},
		"RemovedAndAway": {func(f *facts) {
			f.binding.DeletionTimestamp, f.away = new(metav1.Now()), []string{"elm"}
		}, fleetv1alpha1.PlacementWaiting, false, "is being removed", []string{"Removal [oak]", "Removal [elm]"}},
		"Gone": {func(f *facts) {
			f.gone, f.claims, f.copies, f.keeping = true, placement.Claims{}, nil, []string{"oak"}
			f.binding.DeletionTimestamp = new(metav1.Now())
		}, fleetv1alpha1.PlacementWaiting, false, "it was deleted on the hub, and its copies are being deleted", []string{"Removal [oak]"}},
		"DeletionWaits": {func(f *facts) {
			f.object.SetDeletionTimestamp(new(metav1.Now()))
			f.object.SetFinalizers([]string{"example.com/cleanup"})
		}, fleetv1alpha1.PlacementPlaced, true, "; its deletion waits", []string{"Finalizer []"}},
		"Contested": {func(f *facts) { f.contests = map[string]string{"oak": "x"} }, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", []string{"Contest [oak]"}},
		"ContestedWhereNobodySeesIt": {func(f *facts) {
			f.contests = map[string]string{"oak": "x"}
			f.visibility = visibility{fenced: true, sees: func(cluster string) bool { return cluster != "oak" }}
		}, fleetv1alpha1.PlacementPlaced, true, "you may not see 1 of them", nil},
		"DeletionGoesOn": {func(f *facts) {
			f.object.SetDeletionTimestamp(new(metav1.Now()))
			f.object.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
		}, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", nil},
		"OfAnEarlierObject": {func(f *facts) { f.object.SetUID("other") }, fleetv1alpha1.PlacementWaiting, false, "an earlier object of its name", nil},
		"Moves": {func(f *facts) {
			f.binding.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "ash"}}
			f.waiting = []string{"ash"}
		}, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", []string{"Availability [ash]"}},
		"Evicted": {func(f *facts) {
			taint := workv1alpha2.GracefulEvictionTask{Reason: workv1alpha2.ReasonTaintUntolerated, Message: "taint a:NoExecute"}
			for cluster, purge := range map[string]policyv1alpha1.PurgeMode{
				"ash": policyv1alpha1.PurgeGracefully, "birch": policyv1alpha1.PurgeDirectly, "pine": policyv1alpha1.PurgeGracefully, "yew": policyv1alpha1.PurgeNever,
			} {
				taint.FromCluster, taint.PurgeMode = cluster, purge
				f.binding.Spec.GracefulEvictionTasks = append(f.binding.Spec.GracefulEvictionTasks, taint)
			}
			f.waiting = []string{"birch", "elm"}
		}, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", []string{"Availability [ash pine]", "Availability [birch]", "Availability [yew]", "Availability [elm]"}},
		"Refused": {func(f *facts) {
			f.results["oak"] = fleetv1alpha1.PlacementResult{Reason: workv1alpha2.ReasonRejected, Message: "no", Current: true}
			f.results["elm"] = fleetv1alpha1.PlacementResult{Reason: workv1alpha2.ReasonClusterUnreachable, Message: "the cluster cannot be reached", Current: true}
		}, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", []string{"Cluster [elm]", "Apply [oak]"}},
		"NotApplied": {func(f *facts) { f.results = nil }, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", []string{"Apply [elm oak]"}},
		"OverrideMissing": {func(f *facts) {
			f.missing = []string{"OverridePolicy shop/v"}
			f.results["oak"] = fleetv1alpha1.PlacementResult{Reason: workv1alpha2.ReasonOverrideMissing, Current: true}
		}, fleetv1alpha1.PlacementPlaced, true, "placed in 2 clusters", []string{"Override []"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := someFacts()
			c.change(&f)
			e := explain(f)
			var waits []string
			for _, w := range e.Waits {
				waits = append(waits, fmt.Sprint(w.For, " ", w.Clusters))
			}
			if e.State != c.state || e.Current != c.current || !strings.Contains(e.Message, c.message) {
				t.Errorf("%s, current %v: %s", e.State, e.Current, e.Message)
			}
			if name == "OfAnEarlierObject" {
				return // it waits for the removal, which has not begun
			}
			if diff := cmp.Diff(c.waits, waits); diff != "" {
				t.Errorf("waits (-want +got)\n%s", diff)
			}
		})
	}
}

// TestUnreadableResults: while the records cannot be read, the result of a cluster that this
// process does not know is reported as unknown, not as missing.
func TestUnreadableResults(t *testing.T) {
	f := someFacts()
	delete(f.results, "oak")
	f.recorded = false
	waits := explain(f).Waits
	if len(waits) != 1 || waits[0].For != fleetv1alpha1.WaitApply || !strings.Contains(waits[0].Message, "is unknown: the hub's records cannot be read now") ||
		!cmp.Equal(waits[0].Clusters, []string{"oak"}) {
		t.Errorf("%+v", waits)
	}
}

// TestHiddenClustersAreNotNamed: with any facts, no text of an explanation or a review names a
// cluster that the caller may not see. Messages name clusters that the caller sees and those
// that have the object: decisions are made on no others.
func TestHiddenClustersAreNotNamed(t *testing.T) {
	const seed = 20
	random := rand.New(rand.NewPCG(seed, seed))
	// The last one is also the name of the policy.
	names := []string{"ash", "elm", "oak", "eu-west.1", "pine", "web"}
	for round := range 300 {
		f := someFacts()
		f.object.SetName("shopfront")
		hidden := map[string]bool{}
		for _, n := range names {
			hidden[n] = n != "oak" && random.IntN(2) == 0
		}
		hidden["web"] = false
		f.visibility = visibility{fenced: true, sees: func(n string) bool { return !hidden[n] }}
		one := func() string { return names[random.IntN(len(names))] }
		own := []string{one(), one(), one()}
		some := func() string { return own[random.IntN(len(own))] }
		text := func() string {
			named := func() string {
				if n := one(); !hidden[n] {
					return n
				}
				return some()
			}
			return fmt.Sprintf("1 of 2 clusters; %s: it does not answer; the free capacity of %s, %s is unknown; what runs in %s stays", named(), named(), named(), named())
		}
		f.decision.Message, f.outcome.Message, f.outcome.Reason = text(), text(), workv1alpha2.ReasonInsufficient
		f.decision.Verdicts = append(f.decision.Verdicts, records.Verdict{Reason: "Tainted", Message: "a taint", Clusters: []string{one(), one()}})
		f.decision.Targets = []records.Target{{Cluster: own[0]}, {Cluster: own[1]}, {Cluster: own[2]}}
		if random.IntN(3) == 0 {
			f.decision.PlacementHash = "of before"
		}
		if random.IntN(3) == 0 {
			f.decision = nil
		}
		f.binding.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: own[0]}, {Name: own[1]}, {Name: own[2]}}
		f.binding.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: some()}}
		f.waiting, f.copies = []string{some()}, []string{some()}
		f.keeping = []string{some(), some()}
		f.contests = map[string]string{some(): "it is changed"}
		f.overrides = []fleetv1alpha1.ExplainedPolicy{{Kind: "OverridePolicy", Name: "v", Clusters: []string{some(), some()}}}
		f.results = map[string]fleetv1alpha1.PlacementResult{some(): {Message: text()}, some(): {Reason: workv1alpha2.ReasonClusterUnreachable, Message: text()}}
		if random.IntN(4) == 0 {
			f.binding.DeletionTimestamp = new(metav1.Now())
		}
		review := placement.Decision{Spec: &f.binding.Spec, Outcome: *f.outcome}
		if f.decision != nil {
			review.Record = *f.decision
		}
		for _, answer := range []any{explain(f), answered(review, f.visibility)} {
			said, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			for n, is := range hidden {
				if is && strings.Contains(string(said), n) {
					t.Fatalf("seed %d, round %d: %s is named: %s", seed, round, n, said)
				}
			}
		}
	}
}

// TestHiddenIsAbsent: a caller who may not see pine gets the same answer as for a name that no
// cluster has. The answer does not say that pine was judged and rejected. A text with its name,
// such as a member's refusal of a value, is shown as with any other name.
func TestHiddenIsAbsent(t *testing.T) {
	said := func(name string, judged bool, v visibility) string {
		f := someFacts()
		f.visibility = v
		text := "1 of 2 clusters; " + name + ": UnknownCluster, no cluster that the namespace may use has this name: correct the policy, or join the cluster"
		f.decision.Message, f.outcome.Message, f.outcome.Reason = text, text, workv1alpha2.ReasonInsufficient
		refused := fmt.Sprintf("spec.x: Invalid value: %q", name)
		f.results["oak"] = fleetv1alpha1.PlacementResult{Reason: workv1alpha2.ReasonRejected, Message: refused, Current: true}
		if judged {
			f.decision.Verdicts = append(f.decision.Verdicts,
				records.Verdict{Reason: scheduler.ReasonFenced, Message: "ClusterAccess shop lets its namespace into other clusters only", Clusters: []string{"pine"}},
				records.Verdict{Reason: "Unreachable", Message: "it does not answer", Clusters: []string{"pine"}})
		} else {
			f.decision.Verdicts = append(f.decision.Verdicts, records.Verdict{Reason: scheduler.ReasonUnknownCluster, Clusters: []string{name}})
		}
		review := placement.Decision{Spec: &f.binding.Spec, Outcome: *f.outcome, Record: *f.decision}
		move := placement.Move{Object: f.object, After: &f.binding.Spec, Outcome: *f.outcome}
		text = ""
		for _, answer := range []any{explain(f), answered(review, v), moving(move, v)} {
			one, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			text += string(one) + "\n"
		}
		return text
	}
	some := visibility{fenced: true, sees: func(cluster string) bool { return cluster == "elm" || cluster == "oak" }}
	hidden, absent := said("pine", true, some), said("yews", false, some)
	if diff := cmp.Diff(strings.ReplaceAll(absent, "yews", "pine"), hidden); diff != "" {
		t.Errorf("-absent +hidden:\n%s", diff)
	}
	if strings.Contains(hidden, "ClusterAccess") || strings.Contains(hidden, `"hidden"`) {
		t.Errorf("hidden clusters are told: %s", hidden)
	}
	if all := said("pine", true, visibility{everything: true, sees: func(string) bool { return true }}); !strings.Contains(all, "ClusterAccess shop lets") {
		t.Errorf("who sees all is not told why: %s", all)
	}
}

// TestMovesOfAnEviction: an old copy that goes at once does not count as one that stays. One that
// stays for ever does not wait for other clusters.
func TestMovesOfAnEviction(t *testing.T) {
	for purge, want := range map[policyv1alpha1.PurgeMode]struct{ stays, unmanaged, atOnce bool }{
		"": {stays: true}, policyv1alpha1.PurgeGracefully: {stays: true}, policyv1alpha1.PurgeNever: {unmanaged: true}, policyv1alpha1.PurgeDirectly: {atOnce: true},
	} {
		f := someFacts()
		after := f.binding.Spec.DeepCopy()
		after.Clusters, after.GracefulEvictionTasks = nil, []workv1alpha2.GracefulEvictionTask{{FromCluster: "elm", PurgeMode: purge}, {FromCluster: "oak", PurgeMode: purge}}
		move := moving(placement.Move{Object: f.object, Before: f.binding, After: after}, f.visibility)
		if len(move.Clusters) != 2 || move.AtOnce != want.atOnce {
			t.Errorf("%q: %+v", purge, move)
		}
		for _, c := range move.Clusters {
			if c.Stays != want.stays || c.Unmanaged != want.unmanaged {
				t.Errorf("%q: %+v", purge, c)
			}
		}
	}
}

// TestSupposedClusterIsOneChange: a review of a cluster with no change, or with several, is
// invalid. An empty list of taints is a change.
func TestSupposedClusterIsOneChange(t *testing.T) {
	refused := errors.New("refused")
	may := Authorize(func(context.Context, authorizationv1.ResourceAttributes) error { return refused })
	taints := []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}
	for name, c := range map[string]struct {
		supposed fleetv1alpha1.SupposedCluster
		valid    bool
		tainted  bool
	}{
		"Nothing":         {fleetv1alpha1.SupposedCluster{}, false, false},
		"Leaves":          {fleetv1alpha1.SupposedCluster{Leaves: true}, true, false},
		"NoLabels":        {fleetv1alpha1.SupposedCluster{Labels: map[string]string{}}, true, false},
		"Taints":          {fleetv1alpha1.SupposedCluster{Taints: taints}, true, true},
		"NoTaints":        {fleetv1alpha1.SupposedCluster{Taints: []corev1.Taint{}}, true, true},
		"LabelsAndTaints": {fleetv1alpha1.SupposedCluster{Labels: map[string]string{}, Taints: taints}, false, true},
		"LeavesAndTaints": {fleetv1alpha1.SupposedCluster{Leaves: true, Taints: taints}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.supposed.Name = "oak"
			what, err := (&Explainer{}).supposeCluster(t.Context(), may, &c.supposed)
			if apierrors.IsBadRequest(err) == c.valid || c.valid && !errors.Is(err, refused) {
				t.Errorf("error %v", err)
			}
			if what.Tainted != c.tainted || len(what.Taints) != len(c.supposed.Taints) {
				t.Errorf("%+v", what)
			}
		})
	}
}

// TestClosedSinceTheDecision: a caller who sees every cluster sees which are closed now, even
// those that the decision did not know.
func TestClosedSinceTheDecision(t *testing.T) {
	f := someFacts()
	f.closed = map[string]string{"ash": "why", "oak": "why", "pine": "why"}
	got := map[string]string{}
	for _, c := range explain(f).Clusters {
		for _, v := range c.Verdicts {
			got[c.Name] += v.Reason + " "
		}
	}
	if diff := cmp.Diff(map[string]string{"ash": "Fenced Unreachable ", "pine": "Fenced "}, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func TestParse(t *testing.T) {
	for of, want := range map[string]string{
		"Deployment.apps/shop/web": "Deployment.apps shop web", "Namespace/shop": "Namespace  shop", "ConfigMap/shop/a.b": "ConfigMap shop a.b",
		"a": "", "a/b/c/d": "", "/b": "", "a//b": "", "a/": "", "": "",
	} {
		r, err := parse(of)
		got := ""
		if err == nil {
			got = fmt.Sprintf("%s %s %s", r.kind, r.namespace, r.name)
		}
		if got != want {
			t.Errorf("%q is %q, %v; want %q", of, got, err, want)
		}
	}
}

// TestMovesAreBounded: of many moves the first are listed, those that lose something before the
// others. All are counted, and no object is named that the caller may not get.
func TestMovesAreBounded(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	var result placement.Moves
	for i := range 250 {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": []string{"ConfigMap", "Gone"}[i/249]}}
		o.SetNamespace([]string{"shop", "vault"}[i%2])
		o.SetName(fmt.Sprint("object-", i))
		m := placement.Move{Object: o, After: &workv1alpha2.BindingSpec{Clusters: []workv1alpha2.TargetCluster{{Name: "oak"}}}}
		if i == 200 {
			m.Before, m.After = &workv1alpha2.ResourceBinding{Spec: *m.After}, &workv1alpha2.BindingSpec{}
		}
		result.Moving = append(result.Moving, m)
	}
	asked := 0
	a := &audience{Explainer: New(Options{Mapper: mapper}), until: time.Now().Add(time.Hour), kinds: map[scope]rights{}}
	a.may = func(_ context.Context, what authorizationv1.ResourceAttributes) error {
		if asked++; what.Namespace == "vault" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: what.Resource}, "", nil)
		}
		return nil
	}
	moves, err := a.tell(t.Context(), result)
	if err != nil {
		t.Fatal(err)
	}
	if len(moves.Items) != mostMoves || moves.Moving != 250 || moves.Hidden != 125 || asked > 4 {
		t.Errorf("%d of %d moves, %d hidden, after %d questions", len(moves.Items), moves.Moving, moves.Hidden, asked)
	}
	if first := moves.Items[0]; first.Of.Name != "object-200" || !first.AtOnce {
		t.Errorf("the first is %+v", first)
	}
	for _, m := range moves.Items {
		if m.Of.Namespace != "shop" {
			t.Errorf("%s/%s is named", m.Of.Namespace, m.Of.Name)
		}
	}
	a.until = time.Now()
	if moves, err = a.tell(t.Context(), result); err != nil || moves.Hidden != 250 || len(moves.Items) != 0 {
		t.Errorf("without time: %+v, %v", moves, err)
	}
}
