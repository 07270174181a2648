package interpreter

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const maxCause = 160 // length of a cause, in characters

// cause returns why an object is not healthy, as its spec and status show it; "" if they do not.
// The text has at most maxCause characters.
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

// causes reports whether the cause of the unhealthy object o is kept in its reflected status. For a
// Job, and for kinds with counters, it is not kept before the controller has written a status,
// because such a cause is temporary. ReplicationControllers are an exception: some clusters do not
// run their controller.
func causes(o *unstructured.Unstructured, status map[string]any) bool {
	kind := o.GroupVersionKind().GroupKind().String()
	return len(status) > 0 || len(kindOf(o).counters) == 0 && kind != jobKind || kind == controllerKind
}

// Cause returns why an object is not healthy, from its reflected status (see Reflect), in at most
// 160 characters; "" if that is not known.
func Cause(status map[string]any) string { return text(status, keyCause) }

// Observed reports whether a reflected status (see Reflect) is about the present spec of its
// object. It is false for kinds for which Reflect does not record that: those without counters
// whose status is not kept whole.
func Observed(status map[string]any) bool { return status[keyObserved] == true }

// complaint returns the reason and message of the first container that does not start. If there is
// none, it returns those of a condition that says that the object does not work; "" if there is no
// such condition either.
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

// words joins a reason and a message with ": ". If one of them is "", it returns the other.
func words(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}

// shorten cuts a text to at most n characters. A text that was cut ends with an ellipsis.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
