package interpreter

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Component is one of several groups of pods of an object, each with its own pod template, such as
// the head and the workers of a RayCluster.
type Component struct {
	Name string
	// Replicas is the number of pods in the group that the object requests.
	Replicas int32
	// Requirements is what each pod of the group requires of its cluster. For an invalid pod spec it
	// has only what is known without it.
	Requirements *Requirements
}

// mostComponents is the number of components that a binding can store. Objects with more count as
// without components.
const mostComponents = 1000

// Components returns the components of an object, in the order in which the object has them. It is
// nil for a kind that is not known to have components, and for an object with more than 1,000. For
// a suspended object they are those that it will run.
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
						name = fmt.Sprint("default", i) // as Volcano names it; the others require a name
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

// composite describes a kind whose objects have components.
type composite struct {
	parts []part // the places in an object that have components
	// pods returns the number of existing pods of all components from the status of an object, ready
	// or not, including pods that ended.
	pods func(o map[string]any) int64
}

// part describes one place in the objects of a kind that has components.
type part struct {
	// at is the path of one component, of a list of components or, if keyed is true, of a map from
	// names to components.
	at    []string
	keyed bool
	// name is the name of the component if at has only one. For a list it is the field with the name
	// of each component. It is not used for a map.
	name string
	// spec is the path of the pod spec in a component. pods returns the number of pods of a component
	// with this name.
	spec []string
	pods func(name string, component map[string]any) int64
}

// composites are the kinds whose objects have components, with the defaults of their operators. No
// built-in kind of Kubernetes has components. By convention a custom kind has at most one pod
// template; kinds with more have no common form.
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
			// KubeRay labels the pod of the head like this.
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

// podTemplate is the path of the pod spec in a component with a usual pod template.
var podTemplate = []string{"template", "spec"}

// kubeflow describes a kind of Kubeflow whose components are in the map spec.SPECS. workers is the
// default number of pods of the component Worker. All other components have one pod by default.
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

// podsOfJob returns the number of pods that each Job of c, an element of spec.replicatedJobs of a
// JobSet, runs at once: its parallelism, but at most its completions.
func podsOfJob(c map[string]any) int64 {
	return min(or(1, c, "template", "spec", "parallelism"), or(math.MaxInt32, c, "template", "spec", "completions"))
}

// podsOfJobSet returns about how many pods of a JobSet exist: those of Jobs that are ready or have
// ended. The status of a JobSet counts only Jobs.
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

// or returns the number at a path, limited to between 0 and math.MaxInt32. If it is absent or no
// whole number, it is byDefault.
func or(byDefault int64, o map[string]any, path ...string) int64 {
	n, found, err := unstructured.NestedInt64(o, path...)
	if !found || err != nil {
		n = byDefault
	}
	return min(max(n, 0), math.MaxInt32)
}

// component returns the component c of the object o, with the name.
func (p *part) component(o *unstructured.Unstructured, name string, c map[string]any) Component {
	at, _, _ := unstructured.NestedFieldNoCopy(c, p.spec...)
	spec, _ := at.(map[string]any)
	r := requirementsIn(o, podSpec(spec))
	if r == nil {
		r = requirementsIn(o, nil)
	}
	return Component{Name: name, Replicas: bounded(p.pods(name, c)), Requirements: r}
}
