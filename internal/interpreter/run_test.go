package interpreter

import (
	"testing"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

func TestRunPhase(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		want     workv1alpha2.RunPhase
	}{
		"JobRuns":               {`{apiVersion: batch/v1, kind: Job, status: {active: 1, completionTime: "2026-01-01T00:00:00Z"}}`, ""},
		"JobComplete":           {`{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: Complete, status: "True"}]}}`, workv1alpha2.RunComplete},
		"JobFailed":             {`{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: FailureTarget, status: "True"}, {type: Failed, status: "True"}]}}`, workv1alpha2.RunFailed},
		"JobSuspended":          {`{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: Suspended, status: "True"}]}}`, ""},
		"PodSucceeded":          {`{apiVersion: v1, kind: Pod, status: {phase: Succeeded}}`, workv1alpha2.RunComplete},
		"PodFailed":             {`{apiVersion: v1, kind: Pod, status: {phase: Failed}}`, workv1alpha2.RunFailed},
		"PodRuns":               {`{apiVersion: v1, kind: Pod, status: {phase: Running}}`, ""},
		"PodThatIsDeletedStops": {`{apiVersion: v1, kind: Pod, metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}, status: {phase: Succeeded}}`, ""},
		"PyTorchJob":            {`{apiVersion: kubeflow.org/v1, kind: PyTorchJob, status: {conditions: [{type: Succeeded, status: "True"}]}}`, workv1alpha2.RunComplete},
		"Workflow":              {`{apiVersion: argoproj.io/v1alpha1, kind: Workflow, status: {phase: Succeeded, finishedAt: "2026-01-01T00:00:00Z"}}`, workv1alpha2.RunComplete},
		"WorkflowError":         {`{apiVersion: argoproj.io/v1alpha1, kind: Workflow, status: {phase: Error}}`, workv1alpha2.RunFailed},
		"WorkflowRuns":          {`{apiVersion: argoproj.io/v1alpha1, kind: Workflow, status: {phase: Running}}`, ""},
		"VolcanoJob":            {`{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, status: {state: {phase: Completed}}}`, workv1alpha2.RunComplete},
		"RayJob":                {`{apiVersion: ray.io/v1, kind: RayJob, status: {jobStatus: FAILED}}`, workv1alpha2.RunFailed},
		"PipelineRunFailed":     {`{apiVersion: tekton.dev/v1, kind: PipelineRun, status: {completionTime: "2026-01-01T00:00:00Z", conditions: [{type: Succeeded, status: "False"}]}}`, workv1alpha2.RunFailed},
		"PipelineRunRetries":    {`{apiVersion: tekton.dev/v1, kind: PipelineRun, status: {conditions: [{type: Succeeded, status: "False"}]}}`, ""},
		"SomeonesJob":           {`{apiVersion: example.org/v1, kind: Import, status: {phase: Completed, completionTime: "2026-01-01T00:00:00Z"}}`, workv1alpha2.RunComplete},
		"InstalledIsNotEnded":   {`{apiVersion: operators.coreos.com/v1alpha1, kind: ClusterServiceVersion, status: {phase: Succeeded}}`, ""},
		"DeploymentNeverEnds":   {`{apiVersion: apps/v1, kind: Deployment, status: {conditions: [{type: Complete, status: "True"}]}}`, ""},
		"VolumeNeverEnds":       {`{apiVersion: v1, kind: PersistentVolume, status: {phase: Failed}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := RunPhase(object(t, tc.manifest)); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
