package interpreter

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Component is one of several kinds of pods that an object has, each with its own template.
type Component struct {
	Name string
	// Replicas is how many pods of the kind the object asks for.
	Replicas int32
	// Requirements are those of each of these pods; of a spec that is none, nothing is known.
	Requirements *Requirements
}

// mostComponents is how many components a binding has room for.
const mostComponents = 1000

// Components returns the components of an object, in the order in which it has them; nil of a kind of which none
// are known, and of an object that has more than 1,000. One that is suspended has those that it will run.
func Components(o *unstructured.Unstructured) []Component {
	var components []Component
	for _, p := range composites[o.GroupVersionKind().GroupKind()].parts {
		at, _, _ := unstructured.NestedFieldNoCopy(o.Object, p.at...)
		switch all := at.(type) {
		case []any:
			for i, each := range all {
				if c, ok := each.(map[string]any); ok {
					name := text(c, p.name)
					if name == "" {
						name = fmt.Sprint("default", i) // as Volcano calls it; the others demand a name
					}
					components = append(components, p.component(o, name, c))
				}
			}
		case map[string]any:
			if !p.keyed {
				components = append(components, p.component(o, p.name, all))
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if c, ok := all[name].(map[string]any); ok {
					components = append(components, p.component(o, name, c))
				}
			}
		}
	}
	if len(components) > mostComponents {
		return nil
	}
	return components
}

// composite is what is known of a kind that has components.
type composite struct {
	parts []part
	// pods counts in an object's status those that are there, whether they are ready or not, and those that ended.
	pods func(o map[string]any) int64
}

// part is where a kind has components.
type part struct {
	// at is the path of one component, of a list of components or, if keyed, of a map of them by name.
	at    []string
	keyed bool
	// name is that of the one component, or the field in which those of a list have theirs.
	name string
	// spec is the path of the spec of a component's pods, and pods how many of them there are.
	spec []string
	pods func(name string, component map[string]any) int64
}

// composites are the kinds that have components, with the defaults of their operators. None of Kubernetes' own is among
// them, and by convention a custom kind has one pod template at most: those that have more say so each in its own way.
var composites = map[schema.GroupKind]composite{
	{Group: "jobset.x-k8s.io", Kind: "JobSet"}: {
		parts: []part{{
			at: []string{"spec", "replicatedJobs"}, name: "name", spec: []string{"template", "spec", "template", "spec"},
			pods: func(_ string, c map[string]any) int64 { return or(1, c, "replicas") * podsOfJob(c) },
		}},
		pods: podsOfJobSet,
	},
	{Group: "ray.io", Kind: "RayCluster"}: {
		parts: []part{
			// KubeRay labels the pod of the head so.
			{at: []string{"spec", "headGroupSpec"}, name: "headgroup", spec: podTemplate, pods: func(string, map[string]any) int64 { return 1 }},
			{at: []string{"spec", "workerGroupSpecs"}, name: "groupName", spec: podTemplate, pods: func(_ string, c map[string]any) int64 {
				return min(max(or(0, c, "replicas"), or(0, c, "minReplicas")), or(math.MaxInt32, c, "maxReplicas")) * or(1, c, "numOfHosts")
			}},
		},
		pods: func(o map[string]any) int64 {
			n := number(o, "status", "availableWorkerReplicas")
			if text(o, "status", "head", "podIP") != "" {
				n++
			}
			return n
		},
	},
	{Group: "batch.volcano.sh", Kind: "Job"}: {
		parts: []part{{
			at: []string{"spec", "tasks"}, name: "name", spec: podTemplate,
			pods: func(_ string, c map[string]any) int64 { return or(0, c, "replicas") },
		}},
		pods: func(o map[string]any) (n int64) {
			for _, state := range []string{"pending", "running", "succeeded", "failed", "terminating", "unknown"} {
				n += number(o, "status", state)
			}
			return n
		},
	},
	{Group: "kubeflow.org", Kind: "PyTorchJob"}: kubeflow("pytorchReplicaSpecs", 1),
	{Group: "kubeflow.org", Kind: "TFJob"}:      kubeflow("tfReplicaSpecs", 1),
	{Group: "kubeflow.org", Kind: "XGBoostJob"}: kubeflow("xgbReplicaSpecs", 1),
	{Group: "kubeflow.org", Kind: "JAXJob"}:     kubeflow("jaxReplicaSpecs", 1),
	{Group: "kubeflow.org", Kind: "MPIJob"}:     kubeflow("mpiReplicaSpecs", 0),
}

// podTemplate is the path of the pods' spec where a component has a pod template as most kinds have it.
var podTemplate = []string{"template", "spec"}

// kubeflow is a kind of Kubeflow's, whose workers are so many where it does not say; of everything else one.
func kubeflow(specs string, workers int64) composite {
	return composite{
		parts: []part{{at: []string{"spec", specs}, keyed: true, spec: podTemplate, pods: func(name string, c map[string]any) int64 {
			if name == "Worker" {
				return or(workers, c, "replicas")
			}
			return or(1, c, "replicas")
		}}},
		pods: func(o map[string]any) (n int64) {
			all, _, _ := unstructured.NestedFieldNoCopy(o, "status", "replicaStatuses")
			statuses, _ := all.(map[string]any)
			for _, status := range statuses {
				if s, ok := status.(map[string]any); ok {
					n += number(s, "active") + number(s, "succeeded") + number(s, "failed")
				}
			}
			return n
		},
	}
}

// podsOfJob is how many pods each Job of a replicated job runs at once.
func podsOfJob(c map[string]any) int64 {
	return min(or(1, c, "template", "spec", "parallelism"), or(math.MaxInt32, c, "template", "spec", "completions"))
}

// podsOfJobSet counts the pods of the Jobs of which all are there, or which ended: the status of a JobSet counts Jobs.
func podsOfJobSet(o map[string]any) (n int64) {
	jobs := list(o, "spec", "replicatedJobs")
	for _, status := range list(o, "status", "replicatedJobsStatus") {
		s, _ := status.(map[string]any)
		for _, job := range jobs {
			if c, ok := job.(map[string]any); ok && text(c, "name") == text(s, "name") {
				n += (number(s, "ready") + number(s, "succeeded") + number(s, "failed")) * podsOfJob(c)
			}
		}
	}
	return n
}

// or reads a number between 0 and the greatest 32-bit one; what is absent or something else is the default.
func or(byDefault int64, o map[string]any, path ...string) int64 {
	n, found, err := unstructured.NestedInt64(o, path...)
	if !found || err != nil {
		n = byDefault
	}
	return min(max(n, 0), math.MaxInt32)
}

func (p *part) component(o *unstructured.Unstructured, name string, c map[string]any) Component {
	at, _, _ := unstructured.NestedFieldNoCopy(c, p.spec...)
	spec, _ := at.(map[string]any)
	r := requirementsIn(o, podSpec(spec))
	if r == nil {
		r = requirementsIn(o, nil)
	}
	return Component{Name: name, Replicas: int32(min(p.pods(name, c), math.MaxInt32)), Requirements: r} //nolint:gosec // at least 0
}
