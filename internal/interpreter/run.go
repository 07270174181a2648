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

// ending are the custom kinds whose objects do a piece of work and end.
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

// Ends reports whether objects of a kind are known to do a piece of work and end. Others may
// end as well: RunPhase reads that from their status.
func Ends(gk schema.GroupKind) bool {
	switch gk.String() {
	case jobKind, podKind:
		return true
	}
	return ending[gk]
}

// RunPhase returns how the work of an object ended: RunComplete or RunFailed. It is "" if the
// work has not ended, or the kind does not end. A pod that is being deleted has not ended by
// itself.
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
		return "" // Succeeded alone may mean that something is installed
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

// Succeeded returns how many completions of a Job have succeeded by its status.
func Succeeded(status map[string]any) int64 { return number(status, "succeeded") }

// phaseNamed returns the phase for the word with which a kind says how an object ended; "" for
// other words.
func phaseNamed(word string) workv1alpha2.RunPhase {
	switch strings.ToLower(word) {
	case "succeeded", "complete", "completed", "finished":
		return workv1alpha2.RunComplete
	case "failed", "error", "aborted", "terminated", "stopped", "partiallyfailed", "failedvalidation":
		return workv1alpha2.RunFailed
	}
	return ""
}

// phaseOfConditions returns the phase by the conditions with which kinds say how an object
// ended; "" if there is none.
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

// saysWhenItEnded reports whether the status of a custom object has the time of its end.
func saysWhenItEnded(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc([]string{"completionTime", "completionTimestamp", "finishedAt", "endTime", "terminationTime"}, func(name string) bool {
		_, err := time.Parse(time.RFC3339, text(o.Object, "status", name))
		return err == nil
	})
}

// EndedStatus returns the reflected status of an object that ended and is gone, if nothing else
// is known of it: what Aggregate needs. It is nil for kinds other than Job and Pod.
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
