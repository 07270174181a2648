package scheduler

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"orrery.dev/orrery/internal/interpreter"
)

// Claim holds what each replica of an object requires of a cluster: the requests on a node, the
// nodes that accept the replica, and its amounts in the ResourceQuotas of its namespace. A Claim is
// immutable. A nil Claim requests nothing, fits on every node without taints, and counts in no
// quota.
type Claim struct {
	requests, limits map[corev1.ResourceName]int64
	affinity         *nodeaffinity.RequiredNodeAffinity // nil: every node
	tolerations      []corev1.Toleration

	namespace, priorityClass string
	scopes                   []corev1.ResourceQuotaScope
	object                   corev1.ResourceName // name of the kind in object count quotas

	where, ofNode, same func() string // computed lazily: most objects are not placed by capacity
}

// NewClaim returns the claim of replicas with the requirements r; nil for nil. The caller must not
// change r afterwards.
func NewClaim(r *interpreter.Requirements) *Claim {
	if r == nil {
		return nil
	}
	c := &Claim{
		requests: amounts(r.Requests), limits: amounts(r.Limits), tolerations: r.Tolerations,
		namespace: r.Namespace, priorityClass: r.PriorityClassName, scopes: r.Scopes,
	}
	if r.Kind.Kind != "" {
		// The resource name of Kubernetes' own kinds is guessed from the kind. For another kind
		// whose resource has another name, count quotas are not considered.
		plural, _ := meta.UnsafeGuessKindToResource(r.Kind)
		c.object = corev1.ResourceName("count/" + plural.GroupResource().String())
	}
	rule := corev1.PodSpec{NodeSelector: r.NodeSelector}
	if r.NodeAffinity != nil {
		rule.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: r.NodeAffinity}}
	}
	if len(r.NodeSelector) > 0 || r.NodeAffinity != nil {
		c.affinity = new(nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: rule}))
	}
	c.where = sync.OnceValue(func() string { return said(r.NodeSelector, r.NodeAffinity, r.Tolerations) })
	c.ofNode = sync.OnceValue(func() string { return c.where() + said(r.Requests) })
	c.same = sync.OnceValue(func() string { return said(r) })
	return c
}

func said(what ...any) string {
	all, err := json.Marshal(what)
	if err != nil {
		panic(err) // it is plain data
	}
	return string(all)
}

// amounts converts quantities to integers: CPU in thousandths, every other resource in units.
func amounts(l corev1.ResourceList) map[corev1.ResourceName]int64 {
	out := make(map[corev1.ResourceName]int64, len(l))
	for name, q := range l {
		if out[name] = q.Value(); name == corev1.ResourceCPU {
			out[name] = q.MilliValue()
		}
	}
	return out
}

// Requests returns what each replica requests of a node: CPU in thousandths, every other resource
// in units. The map is shared; do not change it.
func (c *Claim) Requests() map[corev1.ResourceName]int64 {
	if c == nil {
		return nil
	}
	return c.requests
}

// Same returns a key that is equal for equal claims. OfNode returns a key that is equal for claims
// with equal demands on a node. Where returns a key that is equal for claims that the same nodes
// accept.
func (c *Claim) Same() string {
	if c == nil {
		return ""
	}
	return c.same()
}

// OfNode returns a key for the demands on a node, see Same.
func (c *Claim) OfNode() string {
	if c == nil {
		return ""
	}
	return c.ofNode()
}

// Where returns a key for the nodes that accept the claim, see Same.
func (c *Claim) Where() string {
	if c == nil {
		return ""
	}
	return c.where()
}

// TakenBy reports whether a node accepts a replica, apart from capacity. It looks at the node's
// name, labels and taints only.
func (c *Claim) TakenBy(node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && (c == nil ||
			!slices.ContainsFunc(c.tolerations, func(toleration corev1.Toleration) bool { return Tolerates(toleration, t) })) {
			return false
		}
	}
	if c == nil || c.affinity == nil {
		return true
	}
	matches, err := c.affinity.Match(node)
	return matches && err == nil // kube-scheduler places nothing by an invalid rule, either
}

// Namespace returns the namespace in whose quotas the replicas count; "" if they count in none.
func (c *Claim) Namespace() string {
	if c == nil {
		return ""
	}
	return c.namespace
}

// Within reports whether a scope of a quota selects the replicas. A pod without a priority class is
// in no scope by class: the default class of the cluster is unknown.
func (c *Claim) Within(scope corev1.ScopedResourceSelectorRequirement) bool {
	if scope.ScopeName != corev1.ResourceQuotaScopePriorityClass {
		return scope.Operator == corev1.ScopeSelectorOpExists && slices.Contains(c.scopes, scope.ScopeName)
	}
	if c.priorityClass == "" {
		return false
	}
	switch scope.Operator {
	case corev1.ScopeSelectorOpIn:
		return slices.Contains(scope.Values, c.priorityClass)
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(scope.Values, c.priorityClass)
	case corev1.ScopeSelectorOpExists:
		return true
	case corev1.ScopeSelectorOpDoesNotExist:
	}
	return false
}

// Counts returns the amount of a quota's resource that each replica takes, and the amount that the
// object takes once. CPU is in thousandths. An unknown resource counts as 0.
func (c *Claim) Counts(resource corev1.ResourceName) (each, once int64) {
	if resource == corev1.ResourcePods || resource == "count/pods" {
		return 1, 0
	}
	// Resources of the core group may be named without the prefix "count/".
	if resource == c.object || "count/"+resource == c.object {
		return 0, 1
	}
	if limit, ok := strings.CutPrefix(string(resource), "limits."); ok {
		return c.limits[corev1.ResourceName(limit)], 0
	}
	return c.requests[corev1.ResourceName(strings.TrimPrefix(string(resource), corev1.DefaultResourceRequestsPrefix))], 0
}

// Taken describes replicas that take capacity: their claim, their number, and the number of objects
// that do not exist in the cluster yet.
type Taken struct {
	Claim             *Claim
	Replicas, Objects int64
}
