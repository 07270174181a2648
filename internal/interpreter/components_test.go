package interpreter

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestComponents checks the components and the number of pods of the samples in testdata, which
// have the kinds of several operators.
func TestComponents(t *testing.T) {
	text, err := os.ReadFile("testdata/components.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, pods := map[string]string{}, map[string]int32{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		o := &unstructured.Unstructured{}
		body, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		if err := o.UnmarshalJSON(body); err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, c := range Components(o) {
			r := c.Requirements
			if r.Kind != o.GroupVersionKind() || r.Namespace != "ml" {
				t.Errorf("%s of %s counts as a %s in %s", c.Name, o.GetName(), r.Kind, r.Namespace)
			}
			one := fmt.Sprintf("%s=%d", c.Name, c.Replicas)
			if cpu := r.Requests.Cpu(); !cpu.IsZero() {
				one += "*" + cpu.String()
			}
			if len(r.NodeSelector) > 0 {
				one += "@" + r.NodeSelector["pool"]
			}
			if len(r.Tolerations) > 0 {
				one += "?" // its requirements are unknown
			}
			said = append(said, one)
		}
		got[o.GetName()], pods[o.GetName()] = strings.Join(said, " "), Pods(o)
	}
	want := map[string]string{
		"train": "driver=1*1 workers=8*3@gpu last=3", "ray": "headgroup=1*2 small=3*1 hosts=8*8 capped=6 none=0",
		"pytorch": "Master=1*1 Worker=2*2", "tensorflow": "PS=2*1 Worker=1*2", "mpi": "Launcher=1*1 Worker=0*1",
		"xgboost": "Master=1 Worker=2", "jax": "Worker=2", "volcano": "master=1*1 default1=4*500m",
		"odd": "negative=0 no-template=2? no-spec=2147483647?", "empty": "", "web": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int32{
		"train": 1 + 4 + 3, "ray": 10, "pytorch": 3, "tensorflow": 3, "mpi": 0, "xgboost": 0, "jax": 0, "volcano": 5, "odd": 0, "empty": 0, "web": 0,
	}, pods); diff != "" {
		t.Errorf("pods that are there (-want +got):\n%s", diff)
	}
}

// TestTooManyComponents: an object with more components than a binding can have counts as one
// without known components.
func TestTooManyComponents(t *testing.T) {
	var tasks []any
	for range mostComponents {
		tasks = append(tasks, map[string]any{"replicas": int64(1)})
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": map[string]any{"tasks": tasks}}}
	if got := len(Components(o)); got != mostComponents {
		t.Errorf("%d components, want %d", got, mostComponents)
	}
	o.Object["spec"] = map[string]any{"tasks": append(tasks, tasks[0])}
	if got := len(Components(o)); got != 0 {
		t.Errorf("%d components, want none", got)
	}
}
