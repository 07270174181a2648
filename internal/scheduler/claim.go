package scheduler

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"orrery.dev/orrery/internal/interpreter"
)

// Claim holds what each replica of an object requires of a cluster: the requests on a node, the
// nodes that accept the replica, and what the replica takes from the ResourceQuotas of its
// namespace. A Claim is immutable. A nil Claim requests nothing, fits on every node without taints,
// and takes nothing from quotas.
type Claim struct {
	requests, limits map[corev1.ResourceName]int64
	affinity         *nodeaffinity.RequiredNodeAffinity // nil: every node
	tolerations      []corev1.Toleration

	namespace, priorityClass string
	scopes                   []corev1.ResourceQuotaScope
	object                   corev1.ResourceName // name of the kind in object count quotas

	// The results of Where, OfNode and Same. They are computed lazily: most objects are not placed by
	// capacity.
	where, ofNode, same func() string // computed lazily: most objects are not placed by capacity
}

// NewClaim returns the claim of replicas with the requirements r, which is nil for a nil r. The
// caller must not change r afterwards.
func NewClaim(r *interpreter.Requirements) *Claim {
	if r == nil {
		return nil
	}
	c := &Claim{
		requests: amounts(r.Requests), limits: amounts(r.Limits), tolerations: r.Tolerations,
		namespace: r.Namespace, priorityClass: r.PriorityClassName, scopes: r.Scopes,
	}
	if r.Kind.Kind != "" {
		// The resource name is guessed from the kind, which is right for Kubernetes' own kinds. If
		// the guess is wrong for a custom kind, object count quotas of that kind are ignored.
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

// said returns the JSON of the values, as a key for comparison. It panics if they cannot be
// encoded.
func said(what ...any) string {
	all, err := json.Marshal(what)
	if err != nil {
		panic(err) // cannot happen: callers only pass plain data
	}
	return string(all)
}

// amounts converts the quantities of a list to integers by Amount: CPU in thousandths, every other
// resource in units.
func amounts(l corev1.ResourceList) map[corev1.ResourceName]int64 {
	out := make(map[corev1.ResourceName]int64, len(l))
	for name, q := range l {
		out[name] = Amount(name, q)
	}
	return out
}

// Amount converts a quantity of a resource to an integer, rounded up: CPU in thousandths, every
// other resource in units. A larger quantity than int64 holds becomes the largest int64;
// Quantity.Value and Quantity.MilliValue return any number for it.
func Amount(name corev1.ResourceName, q resource.Quantity) int64 {
	var scale resource.Scale
	switch name {
	case corev1.ResourceCPU, corev1.ResourceRequestsCPU, corev1.ResourceLimitsCPU:
		scale = resource.Milli
	default:
	}
	if q.Cmp(*resource.NewScaledQuantity(math.MaxInt64, scale)) >= 0 {
		return math.MaxInt64
	}
	return q.ScaledValue(scale)
}

// Requests returns what each replica requests of a node: CPU in thousandths, every other resource
// in units. The map is shared; do not change it.
func (c *Claim) Requests() map[corev1.ResourceName]int64 {
	if c == nil {
		return nil
	}
	return c.requests
}

// Same returns a key by which callers group claims: two claims have the same key if all their
// requirements are equal. It is "" for a nil claim.
func (c *Claim) Same() string {
	if c == nil {
		return ""
	}
	return c.same()
}

// OfNode returns a key by which callers group claims: two claims have the same key if their keys
// Where are equal, and they request the same of a node. It is "" for a nil claim.
func (c *Claim) OfNode() string {
	if c == nil {
		return ""
	}
	return c.ofNode()
}

// Where returns a key by which callers group claims: two claims have the same key if their node
// selectors, node affinities and tolerations are equal. It is "" for a nil claim.
func (c *Claim) Where() string {
	if c == nil {
		return ""
	}
	return c.where()
}

// TakenBy reports whether a node accepts a replica, without regard to free capacity. It compares
// the node's name, labels and taints with the claim. No node accepts a claim with an invalid node
// affinity. A nil claim tolerates no taint.
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

// Namespace returns the namespace of the replicas, whose ResourceQuotas count them. It is "" if no
// quota counts them, as for a nil claim.
func (c *Claim) Namespace() string {
	if c == nil {
		return ""
	}
	return c.namespace
}

// Within reports whether a scope of a ResourceQuota selects the replicas, so that the quota may
// count them. Scopes by priority class select no pod without a class, because the default class
// of the cluster is unknown. c must not be nil.
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

// Counts returns how much of a resource in a ResourceQuota each replica takes, and how much the
// object takes once. CPU is in thousandths, every other resource in units. A resource that the
// replicas do not request counts as 0. c must not be nil.
func (c *Claim) Counts(name corev1.ResourceName) (each, once int64) {
	if name == corev1.ResourcePods || name == "count/pods" {
		return 1, 0
	}
	// Resources of the core group may be named without the prefix "count/".
	if name == c.object || "count/"+name == c.object {
		return 0, 1
	}
	if limit, ok := strings.CutPrefix(string(name), "limits."); ok {
		return c.limits[corev1.ResourceName(limit)], 0
	}
	return c.requests[corev1.ResourceName(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix))], 0
}

// Taken describes replicas that are subtracted from the free capacity of a cluster, such as those
// that a decision placed and the cluster does not run yet. Claim is what each replica requires.
// Objects is the number of their objects that do not exist in the cluster yet; object count quotas
// count these.
type Taken struct {
	Claim             *Claim
	Replicas, Objects int64
}
