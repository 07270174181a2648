package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/template"
)

const (
	// reportDelay is the least time between two looks at a policy's status. A look goes over everything that the policy selects: after one
	// that took long, reportRest times as long passes until the next, but at most longestRest, so that a burst of thousands of objects costs no more than a few of them.
	reportDelay   = time.Second
	reportRest    = 20
	longestRest   = 10 * time.Second
	reportWorkers = 4
	// mostNamed bounds the objects that a message names.
	mostNamed = 3
	// longestNote is how much an Event takes.
	longestNote = 1024
)

// reporter says what becomes of policies: in their status, and by an Event when their status
// turns bad. A template that no policy claims any more gets an Event too.
type reporter struct {
	client    client.Client
	recorder  events.EventRecorder
	policies  *policy.Index
	templates *template.Cache
	bindings  *binding.Cache
	classes   *classes
	clusters  func() (names []string, known bool) // of the fleet
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	delay     time.Duration // reportDelay, but in tests

	mu     sync.Mutex
	claims map[binding.Template][]types.NamespacedName         // the policies that select a template, in order
	skips  map[binding.Template]sets.Set[types.NamespacedName] // the policies that leave a template out
	rests  map[types.NamespacedName]time.Duration              // of policies whose last look took long
}

func newReporter(c client.Client, recorder events.EventRecorder, policies *policy.Index, templates *template.Cache, bindings *binding.Cache) *reporter {
	return &reporter{
		client: c, recorder: recorder, policies: policies, templates: templates, bindings: bindings, delay: reportDelay,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](reportDelay, lastRetry)),
		claims: map[binding.Template][]types.NamespacedName{},
		skips:  map[binding.Template]sets.Set[types.NamespacedName]{},
		rests:  map[types.NamespacedName]time.Duration{},
	}
}

// claimed notes which policies select a template; none when it is gone.
func (r *reporter) claimed(k binding.Template, claims []policy.Claim) {
	names := make([]types.NamespacedName, len(claims))
	for i, c := range claims {
		names[i] = policy.Name(c.Policy)
	}
	o := r.template(k)
	skips := sets.New[types.NamespacedName]()
	if o != nil {
		for _, s := range r.policies.Skipped(o) {
			skips.Insert(policy.Name(s.Policy))
		}
	}
	r.mu.Lock()
	before, left := r.claims[k], r.skips[k]
	if r.claims[k] = names; len(names) == 0 {
		delete(r.claims, k)
	}
	if r.skips[k] = skips; len(skips) == 0 {
		delete(r.skips, k)
	}
	r.mu.Unlock()
	if slices.Equal(before, names) && skips.Equal(left) {
		return
	}
	for name := range sets.New(slices.Concat(names, before)...).Union(skips).Union(left) {
		r.changed(name)
	}
	// None are claimed, too, of a template that goes, and of one whose binding must go first.
	if len(before) > 0 && len(names) == 0 && o != nil && o.GetDeletionTimestamp().IsZero() && len(r.policies.Claims(o)) == 0 {
		r.recorder.Eventf(o, nil, corev1.EventTypeWarning, "Unclaimed", "Claim",
			"no policy claims it any more: what %s placed stays in the clusters; to have it removed there, delete its binding",
			described(before[0]))
	}
}

// template looks for a template in every watched version; nil when there is none.
func (r *reporter) template(k binding.Template) *unstructured.Unstructured {
	for _, gvk := range r.templates.Versions(k.GroupKind) {
		if o, state := r.templates.Get(gvk, k.Namespace, k.Name); state == presence.Present {
			return o
		}
	}
	return nil
}

// described is a policy as messages name it.
func described(p types.NamespacedName) string {
	return policy.Kind(p.Namespace) + " " + strings.TrimPrefix(p.String(), "/")
}

// changed has a policy's status written soon, if it must be.
func (r *reporter) changed(p types.NamespacedName) {
	r.mu.Lock()
	rest := r.rests[p]
	r.mu.Unlock()
	r.queue.AddAfter(p, max(r.delay, rest))
}

