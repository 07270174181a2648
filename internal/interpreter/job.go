package interpreter

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// aggregateJob adds up a Job. The API server holds the status of a Job to rules: what is
// finished stays finished, counters do not go back, a start time does not change. So
// that the hub's status can always be written, a cluster that left, or that runs a Job
// that was finished elsewhere, does not undo what was reported before.
func aggregateJob(t *unstructured.Unstructured, members []member, status map[string]any, now string) {
	present, _, _ := unstructured.NestedFieldNoCopy(t.Object, "status")
	old, _ := present.(map[string]any)
	conditions := list(old, "conditions")
	for _, kind := range []string{"Complete", "Failed"} {
		if condition(conditions, kind)["status"] == string(corev1.ConditionTrue) {
			maps.Copy(status, runtime.DeepCopyJSON(old))
			return
		}
	}

	for _, name := range []string{"succeeded", "failed"} {
		if n := max(sum(members, name), number(old, name)); n != 0 {
			status[name] = n
		}
	}
	start := earliest(members, "startTime")
	if suspended, _, _ := unstructured.NestedBool(t.Object, "spec", "suspend"); !suspended && text(old, "startTime") != "" {
		start = text(old, "startTime")
	}

	completed := which(members, func(m member) bool { return text(m.status, "completionTime") != "" })
	failed := which(members, func(m member) bool { _, ok := m.status[keyFailure]; return ok })
	if len(members) > 0 && len(completed)+len(failed) == len(members) {
		end := latest(members, "completionTime")
		if start == "" {
			start = now
		}
		status["startTime"] = start
		if len(failed) > 0 {
			status["conditions"] = failedJob(members, failed, now)
			return
		}
		end = max(end, start)
		status["completionTime"] = end
		status["conditions"] = []any{
			verdict{"SuccessCriteriaMet", corev1.ConditionTrue, "CompletionsReached", "Complete in every cluster."}.condition(nil, end, "lastProbeTime"),
			verdict{"Complete", corev1.ConditionTrue, "CompletionsReached", "Complete in every cluster."}.condition(nil, end, "lastProbeTime"),
		}
		return
	}

	if start != "" {
		status["startTime"] = start
	}
	if active := sum(members, "active"); active > 0 {
		status["active"] = active
		if ready := min(sum(members, "ready"), active); ready > 0 {
			status["ready"] = ready
		}
	}
	if suspended := which(members, has(keySuspended)); len(members) > 0 && len(suspended) == len(members) {
		status["conditions"] = []any{
			verdict{"Suspended", corev1.ConditionTrue, "JobSuspended", "Suspended in every cluster."}.condition(conditions, now, "lastProbeTime"),
		}
	}
}

func failedJob(members []member, failed []string, now string) []any {
	reason := ""
	for _, m := range members {
		if reason = text(m.status, keyFailure); reason != "" {
			break
		}
	}
	message := "Failed in " + naming(failed) + "."
	return []any{
		verdict{"FailureTarget", corev1.ConditionTrue, reason, message}.condition(nil, now, "lastProbeTime"),
		verdict{"Failed", corev1.ConditionTrue, reason, message}.condition(nil, now, "lastProbeTime"),
	}
}

// earliest and latest compare times as the API writes them, RFC 3339 in UTC and whole
// seconds, which sort as text. They are "" when no cluster reports the time.
func earliest(members []member, name string) string {
	first := ""
	for _, m := range members {
		if t := text(m.status, name); t != "" && (first == "" || t < first) {
			first = t
		}
	}
	return first
}

func latest(members []member, name string) string {
	last := ""
	for _, m := range members {
		last = max(last, text(m.status, name))
	}
	return last
}
