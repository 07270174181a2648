package interpreter

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const maxCause = 160 // characters

// cause says why an object is not healthy, as far as the object itself does.
func cause(o *unstructured.Unstructured) string {
	said := make([]string, 0, 2)
	switch k, kind := kindOf(o), o.GroupVersionKind().GroupKind().String(); {
	case kind == serviceKind, kind == ingressKind:
		said = append(said, "its load balancer has no address")
	case kind == budgetKind:
		said = append(said, fmt.Sprintf("%d of %d pods healthy", number(o.Object, "status", "currentHealthy"), number(o.Object, "status", "desiredHealthy")))
	case k.replicas != nil:
		if n, known := serving(k, o); known && n >= desired(o) {
			said = append(said, "being rolled out")
		} else if known {
			said = append(said, fmt.Sprintf("%d of %d replicas available", n, desired(o)))
		}
	case len(k.counters) > 0 && number(o.Object, "status", "desiredNumberScheduled") > 0:
		said = append(said, fmt.Sprintf("%d of %d pods available",
			number(o.Object, "status", "numberAvailable"), number(o.Object, "status", "desiredNumberScheduled")))
	}
	if !observed(o) {
		if _, found, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); found {
			said = append(said, "its controller has not seen the last change")
		}
	}
	if c := complaint(o); c != "" {
		said = append(said, c)
	} else if phase := text(o.Object, "status", "phase"); phase != "" {
		said = append(said, phase)
	}
	return shorten(strings.Join(said, ": "), maxCause)
}

// causes reports whether the cause of an object that is not healthy is kept. Of an object whose controller has said nothing yet it is not, for
// it speaks of nothing that lasts: but for ReplicationControllers, whose controller some clusters do not run.
func causes(o *unstructured.Unstructured, status map[string]any) bool {
	kind := o.GroupVersionKind().GroupKind().String()
	return len(status) > 0 || len(kindOf(o).counters) == 0 && kind != jobKind || kind == controllerKind
}

// Cause returns why the object of a reflected status is not healthy; "" where it does not say.
func Cause(status map[string]any) string { return text(status, keyCause) }

// Observed says whether a reflected status speaks of its object as the object is now.
func Observed(status map[string]any) bool { return status[keyObserved] == true }

// complaint is what a condition, or a container that does not start, says.
func complaint(o *unstructured.Unstructured) string {
	for _, name := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, c := range list(o.Object, "status", name) {
			c, _ := c.(map[string]any)
			if reason := text(c, "state", "waiting", "reason"); reason != "" && reason != "PodInitializing" && reason != "ContainerCreating" {
				return words(text(c, "name")+": "+reason, text(c, "state", "waiting", "message"))
			}
		}
	}
	conditions := list(o.Object, "status", "conditions")
	for _, bad := range []struct {
		kind   string
		status corev1.ConditionStatus
	}{
		{"ReplicaFailure", corev1.ConditionTrue},
		{"Failed", corev1.ConditionTrue},
		{"Stalled", corev1.ConditionTrue},
		{"Progressing", corev1.ConditionFalse},
		{"PodScheduled", corev1.ConditionFalse},
		{"AbleToScale", corev1.ConditionFalse},
		{"ScalingActive", corev1.ConditionFalse},
		{"DisruptionAllowed", corev1.ConditionFalse},
	} {
		if c := condition(conditions, bad.kind); c != nil && c["status"] == string(bad.status) {
			return words(text(c, "reason"), text(c, "message"))
		}
	}
	for _, good := range goodConditions {
		if c := condition(conditions, good); c != nil && c["status"] != string(corev1.ConditionTrue) {
			return words(text(c, "reason"), text(c, "message"))
		}
	}
	return ""
}

// words joins a reason and a message, of which either may be empty.
func words(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}

// shorten cuts a text to so many characters.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
