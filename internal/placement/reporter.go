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
	// reportDelay is the shortest time between two computations of the status of a policy. A
	// computation visits all objects that the policy selects. After a computation, reportRest times
	// its duration passes before the next one, at most longestRest. So a burst of thousands of changes
	// costs only a few computations.
	reportDelay   = time.Second
	reportRest    = 20
	longestRest   = 10 * time.Second
	reportWorkers = 4
	// mostNamed is the number of objects that a message names at most. It counts the others.
	mostNamed = 3
	// longestNote is the longest note that an Event may have, in bytes.
	longestNote = 1024
)

// reporter writes the status of policies, and sends an Event for a condition that turns bad. It
// also sends an Event for a template that no policy selects any more. Its methods may be called
// from several goroutines.
type reporter struct {
	client    client.Client
	recorder  events.EventRecorder
	policies  *policy.Index
	templates *template.Cache
	bindings  *binding.Cache
	classes   *classes
	// See Controller.clustersOf. nil in tests.
	clusters func(namespace string) (names []string, fenced, known bool)
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName] // names of policies
	delay    time.Duration                                              // reportDelay, except in tests

	mu     sync.Mutex
	claims map[binding.Template][]types.NamespacedName         // policies that select a template
	skips  map[binding.Template]sets.Set[types.NamespacedName] // policies that skip a template
	rests  map[types.NamespacedName]time.Duration              // delays after slow computations
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

// claimed records which policies select the template k, in order; none if the template is gone. If
// that changed, it queues the status of these policies and of the former ones. It sends an Event
// for an existing template that lost its last policy.
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
	// Reconcile also reports no claims for a template that is being deleted, or whose binding is that
	// of an earlier object.
	if len(before) > 0 && len(names) == 0 && o != nil && o.GetDeletionTimestamp().IsZero() && len(r.policies.Claims(o)) == 0 {
		r.recorder.Eventf(o, nil, corev1.EventTypeWarning, "Unclaimed", "Claim",
			"no policy selects it any more: the copies that %s placed stay in the clusters; to delete them, delete its binding",
			described(before[0]))
	}
}

// template returns a template in any version that the hub watches; nil if it is not known.
func (r *reporter) template(k binding.Template) *unstructured.Unstructured {
	for _, gvk := range r.templates.Versions(k.GroupKind) {
		if o, state := r.templates.Get(gvk, k.Namespace, k.Name); state == presence.Present {
			return o
		}
	}
	return nil
}

// described returns the kind and name of a policy for messages.
func described(p types.NamespacedName) string {
	return policy.Kind(p.Namespace) + " " + strings.TrimPrefix(p.String(), "/")
}

// changed queues the computation of the status of the policy p, after a delay. Several calls before
// that cause one computation.
func (r *reporter) changed(p types.NamespacedName) {
	r.mu.Lock()
	rest := r.rests[p]
	r.mu.Unlock()
	r.queue.AddAfter(p, max(r.delay, rest))
}

// looked records how long the computation of a policy's status took. After a long one, changed
// delays the next computation.
func (r *reporter) looked(p types.NamespacedName, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rests[p] = min(reportRest*took, longestRest); r.rests[p] <= r.delay {
		delete(r.rests, p)
	}
}

// Start implements manager.Runnable: it computes and writes queued statuses until ctx ends, and
// then returns nil.
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

