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

// Loses returns why a claim on an object loses against the claim that won, for users.
func Loses(won, lost Claim) string {
	winner := Kind(won.Policy.Namespace) + " " + won.Policy.Name
	if before(won, lost) > 0 {
		return winner + " placed it first, and this one's preemption is Never"
	}
	switch w, l := won.Policy, lost.Policy; {
	case w.Namespace != "" && l.Namespace == "":
		return winner + " is of the object's namespace, and comes before cluster-wide ones"
	case w.Spec.Priority != l.Spec.Priority:
		return fmt.Sprintf("its priority, %d, is lower than that of %s, %d", l.Spec.Priority, winner, w.Spec.Priority)
	case won.specificity != lost.specificity:
		return fmt.Sprintf("it selects the object %s, and %s %s, which says more", specificities[lost.specificity], winner, specificities[won.specificity])
	default:
		return "it says as much as " + winner + ", whose name comes first in the alphabet"
	}
}

var specificities = [...]string{byKind: "by its kind alone", byLabels: "by labels", byName: "by name"}

// Miss is a policy that almost selects an object.
type Miss struct {
	Policy *policyv1alpha1.PropagationPolicy
	// Why the policy does not select it, and what would change that.
	Why string

	how int
}

// Differences between a selector and an object, the most frequent mistakes first.
const (
	missedLabels = iota
	missedProblem
	missedVersion
	missedNamespace
	missedName
)

// Near returns the policies with a selector that fails for an object in exactly one way. Each
// policy appears once, the nearest first.
func Near(policies []*policyv1alpha1.PropagationPolicy, o *unstructured.Unstructured) []Miss {
	var near []Miss
	for _, p := range policies {
		if p.Namespace != "" && p.Namespace != o.GetNamespace() {
			continue // it can never select the object
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

// miss returns the one way in which a selector fails for an object; false if there is none, or
// several.
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
		add(missedVersion, ": it selects %s %s, and the object is of %s %s", s.APIVersion, s.Kind, o.GetAPIVersion(), o.GetKind())
	}
	if err := problem(p, s); err != nil {
		add(missedProblem, ".%s", err)
	} else if s.Namespace != "" && s.Namespace != o.GetNamespace() {
		add(missedNamespace, ".namespace: it selects in namespace %s", s.Namespace)
	}
	if s.Name != "" && s.Name != o.GetName() {
		add(missedName, ".name: it selects %s", s.Name)
	}
	if selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector); err == nil && s.LabelSelector != nil && !selector.Matches(labels.Set(o.GetLabels())) {
		add(missedLabels, ".labelSelector: it selects %s, and the object has %s", selector, labelsOf(o))
	}
	if len(found) != 1 {
		return Miss{}, false
	}
	return found[0], true
}

// mostLabels is the number of labels that a message names at most.
const mostLabels = 10

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
