package hub

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// since returns the earliest time of a decision that a write which arrived at a time may carry out
// in a member. Hung requests are performed when the member answers again, so their decisions may be
// older than memory.
func (a *attack) since(m *testenv.Member, arrived time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := arrived.Add(-memory)
	if f, ok := a.faults[m.Name]; ok && (f.end.IsZero() || f.end.After(at)) {
		return f.begin.Add(-memory)
	}
	return at
}

// judge checks a write before it is passed on.
func (a *attack) judge(m *testenv.Member, r testenv.Write) {
	ns := cmp.Or(r.Namespace, r.Name)
	if !slices.Contains(attackNamespaces, ns) || r.DryRun || r.Impersonated != "" {
		return
	}
	a.judging.Lock()
	defer a.judging.Unlock()
	a.judged++
	why := a.fault(m, r)
	if why == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong = append(a.wrong, fmt.Sprintf("%s: %s: %s", m.Name, r, why))
}

// fault returns the rule that a write breaks, or "".
func (a *attack) fault(m *testenv.Member, r testenv.Write) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a.mu.Lock()
	suspended := a.suspended
	a.mu.Unlock()
	if suspended && r.Verb == "delete" {
		a.mu.Lock()
		a.early = append(a.early, fmt.Sprintf("%s: %s: the hub was restored, and nobody has confirmed it", m.Name, r))
		a.mu.Unlock()
	}
	if r.Resource == "namespaces" {
		return a.namespaceFault(ctx, m, r)
	}
	k := kindOf(r.Resource)
	if k.Kind == "" {
		return "nobody asked for it"
	}
	o, err := m.Find(ctx, k.APIVersion, k.Kind, r.Namespace, r.Name)
	if err != nil {
		return "" // the write creates the object
	}
	a.mu.Lock()
	foreign, isForeign := a.theirs[named(m, k.Kind, r.Namespace, r.Name)]
	a.mu.Unlock()
	if isForeign && foreign.UID == o.GetUID() && (r.Verb == "delete" || r.Force) {
		return "the object is not the hub's"
	}
	if uid := r.UID(); uid != "" && uid != o.GetUID() {
		return "" // the member will refuse the write
	}
	copied := types.UID(o.GetLabels()[workv1alpha2.BindingLabel])
	if r.Verb == "delete" {
		if why := a.deletionFault(ctx, m, r, o, copied); why != "" {
			return why
		}
	}
	if k.Kind == "Deployment" {
		return a.releaseFault(ctx, m, r, o, copied)
	}
	return ""
}

// namespaceFault: a namespace may be deleted only with the hub's own, and without foreign
// objects in it.
func (a *attack) namespaceFault(ctx context.Context, m *testenv.Member, r testenv.Write) string {
	if r.Verb != "delete" {
		return ""
	}
	a.mu.Lock()
	_, deleted := a.deleted["Namespace /"+r.Name]
	var inIt []string
	for name, s := range a.theirs {
		if member, rest, _ := strings.Cut(name, " "); member == m.Name && strings.Contains(rest, " "+r.Name+"/") && r.Time.Sub(s.made) > memory {
			inIt = append(inIt, rest)
		}
	}
	a.mu.Unlock()
	if !deleted {
		return "nobody deleted the hub's namespace"
	}
	for _, foreign := range inIt {
		kind, name, _ := strings.Cut(foreign, " ")
		i := slices.IndexFunc(spine.Kinds, func(k spine.Kind) bool { return k.Kind == kind })
		if _, err := m.Find(ctx, spine.Kinds[i].APIVersion, kind, r.Name, name[strings.Index(name, "/")+1:]); err == nil {
			return "in it is " + foreign
		}
	}
	return ""
}

