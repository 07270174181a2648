package mirror

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Replicas that are on their way, and pods that wait for a node, take room on the nodes one by one.
func TestRoomWithout(t *testing.T) {
	c := newCapacity()
	for _, name := range []string{"n1", "n2"} {
		c.setNode(name, &node{ready: true, schedulable: true, allocatable: amounts{"cpu": 4000, "pods": 10}})
	}
	cpu := func(q string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(q)} }
	fits := func(what string, r *Room, want ...int64) {
		t.Helper()
		for i, request := range []corev1.ResourceList{cpu("3"), cpu("1"), nil} {
			if got := r.Fits(request); got != want[i] {
				t.Errorf("%s: %d fit of request %d, want %d", what, got, i, want[i])
			}
		}
	}
	empty := c.measure()
	fits("empty", empty, 2, 8, 20)
	taken := func(yield func(corev1.ResourceList, int64) bool) {
		_ = yield(cpu("1"), 2) && yield(nil, 3) && yield(corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}, 5)
	}
	fits("taken", empty.Without(taken), 1, 6, 15)
	fits("more is taken than there is", empty.Without(func(yield func(corev1.ResourceList, int64) bool) { yield(cpu("3"), 9) }), 0, 2, 18)
	fits("empty as before", empty, 2, 8, 20)

	wait := func(name string, cpu int64) {
		c.setPod(key{name: name}, &pod{requests: amounts{"cpu": cpu, "pods": 1}})
	}
	wait("p1", 1000)
	wait("p2", 1000)
	wait("huge", 9000)
	fits("pods wait", c.measure(), 1, 6, 18)
	c.setPod(key{name: "p1"}, &pod{node: "n2", requests: amounts{"cpu": 1000, "pods": 1}})
	fits("one has a node", c.measure(), 2, 6, 18)
	c.setPod(key{name: "p2"}, nil)
	c.setPod(key{name: "huge"}, nil)
	fits("the others are gone", c.measure(), 2, 7, 19)
	if len(c.waiting) > 0 {
		t.Errorf("%d kinds of pods wait", len(c.waiting))
	}
}
