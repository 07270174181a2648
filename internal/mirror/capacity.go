package mirror

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	podresources "k8s.io/component-helpers/resource"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/scheduler"
)

// Capacity has the resources that a cluster's nodes offer and its pods request.
type Capacity struct {
	Nodes, ReadyNodes int32

	Allocatable corev1.ResourceList // of the nodes that are ready and schedulable
	Allocated   corev1.ResourceList // requested by pods that are bound to a node
	Allocating  corev1.ResourceList // requested by pods that wait for one
}

// Capacity returns a cluster's capacity as last observed; false while its nodes or pods are not
// listed.
func (m *Mirror) Capacity(cluster string) (Capacity, bool) {
	c := m.cluster(cluster)
	if c == nil {
		return Capacity{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.capacityKnown() {
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

// node has the parts of a node that count in the capacity.
type node struct {
	ready, schedulable bool
	allocatable        amounts
	about              *corev1.Node // its name, labels and taints
}

func (n *node) equal(other *node) bool {
	return n == other || n != nil && other != nil && n.ready == other.ready && n.schedulable == other.schedulable &&
		maps.Equal(n.allocatable, other.allocatable) && maps.Equal(n.about.Labels, other.about.Labels) &&
		slices.EqualFunc(n.about.Spec.Taints, other.about.Spec.Taints, func(a, b corev1.Taint) bool {
			// The time of a taint does not matter.
			return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
		})
}

// newNode parses the JSON of a node. Only the necessary parts of nodes and pods are parsed,
// because a start reads those of all clusters.
func newNode(body []byte) (*node, error) {
	var o struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable bool           `json:"unschedulable"`
			Taints        []corev1.Taint `json:"taints"`
		} `json:"spec"`
		Status struct {
			Allocatable corev1.ResourceList    `json:"allocatable"`
			Conditions  []corev1.NodeCondition `json:"conditions"`
		} `json:"status"`
	}
	if err := utiljson.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("read node: %w", err)
	}
	n := &node{schedulable: !o.Spec.Unschedulable, allocatable: amountsOf(o.Status.Allocatable), about: &corev1.Node{}}
	n.about.Name, n.about.Labels, n.about.Spec.Taints = o.Metadata.Name, o.Metadata.Labels, o.Spec.Taints
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.ready = c.Status == corev1.ConditionTrue
		}
	}
	return n, nil
}

// pod has the parts of a pod that has not ended.
type pod struct {
	node     string // "": it is pending
	requests amounts
	claim    *scheduler.Claim // its claim on nodes, if it is pending; else nil
}

// newPod parses the JSON of a pod; nil: the pod has ended and requests nothing.
func newPod(body []byte) (*pod, error) {
	var o struct {
		Spec struct {
			NodeName       string                       `json:"nodeName"`
			NodeSelector   map[string]string            `json:"nodeSelector"`
			Affinity       json.RawMessage              `json:"affinity"`
			Tolerations    json.RawMessage              `json:"tolerations"`
			Containers     []container                  `json:"containers"`
			InitContainers []container                  `json:"initContainers"`
			Overhead       corev1.ResourceList          `json:"overhead"`
			Resources      *corev1.ResourceRequirements `json:"resources"`
		} `json:"spec"`
		Status struct {
			Phase corev1.PodPhase `json:"phase"`
		} `json:"status"`
	}
	if err := utiljson.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil, nil //nolint:nilnil // documented
	}
	requests := podresources.PodRequests(&corev1.Pod{Spec: corev1.PodSpec{
		Containers: containers(o.Spec.Containers), InitContainers: containers(o.Spec.InitContainers),
		Overhead: o.Spec.Overhead, Resources: o.Spec.Resources,
	}}, podresources.PodResourcesOptions{})
	p := &pod{node: o.Spec.NodeName, requests: amountsOf(requests)}
	p.requests[corev1.ResourcePods] = 1
	if p.node == "" {
		r := &interpreter.Requirements{Requests: requests, NodeSelector: o.Spec.NodeSelector}
		if err := whichNodes(r, o.Spec.Affinity, o.Spec.Tolerations); err != nil {
			return nil, err
		}
		p.claim = scheduler.NewClaim(r)
	}
	return p, nil
}

