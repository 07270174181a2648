package interpreter

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// ending are the custom kinds whose objects do a piece of work and end, such as training jobs and
// workflows.
var ending = map[schema.GroupKind]bool{
	{Group: "kubeflow.org", Kind: "PyTorchJob"}: true, {Group: "kubeflow.org", Kind: "TFJob"}: true,
	{Group: "kubeflow.org", Kind: "XGBoostJob"}: true, {Group: "kubeflow.org", Kind: "JAXJob"}: true,
	{Group: "kubeflow.org", Kind: "PaddleJob"}: true, {Group: "kubeflow.org", Kind: "MPIJob"}: true,
	{Group: "trainer.kubeflow.org", Kind: "TrainJob"}: true,
	{Group: "jobset.x-k8s.io", Kind: "JobSet"}:        true,
	{Group: "batch.volcano.sh", Kind: "Job"}:          true,
	{Group: "ray.io", Kind: "RayJob"}:                 true,
	{Group: "argoproj.io", Kind: "Workflow"}:          true,
	{Group: "tekton.dev", Kind: "PipelineRun"}:        true, {Group: "tekton.dev", Kind: "TaskRun"}: true,
	{Group: "sparkoperator.k8s.io", Kind: "SparkApplication"}: true,
	{Group: "velero.io", Kind: "Backup"}:                      true, {Group: "velero.io", Kind: "Restore"}: true,
}

// Ends reports whether a kind is known to do a piece of work and end: Job, Pod and the custom kinds
// in ending. Objects of other custom kinds may end as well; RunPhase sees that in their status.
func Ends(gk schema.GroupKind) bool {
	switch gk.String() {
	case jobKind, podKind:
		return true
	}
	return ending[gk]
}

// RunPhase returns how the work of an object ended, by its status: RunComplete or RunFailed. It is
// "" if the work has not ended, or objects of the kind do not end. It is also "" for a pod that is
// being deleted, because the deletion may have ended it.
func RunPhase(o *unstructured.Unstructured) workv1alpha2.RunPhase {
	gk := o.GroupVersionKind().GroupKind()
	switch {
	case gk.String() == podKind:
		if o.GetDeletionTimestamp() != nil {
			return ""
		}
		return phaseNamed(text(o.Object, "status", "phase"))
	case gk.String() == jobKind:
		return phaseOfConditions(o)
	case builtIn(gk.Group):
		return ""
	case !ending[gk] && !saysWhenItEnded(o):
		return "" // the condition Succeeded alone may mean that something is installed
	}
	if p := phaseOfConditions(o); p != "" {
		return p
	}
	for _, path := range [][]string{
		{"status", "phase"},
		{"status", "state", "phase"},
		{"status", "applicationState", "state"},
		{"status", "jobStatus"},
		{"status", "jobStatus", "state"},
		{"status", "terminalState"},
	} {
		if p := phaseNamed(text(o.Object, path...)); p != "" {
			return p
		}
	}
	return ""
}

// Succeeded returns how many completions of a Job have succeeded, from its status or its reflected
// status; 0 for nil.
func Succeeded(status map[string]any) int64 { return number(status, "succeeded") }

// phaseNamed returns the phase for a word in the status of an object that says how its work ended,
// in any case; "" for other words.
func phaseNamed(word string) workv1alpha2.RunPhase {
	switch strings.ToLower(word) {
	case "succeeded", "complete", "completed", "finished":
		return workv1alpha2.RunComplete
	case "failed", "error", "aborted", "terminated", "stopped", "partiallyfailed", "failedvalidation":
		return workv1alpha2.RunFailed
	}
	return ""
}

// phaseOfConditions returns how the work of an object ended, by its conditions; "" if they do not
// say that it ended.
func phaseOfConditions(o *unstructured.Unstructured) workv1alpha2.RunPhase {
	for _, kind := range []string{"Failed", "Aborted"} {
		if conditionIs(o, kind, corev1.ConditionTrue) {
			return workv1alpha2.RunFailed
		}
	}
	for _, kind := range []string{"Complete", "Completed", "Succeeded"} {
		switch {
		case conditionIs(o, kind, corev1.ConditionTrue):
			return workv1alpha2.RunComplete
		// Tekton reports a failure like this.
		case kind == "Succeeded" && conditionIs(o, kind, corev1.ConditionFalse) && saysWhenItEnded(o):
			return workv1alpha2.RunFailed
		}
	}
	return ""
}

// saysWhenItEnded reports whether the status of an object of a custom kind has the time at which
// its work ended.
func saysWhenItEnded(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc([]string{"completionTime", "completionTimestamp", "finishedAt", "endTime", "terminationTime"}, func(name string) bool {
		_, err := time.Parse(time.RFC3339, text(o.Object, "status", name))
		return err == nil
	})
}

// EndedStatus returns a reflected status (see Reflect) for a copy whose work ended at a time and
// that is gone, if its status was never seen. It has what Aggregate needs. Every phase but
// RunComplete counts as failed. succeeded is the number of completions of a Job. It is nil for
// kinds other than Job and Pod.
func EndedStatus(gk schema.GroupKind, phase workv1alpha2.RunPhase, succeeded int64, at time.Time) map[string]any {
	ended := at.UTC().Format(time.RFC3339)
	complete := phase == workv1alpha2.RunComplete
	switch gk.String() {
	case jobKind:
		status := map[string]any{"startTime": ended}
		if succeeded > 0 {
			status["succeeded"] = succeeded
		}
		if complete {
			status["completionTime"] = ended
		} else {
			status[keyFailure] = "Failed"
		}
		return status
	case podKind:
		said := corev1.PodFailed
		if complete {
			said = corev1.PodSucceeded
		}
		return map[string]any{keyWhole: map[string]any{"phase": string(said)}}
	}
	return nil
}
