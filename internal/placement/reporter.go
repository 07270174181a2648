package placement

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/template"
)

const (
	// reportDelay is the least time between two writes of a policy's status.
	reportDelay   = time.Second
	reportWorkers = 4
	// mostNamed bounds the objects that a message names.
	mostNamed = 3
)

// reporter writes the status of policies: what they claim, and who is before them.
type reporter struct {
	client    client.Client
	policies  *policy.Index
	templates *template.Cache
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu     sync.Mutex
	claims map[binding.Template][]types.NamespacedName // the policies that select a template, in order
}

func newReporter(c client.Client, policies *policy.Index, templates *template.Cache) *reporter {
	return &reporter{
		client: c, policies: policies, templates: templates,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](reportDelay, lastRetry)),
		claims: map[binding.Template][]types.NamespacedName{},
	}
}

// claimed notes which policies select a template; none when it is gone.
func (r *reporter) claimed(k binding.Template, claims []policy.Claim) {
	names := make([]types.NamespacedName, len(claims))
	for i, c := range claims {
		names[i] = policy.Name(c.Policy)
	}
	r.mu.Lock()
	before := r.claims[k]
	if r.claims[k] = names; len(names) == 0 {
		delete(r.claims, k)
	}
	r.mu.Unlock()
	if slices.Equal(before, names) {
		return
	}
	for _, name := range slices.Concat(names, before) {
		r.changed(name)
	}
}

// changed has a policy's status written soon, if it must be.
func (r *reporter) changed(p types.NamespacedName) { r.queue.AddAfter(p, reportDelay) }

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
				if err := r.report(ctx, name); err != nil {
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

// report writes one policy's status when it is not what it shall be.
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
	err := r.client.Status().Patch(ctx, scopedPolicy(after), client.MergeFrom(scopedPolicy(before)))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
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
	var hints, unserved []string
	for _, problem := range policy.Problems(p) {
		hints = append(hints, problem.Error())
	}
	for _, gvk := range policy.Kinds(p) {
		if r.templates.Listed(gvk) {
			continue
		}
		err := r.templates.Watch(gvk)
		if err == nil {
			return policyv1alpha1.PropagationStatus{}, false
		}
		unserved = append(unserved, fmt.Sprintf("resourceSelectors[%d]: %v", selectorOf(p, gvk), err))
	}

	status := policyv1alpha1.PropagationStatus{Conditions: slices.Clone(p.Status.Conditions)}
	var lost []string
	for _, o := range selected(r.templates, p) {
		claims := r.policies.Claims(o)
		switch i := slices.IndexFunc(claims, func(c policy.Claim) bool { return policy.Name(c.Policy) == policy.Name(p) }); {
		case i < 0 || gone(o):
		case i == 0:
			status.Claimed++
		default:
			first := claims[0].Policy
			lost = append(lost, fmt.Sprintf("%s is claimed by %s %s", templateOf(o), policy.Kind(first.Namespace),
				strings.TrimPrefix(policy.Name(first).String(), "/")))
		}
	}
	slices.Sort(lost)

	claimed := metav1.Condition{
		Type: policyv1alpha1.ConditionClaimed, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonClaimed,
		Message: strings.Join(append(unserved, hints...), "; "),
	}
	undisputed := metav1.Condition{
		Type: policyv1alpha1.ConditionUndisputed, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonUndisputed,
	}
	if len(lost) > 0 {
		undisputed.Status, undisputed.Reason, undisputed.Message = metav1.ConditionFalse, policyv1alpha1.ReasonLostClaim, some(lost)
	}
	switch {
	case status.Claimed > 0:
	case len(unserved) > 0:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonKindNotServed
	case len(lost) > 0:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonLostClaim
		claimed.Message = "every object that the selectors match is claimed by another policy"
	default:
		claimed.Status, claimed.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonNothingSelected
		claimed.Message = strings.Join(append([]string{"no object matches the selectors"}, hints...), "; ")
	}
	ready := metav1.Condition{
		Type: policyv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonReady,
	}
	for _, c := range []metav1.Condition{undisputed, claimed} {
		if c.Status != metav1.ConditionTrue {
			ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
		}
	}
	for _, c := range []metav1.Condition{ready, claimed, undisputed} {
		c.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return status, true
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
// else selects them. Where a selector names its object no other is looked at.
func selected(templates *template.Cache, p *policyv1alpha1.PropagationPolicy) map[binding.Template]*unstructured.Unstructured {
	only := policy.NewIndex(p)
	found := map[binding.Template]*unstructured.Unstructured{}
	add := func(o *unstructured.Unstructured) {
		if len(only.Claims(o)) > 0 {
			found[templateOf(o)] = o
		}
	}
	for _, s := range p.Spec.ResourceSelectors {
		gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
		namespace := p.Namespace
		if namespace == "" {
			namespace = s.Namespace
		}
		if s.Name != "" {
			// Without a namespace: cluster-scoped, or one of that name in every namespace.
			if o, state := templates.Get(gvk, namespace, s.Name); state == presence.Present {
				add(o)
				continue
			}
			if namespace != "" {
				continue
			}
		}
		all, _ := templates.ListIn(gvk, namespace)
		for _, o := range all {
			add(o)
		}
	}
	return found
}

func templateOf(o *unstructured.Unstructured) binding.Template {
	return binding.Template{GroupKind: o.GroupVersionKind().GroupKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}