// whichNodes parses the constraints of a pending pod on its node.
func whichNodes(r *interpreter.Requirements, affinity, tolerations json.RawMessage) error {
	var a struct {
		NodeAffinity corev1.NodeAffinity `json:"nodeAffinity"`
	}
	for _, part := range []struct {
		raw  json.RawMessage
		into any
	}{{affinity, &a}, {tolerations, &r.Tolerations}} {
		if len(part.raw) == 0 {
			continue
		}
		if err := json.Unmarshal(part.raw, part.into); err != nil {
			return fmt.Errorf("read pod: %w", err)
		}
	}
	r.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return nil
}

// container has the parts of a container that count.
type container struct {
	Resources     corev1.ResourceRequirements    `json:"resources"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
}

func containers(list []container) []corev1.Container {
	out := make([]corev1.Container, 0, len(list))
	for _, c := range list {
		out = append(out, corev1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return out
}

// capacity sums up a cluster's nodes and pods. Each change updates the sums.
type capacity struct {
	nodes                 map[string]*node
	pods                  map[key]*pod
	used                  map[string]amounts // by node
	allocated, allocating amounts
	waiting               map[string]waiting // pending pods, by claim
	quotas                map[key]*quota
	places                *places // nil after a change of a node
	room                  *Room   // nil after a change
}

func newCapacity() *capacity {
	return &capacity{
		nodes: map[string]*node{}, pods: map[key]*pod{}, used: map[string]amounts{}, allocated: amounts{}, allocating: amounts{},
		waiting: map[string]waiting{}, quotas: map[key]*quota{},
	}
}

// waiting are the pending pods with the same claim.
type waiting struct {
	claim *scheduler.Claim
	pods  int64
}

// wait adds a pending pod (sign 1), or removes it (-1).
func (c *capacity) wait(p *pod, sign int64) {
	same := p.claim.Same()
	w := c.waiting[same]
	w.claim = p.claim
	if w.pods += sign; w.pods == 0 {
		delete(c.waiting, same)
		return
	}
	c.waiting[same] = w
}

// setPod replaces a pod; nil: it ended or was deleted. changed reports whether that made a
// difference.
func (c *capacity) setPod(k key, p *pod) (changed bool) {
	old := c.pods[k]
	if old == p || old != nil && p != nil && old.node == p.node &&
		maps.Equal(old.requests, p.requests) && old.claim.Same() == p.claim.Same() {
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

// setQuota replaces a ResourceQuota; nil: it was deleted. changed reports whether that made a
// difference.
func (c *capacity) setQuota(k key, q *quota) (changed bool) {
	if c.quotas[k].equal(q) {
		return false
	}
	if q == nil {
		delete(c.quotas, k)
	} else {
		c.quotas[k] = q
	}
	return true
}

// setNode replaces a node; nil: it was deleted. changed reports whether that made a difference.
func (c *capacity) setNode(name string, n *node) (changed bool) {
	old := c.nodes[name]
	if old.equal(n) {
		return false
	}
	c.places = nil
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

// count adds a node, pod or quota to the cluster's capacity. The caller holds the cluster's lock.
func (t *table) count(k key, e *entry) {
	changed := false
	switch resourceOf(t.api) {
	case nodes:
		changed = t.cluster.capacity.setNode(k.name, e.node)
	case pods:
		changed = t.cluster.capacity.setPod(k, e.pod)
	case quotas:
		changed = t.cluster.capacity.setQuota(k, e.quota)
	}
	if !changed {
		return
	}
	t.cluster.capacity.room = nil
	if t.synced {
		t.cluster.mirror.fleet.Refresh(t.cluster.name)
		t.cluster.measured()
	}
}

// measured notifies the subscribers of a change of the cluster's free capacity. The caller holds
// the cluster's lock.
func (c *cluster) measured() {
	for _, f := range *c.mirror.roomSubscribers.Load() {
		f(c.name)
	}
}

// uncount removes a node, pod or quota from the cluster's capacity. The caller holds the
// cluster's lock.
func (t *table) uncount(k key) { t.count(k, &entry{}) }
