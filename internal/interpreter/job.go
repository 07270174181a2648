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

// Completions returns spec.completions for the copy of a Job in a cluster if the clusters share the
// parallelism of the Job. The completions are divided in proportion to the shares and add up to
// those of the Job. Remainders go to the largest fractions, of equal ones to the larger share, then
// to the first cluster by name. shares are the targets of the binding.
//
// The result is nil, without an error, for other kinds and if the sum of the shares is 0. It is
// also nil for a Job without completions, such as a work queue. It is an error if the cluster has
// no share.
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

// parallelism returns the share of the parallelism of a Job that a target cluster has; 0 for nil.
func parallelism(t workv1alpha2.TargetCluster) int64 {
	if t.Replicas == nil {
		return 0
	}
	return int64(*t.Replicas)
}

// SetCompletions sets spec.completions of a Job, in place.
func SetCompletions(job *unstructured.Unstructured, n int64) error {
	if err := unstructured.SetNestedField(job.Object, n, "spec", "completions"); err != nil {
		return fmt.Errorf("set completions of Job %s: %w", job.GetName(), err)
	}
	return nil
}

// HasCompletions reports whether an object is a Job that sets spec.completions.
func HasCompletions(o *unstructured.Unstructured) bool {
	_, found, err := unstructured.NestedInt64(o.Object, "spec", "completions")
	return found && err == nil && o.GroupVersionKind().GroupKind().String() == jobKind
}

// CompletionsOf returns spec.completions of a Job; nil for a Job that does not set it, and for
// other kinds.
func CompletionsOf(o *unstructured.Unstructured) *int64 {
	if !HasCompletions(o) {
		return nil
	}
	return new(number(o.Object, "spec", "completions"))
}

// Elastic reports whether an object is an Indexed Job whose completions equal its parallelism. An
// API server allows both of such a Job to be changed together.
func Elastic(o *unstructured.Unstructured) bool {
	return HasCompletions(o) && text(o.Object, "spec", "completionMode") == string(batchv1.IndexedCompletion) &&
		number(o.Object, "spec", "completions") == number(o.Object, "spec", "parallelism")
}

// FixedCompletions returns the completions that live, a Job in a cluster, keeps when manifest is
// applied to it, as an API server does not allow a change. It is nil if manifest or live has no
// completions. It is also nil if a change is allowed: live is an Indexed Job, and manifest has as
// many completions as parallelism.
func FixedCompletions(manifest, live *unstructured.Unstructured) *int64 {
	if !HasCompletions(manifest) || !HasCompletions(live) ||
		text(live.Object, "spec", "completionMode") == string(batchv1.IndexedCompletion) && number(manifest.Object, "spec", "completions") == number(manifest.Object, "spec", "parallelism") {
		return nil
	}
	return new(number(live.Object, "spec", "completions"))
}

// aggregateJob sets the status of a Job from the reports of its clusters. The API server of the hub
// enforces rules for the status: a finished Job stays finished, counters do not decrease, and a
// start time does not change. So earlier values stay if a cluster left, or runs a Job that finished
// in other clusters.
//
// If a Job failed in one cluster, it will fail, and has the condition FailureTarget at once and
// from then on. It is Failed only when its work has ended in every cluster. A client that sees
// Failed assumes that nothing runs any more, and the controller of ttlSecondsAfterFinished then
// deletes the template and so the copies.
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

// failureTarget returns the condition FailureTarget, True, of a Job that failed in the clusters
// named in failed. Its reason comes from the first report of a failure. conditions are those that
// the template has. If failed is empty, a FailureTarget in conditions that is True stays, because
// the cluster that failed may have left: the result is a copy of it. Otherwise the result is nil.
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

// earliest returns the first of the times in the field name of the statuses of all clusters; "" if
// none has it. The times are texts in the form of the API, RFC 3339 in UTC with whole seconds, and
// sort as text.
func earliest(reports []Report, name string) string {
	first := ""
	for _, r := range reports {
		if t := text(r.Status, name); t != "" && (first == "" || t < first) {
			first = t
		}
	}
	return first
}

// latest returns the last of the times in the field name of the statuses of all clusters; "" if
// none has it. The times have the form of the API.
func latest(reports []Report, name string) string {
	last := ""
	for _, r := range reports {
		last = max(last, text(r.Status, name))
	}
	return last
}