// looked notes how long a look at a policy took.
func (r *reporter) looked(p types.NamespacedName, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rests[p] = min(reportRest*took, longestRest); r.rests[p] <= r.delay {
		delete(r.rests, p)
	}
}

// Start writes until ctx ends.
func (r *reporter) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	var running sync.WaitGroup
	for range reportWorkers {
		running.Go(func() {
			for {
				name, closed := r.queue.Get()
				if closed {
					return
				}
				began := time.Now()
				err := r.report(ctx, name)
				r.looked(name, time.Since(began))
				if err != nil {
					logr.FromContextOrDiscard(ctx).Error(err, "policy status is tried again",
						"kind", policy.Kind(name.Namespace), "policy", name.String())
					r.queue.AddRateLimited(name)
				} else {
					r.queue.Forget(name)
				}
				r.queue.Done(name)
			}
		})
	}
	running.Wait()
	return nil
}

// report writes one policy's status when it is not what it shall be, and says by an Event what
// of it turned bad: once, because the write fails when the status is not the one it started from.
func (r *reporter) report(ctx context.Context, name types.NamespacedName) error {
	p, ok := r.policies.Get(name)
	if !ok {
		return nil
	}
	status, known := r.status(p)
	if !known || equality.Semantic.DeepEqual(p.Status, status) {
		return nil // what is not known yet says so by an event when it is
	}
	before, after := p.DeepCopy(), p.DeepCopy()
	after.Status = status
	err := r.client.Status().Patch(ctx, scopedPolicy(after),
		client.MergeFromWithOptions(scopedPolicy(before), client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		r.changed(name) // with the policy as it is then
		return nil
	case err != nil:
		return fmt.Errorf("write status: %w", err)
	}
	for _, c := range turnedBad(p.Status.Conditions, status.Conditions) {
		r.recorder.Eventf(scopedPolicy(before), nil, corev1.EventTypeWarning, c.Reason, "Claim", "%s", note(c.Message))
	}
	return nil
}

// turnedBad are the conditions, among those that say what a policy does not get, that became
// False or are False for another reason.
func turnedBad(before, after []metav1.Condition) []metav1.Condition {
	var bad []metav1.Condition
	for _, kind := range []string{policyv1alpha1.ConditionUndisputed, policyv1alpha1.ConditionClaimed, policyv1alpha1.ConditionComplete} {
		old, now := meta.FindStatusCondition(before, kind), meta.FindStatusCondition(after, kind)
		if kind == policyv1alpha1.ConditionClaimed && now.Reason != policyv1alpha1.ReasonNoPriorityClass {
			continue // a policy that waits for its objects is not bad
		}
		if now.Status == metav1.ConditionFalse && (old == nil || old.Status != now.Status || old.Reason != now.Reason) {
			bad = append(bad, *now)
		}
	}
	return bad
}

// note is as much of a message as an Event takes.
func note(message string) string {
	if len(message) <= longestNote {
		return message
	}
	return strings.ToValidUTF8(message[:longestNote-3], "") + "..."
}

// scopedPolicy is a policy as the kind that it is on the hub.
func scopedPolicy(p *policyv1alpha1.PropagationPolicy) client.Object {
	if p.Namespace == "" {
		return (*policyv1alpha1.ClusterPropagationPolicy)(p)
	}
	return p
}

// status is what a policy's status shall be; false while some kind is not listed.
func (r *reporter) status(p *policyv1alpha1.PropagationPolicy) (policyv1alpha1.PropagationStatus, bool) {
	var invalid, unserved []string
	for _, problem := range policy.Problems(p) {
		invalid = append(invalid, problem.Error())
	}
	for _, gvk := range policy.Kinds(p) {
		if r.templates.Listed(gvk) {
			continue
		}
		err := r.templates.Watch(gvk)
		if err == nil {
			return policyv1alpha1.PropagationStatus{}, false
		}
		if other, ok := errors.AsType[*template.OtherVersionError](err); ok && !r.templates.Listed(other.Served) && r.templates.Watch(other.Served) == nil {
			r.changed(policy.Name(p))
			return policyv1alpha1.PropagationStatus{}, false
		}
		unserved = append(unserved, fmt.Sprintf("resourceSelectors[%d]: %v", selectorOf(p, gvk), err))
	}

	status := policyv1alpha1.PropagationStatus{Conditions: slices.Clone(p.Status.Conditions)}
	var lost []string
	for _, o := range selected(r.templates, p) {
		b, _ := r.bindings.Of(templateOf(o))
		claims := settled(r.policies.Claims(o), b)
		switch i := slices.IndexFunc(claims, func(c policy.Claim) bool { return policy.Name(c.Policy) == policy.Name(p) }); {
		case i < 0 || gone(o):
		case i == 0:
			status.Claimed++
		default:
			first := claims[0].Policy
			lost = append(lost, fmt.Sprintf("%s is claimed by %s", templateOf(o), described(policy.Name(first))))
		}
	}
	slices.Sort(lost)

	claimed := metav1.Condition{
		Type: policyv1alpha1.ConditionClaimed, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonClaimed,
	}
	undisputed := metav1.Condition{
		Type: policyv1alpha1.ConditionUndisputed, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonUndisputed,
	}
	if len(lost) > 0 {
		undisputed.Status, undisputed.Reason, undisputed.Message = metav1.ConditionFalse, policyv1alpha1.ReasonLostClaim, some(lost)
	}
	_, known := r.classes.of(p)
	switch {
	case !known:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonNoPriorityClass
		claimed.Message = fmt.Sprintf("schedulePriority: the hub has no PriorityClass %s: create it, or name another; "+
			"objects that are not placed yet wait for it, and those that are keep the priority that they have", className(p))
	case status.Claimed > 0:
	case len(unserved) > 0:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonKindNotServed
		claimed.Message = strings.Join(slices.Concat(unserved, invalid), "; ")
	case len(lost) > 0:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonLostClaim
		claimed.Message = "every object that the selectors match is claimed by another policy"
	default:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonNothingSelected
		claimed.Message = strings.Join(append([]string{"no object that the policy may claim matches the selectors"}, invalid...), "; ")
	}
	ready := metav1.Condition{
		Type: policyv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonReady,
	}
	for _, c := range []metav1.Condition{undisputed, claimed} {
		if c.Status != metav1.ConditionTrue {
			ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
		}
	}
	for _, c := range []metav1.Condition{ready, claimed, undisputed, r.complete(p, invalid, unserved)} {
		c.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return status, true
}

// complete says what a policy leaves out that its selectors or its placement name.
func (r *reporter) complete(p *policyv1alpha1.PropagationPolicy, invalid, unserved []string) metav1.Condition {
	var system, reserved []string
	named := false
	for k, s := range r.skipped(p) {
		if s.Reason == policyv1alpha1.ReasonSystemNamespace {
			system = append(system, k.String())
			continue
		}
		reserved = append(reserved, k.String())
		named = named || s.Named
	}
	slices.Sort(system)
	slices.Sort(reserved)

	c := metav1.Condition{Type: policyv1alpha1.ConditionComplete, Status: metav1.ConditionTrue}
	messages := slices.Concat(invalid, unserved)
	if len(system) > 0 {
		messages = append(messages, fmt.Sprintf(
			"objects of system namespaces (kube-*, orrery-*) are left out: %d (%s); "+
				"to place them, name the namespace in the selector, or as its name where it is for Namespaces",
			len(system), some(system)))
	}
	if len(reserved) > 0 {
		messages = append(messages, fmt.Sprintf("objects that every cluster makes for itself, and the hub's own, are left out: %d (%s)", len(reserved), some(reserved)))
	}
	scopeless, unknown := r.scopeless(p), r.unknownClusters(p)
	if messages = append(messages, scopeless...); unknown != "" {
		messages = append(messages, unknown)
	}
	c.Message = strings.Join(messages, "; ")
	switch {
	case len(invalid) > 0:
		c.Reason = policyv1alpha1.ReasonSelectorInvalid
	case len(unserved) > 0:
		c.Reason = policyv1alpha1.ReasonKindNotServed
	case len(system) > 0:
		c.Reason = policyv1alpha1.ReasonSystemNamespace
	case named:
		c.Reason = policyv1alpha1.ReasonReservedObject
	case len(scopeless) > 0:
		c.Reason = policyv1alpha1.ReasonClusterScoped
	case unknown != "":
		c.Reason = policyv1alpha1.ReasonUnknownCluster
	}
	if c.Reason != "" {
		c.Status = metav1.ConditionFalse
	}
	c.Reason = cmp.Or(c.Reason, policyv1alpha1.ReasonComplete)
	return c
}

// skipped returns the templates that a policy leaves out and no other policy claims. What
// changes them has the policy's status written anew.
func (r *reporter) skipped(p *policyv1alpha1.PropagationPolicy) map[binding.Template]policy.Skip {
	only := policy.NewIndex(p)
	found := map[binding.Template]policy.Skip{}
	for o := range candidates(r.templates, p) {
		for _, s := range only.Skipped(o) {
			k := templateOf(o)
			r.mu.Lock()
			if r.skips[k] == nil {
				r.skips[k] = sets.New[types.NamespacedName]()
			}
			r.skips[k].Insert(policy.Name(p))
			r.mu.Unlock()
			if !gone(o) && len(r.policies.Claims(o)) == 0 {
				found[k] = s
			}
		}
	}
	return found
}

func selectorOf(p *policyv1alpha1.PropagationPolicy, gvk schema.GroupVersionKind) int {
	return slices.IndexFunc(p.Spec.ResourceSelectors, func(s policyv1alpha1.ResourceSelector) bool {
		return schema.FromAPIVersionAndKind(s.APIVersion, s.Kind) == gvk
	})
}

// some names a few things and counts the others.
func some(things []string) string {
	if more := len(things) - mostNamed; more > 0 {
		things = append(slices.Clone(things[:mostNamed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(things, "; ")
}

// selected returns the templates that a policy selects, as far as they are listed, whoever
// else selects them.
func selected(templates *template.Cache, p *policyv1alpha1.PropagationPolicy) map[binding.Template]*unstructured.Unstructured {
	only := policy.NewIndex(p)
	found := map[binding.Template]*unstructured.Unstructured{}
	for o := range candidates(templates, p) {
		if len(only.Claims(o)) > 0 {
			found[templateOf(o)] = o
		}
	}
	return found
}

// candidates are the templates among which a policy's selectors choose, as far as they are
// listed; some come more than once. Where a selector names its object no other is looked at.
func candidates(templates *template.Cache, p *policyv1alpha1.PropagationPolicy) iter.Seq[*unstructured.Unstructured] {
	return func(yield func(*unstructured.Unstructured) bool) {
		for _, s := range p.Spec.ResourceSelectors {
			gvk, _ := templates.ListedAs(schema.FromAPIVersionAndKind(s.APIVersion, s.Kind))
			namespace := cmp.Or(p.Namespace, s.Namespace)
			if s.Name != "" {
				// Without a namespace: cluster-scoped, or one of that name in every namespace.
				if o, state := templates.Get(gvk, namespace, s.Name); state == presence.Present {
					if !yield(o) {
						return
					}
					continue
				}
				if namespace != "" {
					continue
				}
			}
			all, _ := templates.ListIn(gvk, namespace)
			for _, o := range all {
				if !yield(o) {
					return
				}
			}
		}
	}
}

func templateOf(o *unstructured.Unstructured) binding.Template {
	return binding.Template{GroupKind: o.GroupVersionKind().GroupKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}
