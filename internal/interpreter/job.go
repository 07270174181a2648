package interpreter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Completions are what falls to a cluster of the completions of a Job whose parallelism is shared out: in proportion
// to the shares, and so that those of all clusters add up to the Job's. The largest remainders are rounded up, and of equal
// ones that of the greater share, then that of the first cluster by name. nil: the object has no completions to share out, as
// one of another kind and a work queue, whose pods know when they are done; or nothing runs.
func Completions(o *unstructured.Unstructured, shares []workv1alpha2.TargetCluster, cluster string) (*int64, error) {
	if o.GroupVersionKind().GroupKind().String() != jobKind {
		return nil, nil //nolint:nilnil // documented
	}
	completions, found, err := unstructured.NestedInt64(o.Object, "spec", "completions")
	if err != nil {
		return nil, fmt.Errorf("share out the completions of Job %s: %w", o.GetName(), err)
	}
	var sum int64
	for _, t := range shares {
		sum += parallelism(t)
	}
	if !found || sum == 0 {
		return nil, nil //nolint:nilnil // documented
	}
	left := completions
	for _, t := range shares {
		left -= completions * parallelism(t) / sum
	}
	byRemainder := slices.SortedFunc(slices.Values(shares), func(a, b workv1alpha2.TargetCluster) int {
		return cmp.Or(
			cmp.Compare(completions*parallelism(b)%sum, completions*parallelism(a)%sum),
			cmp.Compare(parallelism(b), parallelism(a)), strings.Compare(a.Name, b.Name),
		)
	})
	for i, t := range byRemainder {
		if t.Name != cluster {
			continue
		}
		n := completions * parallelism(t) / sum
		if int64(i) < left {
			n++
		}
		return &n, nil
	}
	return nil, fmt.Errorf("share out the completions of Job %s: %s has no share", o.GetName(), cluster)
}

func parallelism(t workv1alpha2.TargetCluster) int64 {
	if t.Replicas == nil {
		return 0
	}
	return int64(*t.Replicas)
}

// SetCompletions sets how many of a Job's pods are to succeed.
func SetCompletions(job *unstructured.Unstructured, n int64) error {
	if err := unstructured.SetNestedField(job.Object, n, "spec", "completions"); err != nil {
		return fmt.Errorf("set completions of Job %s: %w", job.GetName(), err)
	}
	return nil
}

// HasCompletions is true of a Job with completions, and FixedCompletions says how many a Job that is in a cluster
// keeps, since no API server lets them be changed: nil where it does, of an Indexed Job that is to have as many as it runs
// at once, and where the Job has none.
func HasCompletions(o *unstructured.Unstructured) bool {
	_, found, err := unstructured.NestedInt64(o.Object, "spec", "completions")
	return found && err == nil && o.GroupVersionKind().GroupKind().String() == jobKind
}

// CompletionsOf returns how many completions a Job asks for; nil for a Job that asks for none, and
// for another kind.
func CompletionsOf(o *unstructured.Unstructured) *int64 {
	if !HasCompletions(o) {
		return nil
	}
	return new(number(o.Object, "spec", "completions"))
}

// Elastic is true of an Indexed Job with as many completions as it runs at once: an API server lets both be changed together.
func Elastic(o *unstructured.Unstructured) bool {
	return HasCompletions(o) && text(o.Object, "spec", "completionMode") == string(batchv1.IndexedCompletion) &&
		number(o.Object, "spec", "completions") == number(o.Object, "spec", "parallelism")
}

// FixedCompletions is documented at HasCompletions.
func FixedCompletions(manifest, live *unstructured.Unstructured) *int64 {
	if !HasCompletions(manifest) || !HasCompletions(live) ||
		text(live.Object, "spec", "completionMode") == string(batchv1.IndexedCompletion) && number(manifest.Object, "spec", "completions") == number(manifest.Object, "spec", "parallelism") {
		return nil
	}
	return new(number(live.Object, "spec", "completions"))
}

// aggregateJob adds up a Job. The API server holds the status of a Job to rules: what is
// finished stays finished, counters do not go back, a start time does not change. So
// that the hub's status can always be written, a cluster that left, or that runs a Job
// that was finished elsewhere, does not undo what was reported before.
//
// A Job that failed in one cluster will fail: FailureTarget says so at once, and does not go back
// either. It is Failed once its work has ended in every cluster, as a Job of one cluster is Failed
// once its last pod has ended: who reads Failed takes it that nothing runs, and the controller of
// ttlSecondsAfterFinished deletes the template, and with it the copies.
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
	ended := len(reports) > 0 && len(completed)+len(failed) == len(reports)
	failure := failureTarget(conditions, reports, failed, now)
	if ended && start == "" {
		start = now
	}
	if start != "" {
		status["startTime"] = start
	}
	switch {
	case ended && failure != nil:
		end := conditionState{"Failed", corev1.ConditionTrue, text(failure, "reason"), text(failure, "message")}
		status["conditions"] = []any{failure, end.condition(nil, now, "lastProbeTime")}
		return
	case ended:
		end := max(latest(reports, "completionTime"), start)
		status["completionTime"] = end
		status["conditions"] = []any{
			conditionState{"SuccessCriteriaMet", corev1.ConditionTrue, "CompletionsReached", "Complete in every cluster."}.condition(nil, end, "lastProbeTime"),
			conditionState{"Complete", corev1.ConditionTrue, "CompletionsReached", "Complete in every cluster."}.condition(nil, end, "lastProbeTime"),
		}
		return
	}

	if active := sum(reports, "active"); active > 0 {
		status["active"] = active
		if ready := min(sum(reports, "ready"), active); ready > 0 {
			status["ready"] = ready
		}
	}
	if failure != nil {
		status["conditions"] = []any{failure}
	}
	if suspended := which(reports, has(keySuspended)); len(reports) > 0 && len(suspended) == len(reports) {
		s := conditionState{"Suspended", corev1.ConditionTrue, "JobSuspended", "Suspended in every cluster."}
		status["conditions"] = append(list(status, "conditions"), s.condition(conditions, now, "lastProbeTime"))
	}
}

// failureTarget is the condition that says in which clusters a Job failed; nil where it failed in none. Where the
// clusters that failed are not among the reports any more, it is the condition that there was.
func failureTarget(conditions []any, reports []Report, failed []string, now string) map[string]any {
	if len(failed) == 0 {
		if old := condition(conditions, "FailureTarget"); old["status"] == string(corev1.ConditionTrue) {
			return runtime.DeepCopyJSON(old)
		}
		return nil
	}
	reason := ""
	for _, r := range reports {
		if reason = text(r.Status, keyFailure); r.Current && reason != "" {
			break
		}
	}
	s := conditionState{"FailureTarget", corev1.ConditionTrue, reason, "Failed in " + naming(failed) + "."}
	return s.condition(conditions, now, "lastProbeTime")
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
