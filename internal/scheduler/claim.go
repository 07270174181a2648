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

// Claim is what each replica of an object claims of a cluster: what it requests of a node, which
// nodes take it, and what it counts in the quotas of its namespace. It does not change. The nil
// Claim requests nothing, fits on every node without taints, and counts in no quota.
type Claim struct {
	requests, limits map[corev1.ResourceName]int64
	affinity         *nodeaffinity.RequiredNodeAffinity // nil: every node
	tolerations      []corev1.Toleration

	namespace, priorityClass string
	scopes                   []corev1.ResourceQuotaScope
	object                   corev1.ResourceName // how a quota calls objects of the kind

	where, ofNode, same func() string // made when somebody asks: most objects are not placed by room
}

// NewClaim is the claim of replicas with some requirements; nil: of replicas of which none are known. The
// requirements must not change any more.
func NewClaim(r *interpreter.Requirements) *Claim {
	if r == nil {
		return nil
	}
	c := &Claim{
		requests: amounts(r.Requests), limits: amounts(r.Limits), tolerations: r.Tolerations,
		namespace: r.Namespace, priorityClass: r.PriorityClassName, scopes: r.Scopes,
	}
	if r.Kind.Kind != "" {
		// Kubernetes' own kinds are called as they are guessed to be. A quota that calls another
		// kind otherwise does not limit it here.
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

// amounts are quantities as numbers: CPU in thousandths, everything else in units.
func amounts(l corev1.ResourceList) map[corev1.ResourceName]int64 {
	out := make(map[corev1.ResourceName]int64, len(l))
	for name, q := range l {
		if out[name] = q.Value(); name == corev1.ResourceCPU {
			out[name] = q.MilliValue()
		}
	}
	return out
}

// Requests is what each replica requests of a node, CPU in thousandths, everything else in units. It is shared: do
// not change it.
func (c *Claim) Requests() map[corev1.ResourceName]int64 {
	if c == nil {
		return nil
	}
	return c.requests
}

// Same is alike for claims that claim the same, OfNode for those that claim the same of nodes, and
// Where for those that the same nodes take.
func (c *Claim) Same() string {
	if c == nil {
		return ""
	}
	return c.same()
}

// OfNode is documented at Same.
func (c *Claim) OfNode() string {
	if c == nil {
		return ""
	}
	return c.ofNode()
}

// Where is documented at Same.
func (c *Claim) Where() string {
	if c == nil {
		return ""
	}
	return c.where()
}

// TakenBy says whether a node, of which name, labels and taints are known, takes a replica if it
// has the room.
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
	return matches && err == nil // a cluster's scheduler places nothing by a rule that is wrong, either
}

// Namespace is that of the object, whose quotas its replicas count in; empty: they count in none.
func (c *Claim) Namespace() string {
	if c == nil {
		return ""
	}
	return c.namespace
}

// Within says whether the replicas are in a scope of a quota, as far as that can be judged: which priority
// class a cluster gives to a pod without one is not known, so such a pod is in no scope by its class.
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

// Counts is how much of a quota's resource each replica takes, and how much the object takes once;
// CPU in thousandths. A resource that is not known here takes nothing.
func (c *Claim) Counts(resource corev1.ResourceName) (each, once int64) {
	if resource == corev1.ResourcePods || resource == "count/pods" {
		return 1, 0
	}
	if resource == c.object || "count/"+resource == c.object { // those of the core group may be called so, too
		return 0, 1
	}
	if limit, ok := strings.CutPrefix(string(resource), "limits."); ok {
		return c.limits[corev1.ResourceName(limit)], 0
	}
	return c.requests[corev1.ResourceName(strings.TrimPrefix(string(resource), corev1.DefaultResourceRequestsPrefix))], 0
}

// Taken are replicas that take room: as many with a claim, and of how many objects that are not
// there yet.
type Taken struct {
	Claim             *Claim
	Replicas, Objects int64
}