// deletionFault: a copy of this join may be deleted only if its template was deleted or moved
// elsewhere.
func (a *attack) deletionFault(ctx context.Context, m *testenv.Member, r testenv.Write, o *unstructured.Unstructured, binding types.UID) string {
	if binding == "" {
		return "the object has no mark of a binding"
	}
	at := a.since(m, r.Time)
	if c, err := a.admin.Find(ctx, "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name); err == nil && at.Add(2*memory).After(r.Time) && ofAnotherJoin(o, c.GetUID()) {
		return "the object is of an earlier join"
	}
	_, err := a.history.list(ctx)
	p := a.history.since(binding, at)
	switch {
	case p == nil && err == nil:
		return "there never was its binding " + string(binding)
	case p == nil:
		return "" // the answer is unknown
	case p.deleting:
		a.mu.Lock()
		defer a.mu.Unlock()
		_, one := a.deleted[o.GetKind()+" "+r.Namespace+"/"+r.Name]
		_, all := a.deleted["Namespace /"+r.Namespace]
		if !one && !all {
			return "nobody deleted its template, and its binding is gone"
		}
		return ""
	case err != nil:
		return "" // the current binding cannot be read
	}
	for _, s := range p.said {
		if _, named := s.clusters[m.Name]; !named {
			return ""
		}
	}
	return "its binding names the cluster"
}

// rollout describes the progress of a Deployment's own rollout of new pods, or returns "".
func rollout(d *unstructured.Unstructured) string {
	observed, _, _ := unstructured.NestedInt64(d.Object, "status", "observedGeneration")
	updated, _, _ := unstructured.NestedInt64(d.Object, "status", "updatedReplicas")
	all, _, _ := unstructured.NestedInt64(d.Object, "status", "replicas")
	if observed == d.GetGeneration() && updated == all {
		return ""
	}
	return fmt.Sprintf(" (rolls out: generation %d, observed %d; %d pods, %d of them new)", d.GetGeneration(), observed, all, updated)
}

// releaseFault: replicas may be removed only if enough stay available: as many as are wanted,
// or as many as were available.
func (a *attack) releaseFault(ctx context.Context, m *testenv.Member, r testenv.Write, now *unstructured.Unstructured, binding types.UID) string {
	n, ok := r.Replicas()
	if r.Verb == "delete" {
		n, ok = 0, true
	}
	if !ok {
		return ""
	}
	key := r.Namespace + "/" + r.Name
	before := spine.Replicas(now)
	if p, ok := a.pending[m.Name+" "+key]; ok && p.concerns(now) {
		before = min(before, p.replicas)
	}
	a.pending[m.Name+" "+key] = intended{time.Now(), now.GetUID(), n}
	if n >= before {
		return ""
	}
	a.mu.Lock()
	down := time.Since(a.scaled[key]) < scaling
	a.mu.Unlock()
	p := a.history.since(binding, a.since(m, r.Time))
	if down || p == nil || p.deleting {
		return ""
	}
	wanted := int64(-1)
	for _, s := range p.said {
		sum := int64(0)
		for _, n := range s.clusters {
			sum += n
		}
		if wanted < 0 || sum < wanted {
			wanted = sum
		}
	}
	var available, left int64
	var each []string
	for _, other := range spine.Members.List {
		d, err := other.Find(ctx, "apps/v1", "Deployment", r.Namespace, r.Name)
		if spine.Unanswered(err) {
			return "" // the answer is unknown
		}
		if err != nil {
			each = append(each, fmt.Sprintf("%s: %v", other.Name, err))
			continue
		}
		can := min(spine.AvailableReplicas(d), spine.Replicas(d))
		if rollout(d) != "" {
			// An edit of the pods takes up to a quarter of them away (the default of
			// maxUnavailable, rounded down), also without a move, and may have come after the
			// decision.
			can = min(can+spine.Replicas(d)/4, spine.Replicas(d))
		}
		each = append(each, fmt.Sprintf("%s: %d available of %d%s, %+v lately", other.Name, spine.AvailableReplicas(d), spine.Replicas(d), rollout(d), a.pending[other.Name+" "+key]))
		if p, ok := a.pending[other.Name+" "+key]; ok && p.concerns(d) && other != m {
			can = min(can, p.replicas)
		}
		if other == m {
			available += min(can, before)
			left += min(can, n)
		} else {
			available += can
			left += can
		}
	}
	if left < min(wanted, available) {
		return fmt.Sprintf("it leaves %d available replicas of %d, and %d are wanted (%d before; %s; the binding said %+v)", left, available, wanted, before,
			strings.Join(each, "; "), p.said)
	}
	return ""
}
