package mirror

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"orrery.dev/orrery/internal/scheduler"
)

// quota has the parts of a ResourceQuota that limit the free capacity of its namespace in a
// cluster. It is immutable.
type quota struct {
	name   string
	scopes []corev1.ScopedResourceSelectorRequirement // a pod counts only if all of them select it
	left   amounts                                    // hard limits less usage, CPU in thousandths
}

// newQuota parses the JSON of a ResourceQuota with the name. The limits and the usage are those in
// its status, as in the admission of pods. A limit without a reported usage is ignored.
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
		q.left[name] = minus(scheduler.Amount(name, hard), scheduler.Amount(name, used))
	}
	return q, nil
}

// equal reports whether two quotas have the same name, scopes and remaining amounts. Both may be
// nil.
func (q *quota) equal(other *quota) bool {
	return q == other || q != nil && other != nil && q.name == other.name && maps.Equal(q.left, other.left) &&
		slices.EqualFunc(q.scopes, other.scopes, func(a, b corev1.ScopedResourceSelectorRequirement) bool {
			return a.ScopeName == b.ScopeName && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
		})
}

// counts reports whether the quota counts replicas with the claim (what each replica requires): all
// scopes of the quota select them.
func (q *quota) counts(claim *scheduler.Claim) bool {
	return !slices.ContainsFunc(q.scopes, func(scope corev1.ScopedResourceSelectorRequirement) bool { return !claim.Within(scope) })
}

// fits returns how many more replicas with the claim the quota accepts, at most math.MaxInt32.
// there is true if the object of the replicas exists in the cluster already, so that the quota does
// not count it again. The result is 0 if the quota refuses a new object. The caller calls fits only
// if q.counts(claim) is true.
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

// sets returns how many times the quota accepts all replicas of all components of an object
// together, at most math.MaxInt32. It ignores components that the quota does not count. there is
// true if the object exists in the cluster already, so that the quota does not count it again.
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

// times returns a * b, or the nearest int64 if int64 cannot hold the product.
func times(a, b int64) int64 {
	result := a * b
	switch {
	case a == 0 || result/a == b && (a != -1 || b != math.MinInt64):
		return result
	case (a < 0) == (b < 0):
		return math.MaxInt64
	default:
		return math.MinInt64
	}
}

// plus returns a + b, or the nearest int64 if int64 cannot hold the sum.
func plus(a, b int64) int64 {
	switch result := a + b; {
	case b > 0 && result < a:
		return math.MaxInt64
	case b < 0 && result > a:
		return math.MinInt64
	default:
		return result
	}
}

// minus returns a - b, or the nearest int64 if int64 cannot hold the difference.
func minus(a, b int64) int64 {
	switch result := a - b; {
	case b > 0 && result > a:
		return math.MinInt64
	case b < 0 && result < a:
		return math.MaxInt64
	default:
		return result
	}
}

// without returns a copy of the quota that has less left: less the replicas and objects of t. The
// amounts may become negative. The caller calls without only if q.counts(t.Claim) is true.
func (q *quota) without(t scheduler.Taken) *quota {
	rest := &quota{name: q.name, scopes: q.scopes, left: maps.Clone(q.left)}
	for name, left := range rest.left {
		each, once := t.Claim.Counts(name)
		rest.left[name] = minus(left, plus(times(each, t.Replicas), times(once, t.Objects)))
	}
	return rest
}
