package mirror

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"orrery.dev/orrery/internal/scheduler"
)

// quota has the parts of a ResourceQuota that count in a `Room`. It is immutable.
type quota struct {
	name   string
	scopes []corev1.ScopedResourceSelectorRequirement // it counts pods that are in all scopes
	left   amounts                                    // hard limits less usage, CPU in thousandths
}

// newQuota parses the JSON of a ResourceQuota. As in the admission of pods, its status counts. A
// limit without a reported usage does not limit.
func newQuota(name string, body []byte) (*quota, error) {
	var o struct {
		Spec struct {
			Scopes        []corev1.ResourceQuotaScope `json:"scopes"`
			ScopeSelector *corev1.ScopeSelector       `json:"scopeSelector"`
		} `json:"spec"`
		Status corev1.ResourceQuotaStatus `json:"status"`
	}
	if err := utiljson.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("read resourcequota: %w", err)
	}
	q := &quota{name: name, left: amounts{}}
	for _, scope := range o.Spec.Scopes {
		q.scopes = append(q.scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists})
	}
	if o.Spec.ScopeSelector != nil {
		q.scopes = append(q.scopes, o.Spec.ScopeSelector.MatchExpressions...)
	}
	for name, hard := range o.Status.Hard {
		used, known := o.Status.Used[name]
		if !known {
			continue
		}
		q.left[name] = less(name, hard, used)
	}
	return q, nil
}

// less returns the difference of two quantities. Both are rounded up, CPU to thousandths, others
// to units.
func less(name corev1.ResourceName, hard, used resource.Quantity) int64 {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceRequestsCPU, corev1.ResourceLimitsCPU:
		return hard.MilliValue() - used.MilliValue()
	default:
		return hard.Value() - used.Value()
	}
}

func (q *quota) equal(other *quota) bool {
	return q == other || q != nil && other != nil && q.name == other.name && maps.Equal(q.left, other.left) &&
		slices.EqualFunc(q.scopes, other.scopes, func(a, b corev1.ScopedResourceSelectorRequirement) bool {
			return a.ScopeName == b.ScopeName && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
		})
}

// counts reports whether the quota counts the replicas of a claim.
func (q *quota) counts(claim *scheduler.Claim) bool {
	return !slices.ContainsFunc(q.scopes, func(scope corev1.ScopedResourceSelectorRequirement) bool { return !claim.Within(scope) })
}

// fits returns how many more replicas the quota accepts. there means that their object exists
// already.
func (q *quota) fits(claim *scheduler.Claim, there bool) int64 {
	most := int64(math.MaxInt32)
	for name, left := range q.left {
		each, once := claim.Counts(name)
		if !there && once > left {
			return 0
		}
		if each > 0 {
			most = min(most, max(0, left)/each)
		}
	}
	return most
}

// sets returns how many times the quota accepts all replicas of the components. there means that
// their object exists already.
func (q *quota) sets(components []scheduler.Component, there bool) int64 {
	most := int64(math.MaxInt32)
	for name, left := range q.left {
		var all, once int64
		for i := range components {
			c := &components[i]
			if c.Claim == nil || !q.counts(c.Claim) {
				continue
			}
			each, object := c.Claim.Counts(name)
			all, once = plus(all, times(each, c.Replicas)), max(once, object)
		}
		if !there && once > left {
			return 0
		}
		if all > 0 {
			most = min(most, max(0, left)/all)
		}
	}
	return most
}

// times and plus return the result for numbers that are not negative; on overflow, the largest
// number.
func times(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// without returns the quota after replicas were counted in it.
func (q *quota) without(t scheduler.Taken) *quota {
	rest := &quota{name: q.name, scopes: q.scopes, left: maps.Clone(q.left)}
	for name := range rest.left {
		each, once := t.Claim.Counts(name)
		rest.left[name] -= each*t.Replicas + once*t.Objects
	}
	return rest
}