// report writes the status of the policy with the name if it changed, and sends Events for
// conditions that turned bad. The write fails if the stored status is not the one that was
// compared; then the policy is queued again. So each Event is sent once. A missing policy is no
// error.
func (r *reporter) report(ctx context.Context, name types.NamespacedName) error {
	p, ok := r.policies.Get(name)
	if !ok {
		return nil
	}
	status, known := r.status(p)
	if !known || equality.Semantic.DeepEqual(p.Status, status) {
		return nil // an event requeues the policy when the status is known
	}
	before, after := p.DeepCopy(), p.DeepCopy()
	after.Status = status
	err := r.client.Status().Patch(ctx, scopedPolicy(after),
		client.MergeFromWithOptions(scopedPolicy(before), client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		r.changed(name) // compute again with the newer policy
		return nil
	case err != nil:
		return fmt.Errorf("write status: %w", err)
	}
	for _, c := range turnedBad(p.Status.Conditions, status.Conditions) {
		r.recorder.Eventf(scopedPolicy(before), nil, corev1.EventTypeWarning, c.Reason, "Claim", "%s", note(c.Message))
	}
	return nil
}

// turnedBad returns the conditions in after that became False since before, or are False for
// another reason. It compares only Undisputed, Claimed and Complete, all of which after must have.
// Claimed counts only if the policy waits for a PriorityClass.
func turnedBad(before, after []metav1.Condition) []metav1.Condition {
	var bad []metav1.Condition
	for _, kind := range []string{policyv1alpha1.ConditionUndisputed, policyv1alpha1.ConditionClaimed, policyv1alpha1.ConditionComplete} {
		old, now := meta.FindStatusCondition(before, kind), meta.FindStatusCondition(after, kind)
		if kind == policyv1alpha1.ConditionClaimed && now.Reason != policyv1alpha1.ReasonNoPriorityClass {
			continue // waiting for objects is not bad
		}
		if now.Status == metav1.ConditionFalse && (old == nil || old.Status != now.Status || old.Reason != now.Reason) {
			bad = append(bad, *now)
		}
	}
	return bad
}

// note returns a message for an Event. A message that is longer than longestNote bytes is cut and
// ends with "...".
func note(message string) string {
	if len(message) <= longestNote {
		return message
	}
	return strings.ToValidUTF8(message[:longestNote-3], "") + "..."
}

// scopedPolicy returns a policy as the API type that the hub stores: p itself, or a
// ClusterPropagationPolicy if p has no namespace. The result shares the content of p.
func scopedPolicy(p *policyv1alpha1.PropagationPolicy) client.Object {
	if p.Namespace == "" {
		return (*policyv1alpha1.ClusterPropagationPolicy)(p)
	}
	return p
}

// status returns the status that a policy is to have. It returns false while a kind of the policy
// is not listed yet; the event after the list then queues the policy. It also starts the watches of
// the kinds of the policy.
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
			lost = append(lost, templateOf(o).String()+": "+policy.Loses(claims[0], claims[i]))
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
		claimed.Message = fmt.Sprintf("schedulePriority: the hub has no PriorityClass %s: create it, or name another one; "+
			"objects that are not placed yet wait for it, and placed objects keep their priority", className(p))
	case status.Claimed > 0:
	case len(unserved) > 0:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonKindNotServed
		claimed.Message = strings.Join(slices.Concat(unserved, invalid), "; ")
	case len(lost) > 0:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonLostClaim
		claimed.Message = "other policies place every object that the selectors match: raise the priority of this policy, or delete it"
	default:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonNothingSelected
		claimed.Message = strings.Join(append([]string{"no object that the policy may place matches the selectors"}, invalid...), "; ")
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

// complete returns the condition Complete, which says whether everything that the policy names is
// placed. invalid are messages about invalid selectors, and unserved about kinds that the hub does
// not serve.
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
				"to place them, name the namespace in the selector; in a selector for Namespaces, name it in the field name",
			len(system), some(system)))
	}
	if len(reserved) > 0 {
		messages = append(messages, fmt.Sprintf("objects that every cluster creates itself, and objects of the hub, are left out: %d (%s)", len(reserved), some(reserved)))
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

// skipped returns the templates that the selectors of a policy match but that the policy skips, and
// that no other policy claims. These are objects in system namespaces, and objects that no policy
// may place. It also records the skips, so that a change of such a template queues the status of
// the policy.
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

// selectorOf returns the index of the first selector of a policy that names the kind in this
// version; -1 if there is none.
func selectorOf(p *policyv1alpha1.PropagationPolicy, gvk schema.GroupVersionKind) int {
	return slices.IndexFunc(p.Spec.ResourceSelectors, func(s policyv1alpha1.ResourceSelector) bool {
		return schema.FromAPIVersionAndKind(s.APIVersion, s.Kind) == gvk
	})
}

// some joins the first mostNamed texts with "; ", and adds the number of the others.
func some(things []string) string {
	if more := len(things) - mostNamed; more > 0 {
		things = append(slices.Clone(things[:mostNamed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(things, "; ")
}

// selected returns the templates that a policy selects, by key. Another policy may claim some of
// them. Templates of kinds that the hub has not listed yet are left out.
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

// candidates returns the listed templates that the selectors of a policy may match, by kind,
// namespace and name; labels are not compared. It may return a template several times.
func candidates(templates *template.Cache, p *policyv1alpha1.PropagationPolicy) iter.Seq[*unstructured.Unstructured] {
	return func(yield func(*unstructured.Unstructured) bool) {
		for _, s := range p.Spec.ResourceSelectors {
			gvk, _ := templates.ListedAs(schema.FromAPIVersionAndKind(s.APIVersion, s.Kind))
			namespace := cmp.Or(p.Namespace, s.Namespace)
			if s.Name != "" {
				// Without a namespace, the selector matches a cluster-scoped object or, if Get returns
				// none, objects with that name in every namespace.
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

// templateOf returns the key of an object on the hub: its group, kind, namespace and name.
func templateOf(o *unstructured.Unstructured) binding.Template {
	return binding.Template{GroupKind: o.GroupVersionKind().GroupKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}
