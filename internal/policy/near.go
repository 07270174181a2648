package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// Loses returns why the claim lost on an object loses against the claim won, as a text for users.
func Loses(won, lost Claim) string {
	winner := Kind(won.Policy.Namespace) + " " + strings.TrimPrefix(Name(won.Policy).String(), "/")
	overruled := func(format string, args ...any) string {
		return "overruled by " + winner + " (" + fmt.Sprintf(format, args...) + ")"
	}
	if before(won, lost) > 0 {
		return overruled("it placed the object first, and this policy has preemption Never")
	}
	switch w, l := won.Policy, lost.Policy; {
	case w.Namespace != "" && l.Namespace == "":
		return overruled("policies of the namespace come before cluster-wide ones")
	case w.Spec.Priority != l.Spec.Priority:
		return overruled("its priority %d is higher than %d", w.Spec.Priority, l.Spec.Priority)
	case won.specificity != lost.specificity:
		return overruled("it selects the object %s, and this policy %s", specificities[won.specificity], specificities[lost.specificity])
	default:
		return overruled("equal priority and selectors: the first name in the alphabet wins")
	}
}

// specificities has the words for the levels of specificity in messages.
var specificities = [...]string{byKind: "by its kind alone", byLabels: "by labels", byName: "by name"}

// Miss is a policy that would select an object if one thing differed.
type Miss struct {
	Policy *policyv1alpha1.PropagationPolicy
	// Why is a text for users: what prevents the policy from selecting the object.
	Why string

	how int // one of the constants below
}

// Ways in which a selector can fail to select an object, the most frequent mistakes of users first.
const (
	missedLabels = iota
	missedProblem
	missedVersion
	missedNamespace
	missedName
)

// Near returns the policies with a selector that fails for an object in exactly one way, such as
// its labels. It is for messages to a user whose object is not placed. Each policy appears once,
// with its most likely mistake; the most likely come first. Policies of other namespaces are left
// out. A policy can also appear if another of its selectors selects the object.
func Near(policies []*policyv1alpha1.PropagationPolicy, o *unstructured.Unstructured) []Miss {
	var near []Miss
	for _, p := range policies {
		if p.Namespace != "" && p.Namespace != o.GetNamespace() {
			continue // a policy of another namespace can never select the object
		}
		best := Miss{how: missedName + 1}
		for i, s := range p.Spec.ResourceSelectors {
			if m, ok := miss(p, s, o); ok && m.how < best.how {
				m.Why = fmt.Sprintf("resourceSelectors[%d]%s", i, m.Why)
				best = m
			}
		}
		if best.Policy != nil {
			near = append(near, best)
		}
	}
	slices.SortFunc(near, func(a, b Miss) int {
		return cmp.Or(cmp.Compare(a.how, b.how), strings.Compare(a.Policy.Namespace, b.Policy.Namespace), strings.Compare(a.Policy.Name, b.Policy.Name))
	})
	return near
}

// miss returns the way in which a selector of the policy p fails to select an object. It returns
// false if the selector selects the object, or fails in several ways.
func miss(p *policyv1alpha1.PropagationPolicy, s policyv1alpha1.ResourceSelector, o *unstructured.Unstructured) (Miss, bool) {
	var found []Miss
	add := func(how int, format string, args ...any) {
		found = append(found, Miss{Policy: p, Why: fmt.Sprintf(format, args...), how: how})
	}
	is, named := o.GroupVersionKind().GroupKind(), schema.FromAPIVersionAndKind(s.APIVersion, s.Kind).GroupKind()
	if named != is {
		if !strings.EqualFold(named.Kind, is.Kind) {
			return Miss{}, false
		}
		add(missedVersion, ": matches %s %s, and the object is %s %s", s.APIVersion, s.Kind, o.GetAPIVersion(), o.GetKind())
	}
	if err := problem(p, s); err != nil {
		add(missedProblem, ".%s", err)
	} else if s.Namespace != "" && s.Namespace != o.GetNamespace() {
		add(missedNamespace, ".namespace: matches only namespace %q", s.Namespace)
	}
	if s.Name != "" && s.Name != o.GetName() {
		add(missedName, ".name: matches only %q", s.Name)
	}
	if selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector); err == nil && s.LabelSelector != nil && !selector.Matches(labels.Set(o.GetLabels())) {
		add(missedLabels, ".labelSelector: matches %s, and the object has %s", selector, labelsOf(o))
	}
	if len(found) != 1 {
		return Miss{}, false
	}
	return found[0], true
}

// mostLabels is the number of labels that a message names at most.
const mostLabels = 10

// labelsOf returns the labels of an object for a message. If there are more than mostLabels, it
// returns only their number.
func labelsOf(o *unstructured.Unstructured) string {
	all := o.GetLabels()
	switch {
	case len(all) == 0:
		return "no labels"
	case len(all) > mostLabels:
		return fmt.Sprintf("%d others", len(all))
	}
	return labels.FormatLabels(all)
}
