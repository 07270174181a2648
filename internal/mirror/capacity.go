package mirror

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	podresources "k8s.io/component-helpers/resource"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Capacity is what a cluster's nodes offer and its pods request.
type Capacity struct {
	Nodes, ReadyNodes int32

	Allocatable corev1.ResourceList // of the nodes that are ready and schedulable
	Allocated   corev1.ResourceList // requested by pods that are bound to a node
	Allocating  corev1.ResourceList // requested by pods that wait for one
}

// Capacity returns a cluster's capacity as last observed; false while its nodes or pods
// are not listed.
func (m *Mirror) Capacity(cluster string) (Capacity, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[cluster]
	if c == nil || !c.capacityKnown() {
		return Capacity{}, false
	}
	allocatable, ready := c.capacity.allocatable()
	return Capacity{
		Nodes: int32(len(c.capacity.nodes)), ReadyNodes: ready, //nolint:gosec // no cluster has 2^31 nodes
		Allocatable: allocatable.list(), Allocated: c.capacity.allocated.list(), Allocating: c.capacity.allocating.list(),
	}, true
}

// amounts are quantities as numbers: CPU in thousandths, everything else in units.
type amounts map[corev1.ResourceName]int64

func amountsOf(l corev1.ResourceList) amounts {
	out := make(amounts, len(l))
	for name, q := range l {
		if name == corev1.ResourceCPU {
			out[name] = q.MilliValue()
		} else {
			out[name] = q.Value()
		}
	}
	return out
}

func (a amounts) add(b amounts, sign int64) {
	for name, n := range b {
		if a[name] += sign * n; a[name] == 0 {
			delete(a, name)
		}
	}
}

func (a amounts) list() corev1.ResourceList {
	out := make(corev1.ResourceList, len(a))
	for name, n := range a {
		switch name {
		case corev1.ResourceCPU:
			out[name] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			out[name] = *resource.NewQuantity(n, resource.BinarySI)
		default:
			out[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return out
}

// node is what is remembered of a node.
type node struct {
	ready, schedulable bool
	allocatable        amounts
}

func newNode(o *unstructured.Unstructured) (*node, error) {
	var typed corev1.Node
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return nil, fmt.Errorf("read node %s: %w", o.GetName(), err)
	}
	n := &node{schedulable: !typed.Spec.Unschedulable, allocatable: amountsOf(typed.Status.Allocatable)}
	for _, c := range typed.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.ready = c.Status == corev1.ConditionTrue
		}
	}
	return n, nil
}

// pod is what is remembered of a pod that has not ended.
type pod struct {
	node     string // "": it waits for one
	requests amounts
}

func newPod(o *unstructured.Unstructured) (*pod, error) {
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	if typed.Status.Phase == corev1.PodSucceeded || typed.Status.Phase == corev1.PodFailed {
		return nil, nil //nolint:nilnil // a pod that has ended requests nothing
	}
	requests := amountsOf(podresources.PodRequests(&typed, podresources.PodResourcesOptions{}))
	requests[corev1.ResourcePods] = 1
	return &pod{node: typed.Spec.NodeName, requests: requests}, nil
}

// capacity adds up a cluster's nodes and pods as they come and go.
type capacity struct {
	nodes                 map[string]*node
	pods                  map[key]*pod
	used                  map[string]amounts // by node
	allocated, allocating amounts
	waiting               map[string]waiting // pods without a node, by what they request
	room                  *Room              // nil after a change
}

func newCapacity() *capacity {
	return &capacity{
		nodes: map[string]*node{}, pods: map[key]*pod{}, used: map[string]amounts{}, allocated: amounts{}, allocating: amounts{},
		waiting: map[string]waiting{},
	}
}

// waiting are pods that wait for a node and request the same.
type waiting struct {
	request corev1.ResourceList
	pods    int64
}

// wait counts a pod that waits for a node, or no longer does.
func (c *capacity) wait(p *pod, sign int64) {
	same := fmt.Sprint(p.requests) // by name
	w, known := c.waiting[same]
	if !known {
		w.request = p.requests.list()
	}
	if w.pods += sign; w.pods == 0 {
		delete(c.waiting, same)
		return
	}
	c.waiting[same] = w
}

// setPod replaces what is known of a pod; nil: it ended or is gone. It says whether that
// is news.
func (c *capacity) setPod(k key, p *pod) (changed bool) {
	old := c.pods[k]
	if old == p || old != nil && p != nil && old.node == p.node && maps.Equal(old.requests, p.requests) {
		return false
	}
	if old != nil {
		c.account(old, -1)
		delete(c.pods, k)
	}
	if p != nil {
		c.account(p, 1)
		c.pods[k] = p
	}
	return true
}

func (c *capacity) account(p *pod, sign int64) {
	if p.node == "" {
		c.allocating.add(p.requests, sign)
		c.wait(p, sign)
		return
	}
	c.allocated.add(p.requests, sign)
	if c.used[p.node] == nil {
		c.used[p.node] = amounts{}
	}
	c.used[p.node].add(p.requests, sign)
	if len(c.used[p.node]) == 0 {
		delete(c.used, p.node)
	}
}

// setNode replaces what is known of a node; nil: it is gone. It says whether that is news.
func (c *capacity) setNode(name string, n *node) (changed bool) {
	old := c.nodes[name]
	if old == n || old != nil && n != nil && old.ready == n.ready && old.schedulable == n.schedulable && maps.Equal(old.allocatable, n.allocatable) {
		return false
	}
	if n == nil {
		delete(c.nodes, name)
	} else {
		c.nodes[name] = n
	}
	return true
}

func (c *capacity) allocatable() (total amounts, ready int32) {
	total = amounts{}
	for _, n := range c.nodes {
		if n.ready {
			ready++
		}
		if n.ready && n.schedulable {
			total.add(n.allocatable, 1)
		}
	}
	return total, ready
}

func (c *capacity) summary() (*clusterv1alpha1.NodeSummary, *clusterv1alpha1.ResourceSummary) {
	allocatable, ready := c.allocatable()
	return &clusterv1alpha1.NodeSummary{Total: int32(len(c.nodes)), Ready: ready}, //nolint:gosec // no cluster has 2^31 nodes
		&clusterv1alpha1.ResourceSummary{
			Allocatable: allocatable.list(), Allocated: c.allocated.list(), Allocating: c.allocating.list(),
		}
}

// count takes a node or pod into the cluster's capacity; the index must be locked.
func (t *table) count(k key, e *entry) {
	changed := false
	switch resourceOf(t.api) {
	case nodes:
		changed = t.cluster.capacity.setNode(k.name, e.node)
	case pods:
		changed = t.cluster.capacity.setPod(k, e.pod)
	}
	if !changed {
		return
	}
	t.cluster.capacity.room = nil
	if t.synced {
		t.cluster.mirror.fleet.Refresh(t.cluster.name)
		for _, f := range t.cluster.mirror.roomSubscribers {
			f(t.cluster.name)
		}
	}
}

// uncount takes a node or pod out of the cluster's capacity.
func (t *table) uncount(k key) { t.count(k, &entry{}) }
