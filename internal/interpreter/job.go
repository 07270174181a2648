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
func aggregateJob(in input, status map[string]any) {
	t, reports, now := in.template, in.reports, in.now
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
		if n := max(sum(reports, name), number(old, name)); n != 0 {
			status[name] = n
		}
	}
	start := earliest(reports, "startTime")
	if suspended, _, _ := unstructured.NestedBool(t.Object, "spec", "suspend"); !suspended && text(old, "startTime") != "" {
		start = text(old, "startTime")
	}

	completed := which(reports, func(r Report) bool { return r.Current && text(r.Status, "completionTime") != "" })
	failed := which(reports, func(r Report) bool { _, ok := r.Status[keyFailure]; return ok && r.Current })
	if len(reports) > 0 && len(completed)+len(failed) == len(reports) {
		end := latest(reports, "completionTime")
		if start == "" {
			start = now
		}
		status["startTime"] = start
		if len(failed) > 0 {
			status["conditions"] = failedJob(reports, failed, now)
			return
		}
		end = max(end, start)
		status["completionTime"] = end
		status["conditions"] = []any{
			conditionState{"SuccessCriteriaMet", corev1.ConditionTrue, "CompletionsReached", "Complete in every cluster."}.condition(nil, end, "lastProbeTime"),
			conditionState{"Complete", corev1.ConditionTrue, "CompletionsReached", "Complete in every cluster."}.condition(nil, end, "lastProbeTime"),
		}
		return
	}

	if start != "" {
		status["startTime"] = start
	}
	if active := sum(reports, "active"); active > 0 {
		status["active"] = active
		if ready := min(sum(reports, "ready"), active); ready > 0 {
			status["ready"] = ready
		}
	}
	if suspended := which(reports, has(keySuspended)); len(reports) > 0 && len(suspended) == len(reports) {
		status["conditions"] = []any{
			conditionState{"Suspended", corev1.ConditionTrue, "JobSuspended", "Suspended in every cluster."}.condition(conditions, now, "lastProbeTime"),
		}
	}
}

func failedJob(reports []Report, failed []string, now string) []any {
	reason := ""
	for _, r := range reports {
		if reason = text(r.Status, keyFailure); reason != "" {
			break
		}
	}
	message := "Failed in " + naming(failed) + "."
	return []any{
		conditionState{"FailureTarget", corev1.ConditionTrue, reason, message}.condition(nil, now, "lastProbeTime"),
		conditionState{"Failed", corev1.ConditionTrue, reason, message}.condition(nil, now, "lastProbeTime"),
	}
}

// earliest and latest compare times as the API writes them, RFC 3339 in UTC and whole
// seconds, which sort as text. They are "" when no cluster reports the time.
func earliest(reports []Report, name string) string {
	first := ""
	for _, r := range reports {
		if t := text(r.Status, name); t != "" && (first == "" || t < first) {
			first = t
		}
	}
	return first
}

func latest(reports []Report, name string) string {
	last := ""
	for _, r := range reports {
		last = max(last, text(r.Status, name))
	}
	return last
}
