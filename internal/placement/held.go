package placement

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/render"
)

// inherit copies fields of the first claim's policy other than the placement into the spec of a
// binding: suspension of dispatching, propagation of dependencies, priority, override policies of
// dependencies, and activation. A suspension of scheduling, which a user sets in the binding b,
// stays. b may be nil.
func inherit(spec *workv1alpha2.BindingSpec, t Template, b *workv1alpha2.ResourceBinding) {
	p := t.Claims[0].Policy
	spec.Suspension = suspension(p.Spec.Suspension, b)
	spec.PropagateDeps = p.Spec.PropagateDeps || p.Spec.Association
	spec.SchedulePriority = t.Priority
	for _, name := range p.Spec.DependentOverrides {
		kind := "OverridePolicy"
		if p.Namespace == "" {
			kind = "ClusterOverridePolicy"
		}
		spec.DependentOverrides = append(spec.DependentOverrides, workv1alpha2.OverrideReference{Kind: kind, Name: name})
	}
	if p.Spec.ActivationPreference == policyv1alpha1.LazyActivation {
		spec.Activation = &workv1alpha2.Activation{PolicyUID: p.UID, PolicyGeneration: p.Generation, Template: t.Version}
	}
}

// suspension returns the suspension for the spec of a binding: that of dispatching from the policy
// (says, may be nil), and that of scheduling from the present binding b, which may be nil. It
// returns nil if neither is suspended.
func suspension(says *policyv1alpha1.Suspension, b *workv1alpha2.ResourceBinding) *workv1alpha2.Suspension {
	var s workv1alpha2.Suspension
	if says.Held() {
		s.Suspension = *says.DeepCopy()
	}
	if b != nil && b.Spec.Suspension != nil {
		s.Scheduling = b.Spec.Suspension.Scheduling
	}
	if s == (workv1alpha2.Suspension{}) {
		return nil
	}
	return &s
}

// suspend returns the decision on a template while a user has suspended its scheduling in the
// binding b. The clusters and replicas stay. All other fields follow the policy.
func suspend(s *fleet.Snapshot, t Template, b *workv1alpha2.ResourceBinding) Decision {
	was, p := &b.Spec, t.Claims[0].Policy
	d := Decision{
		Spec: standstill(was),
		Outcome: Outcome{
			Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonSuspended,
			Message: "scheduling is suspended: the clusters stay as they are until spec.suspension.scheduling of the binding is unset",
		},
	}
	d.Spec.PolicyRef, d.Spec.ConflictResolution = refTo(p), ""
	if p.Spec.ConflictResolution != policyv1alpha1.ConflictAbort {
		d.Spec.ConflictResolution = p.Spec.ConflictResolution
	}
	d.Spec.PreserveResourcesOnDeletion = p.Spec.PreserveResourcesOnDeletion != nil && *p.Spec.PreserveResourcesOnDeletion
	d.Spec.DependentOverrides = nil
	inherit(d.Spec, t, b)
	d.Spec.Clusters = unmoved(s, t, was)
	if len(d.Spec.Clusters) == 0 {
		d.Outcome.Status = metav1.ConditionFalse
	}
	return d
}

// waits reports whether the policy of the first claim, with activationPreference Lazy, waits for
// the next change of the template before it applies: the policy was edited, or another policy
// placed the template. The binding b stores the version of the policy, so a restart changes
// nothing. t must have a claim. Without a binding (b is nil) the result is false.
func waits(t Template, b *workv1alpha2.ResourceBinding) bool {
	p := t.Claims[0].Policy
	if p.Spec.ActivationPreference != policyv1alpha1.LazyActivation || b == nil {
		return false
	}
	a := b.Spec.Activation
	if a == nil { // a policy that is not Lazy placed the template
		return b.Spec.PlacementHash != "" && (b.Spec.PolicyRef != refTo(p) || b.Spec.PlacementHash != t.PlacementHash)
	}
	return a.Template == t.Version && (a.PolicyUID != p.UID || a.PolicyGeneration != p.Generation)
}

// wait returns the decision on a template while its Lazy policy waits for the next change of the
// template, see waits: the placement stays as in b.
func wait(s *fleet.Snapshot, t Template, b *workv1alpha2.ResourceBinding) Decision {
	p := t.Claims[0].Policy
	d := Decision{
		Spec: stay(s, t, &b.Spec),
		Outcome: Outcome{
			Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonPolicyWaits,
			Message: fmt.Sprintf("%s %s (generation %d) has activationPreference Lazy and takes effect when %s changes next; until then its placement stays",
				policy.Kind(p.Namespace), p.Name, p.Generation, templateOf(t.Object)),
		},
	}
	if b.Spec.PolicyRef != refTo(p) { // the policy that placed the template may be gone
		d.Spec.DependentOverrides = distinct(append(d.Spec.DependentOverrides, selecting(t)...))
	}
	if d.Spec.Activation = b.Spec.Activation; d.Spec.Activation == nil {
		d.Spec.Activation = &workv1alpha2.Activation{Template: t.Version}
	}
	return d
}

func refTo(p *policyv1alpha1.PropagationPolicy) workv1alpha2.PolicyReference {
	return workv1alpha2.PolicyReference{Kind: policy.Kind(p.Namespace), Name: p.Name}
}

// versionOf returns a hash of a template without its status. If the object has a generation, that
// is hashed instead of the content, because an API server that is upgraded may add defaults to
// unchanged objects.
func versionOf(o *unstructured.Unstructured) string {
	annotations := maps.Clone(o.GetAnnotations())
	// The hub itself sets some annotations after each change.
	maps.DeleteFunc(annotations, func(key, _ string) bool { return render.IsHubs(key) })
	said := map[string]any{"uid": o.GetUID(), "labels": o.GetLabels(), "annotations": annotations, "generation": o.GetGeneration()}
	if o.GetGeneration() == 0 {
		content := maps.Clone(o.Object)
		delete(content, "metadata")
		delete(content, "status")
		said["content"] = content
	}
	text, _ := json.Marshal(said) //nolint:errchkjson // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:10])
}
