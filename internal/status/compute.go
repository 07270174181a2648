package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
)

const (
	maxItemMessage      = 1024 // the schema's limit of appliedMessage
	maxConditionMessage = 2048
)

// contact says what is known of a cluster's answering.
type contact int

const (
	unsure contact = iota // not asked yet, or it has just stopped to answer
	answers
	lost
)

// view is what is known of a binding in one cluster.
type view struct {
	cluster string
	placed  bool // the binding names the cluster
	contact contact
	result  *apply.Result  // nil: not known
	listed  bool           // the mirror knows every object of the type
	object  *mirror.Object // nil: there is none, or it is not known
}

// compute returns the status that a binding shall have. What is not known stays.
func compute(b *workv1alpha2.ResourceBinding, outcome *placement.Outcome, views []view, now time.Time) (workv1alpha2.BindingStatus, error) {
	status := *b.Status.DeepCopy()
	written := make(map[string]workv1alpha2.AggregatedStatusItem, len(status.AggregatedStatus))
	for _, i := range status.AggregatedStatus {
		written[i.ClusterName] = i
	}
	items := make([]workv1alpha2.AggregatedStatusItem, 0, len(views))
	for _, v := range views {
		i, err := item(written[v.cluster], v)
		if err != nil {
			return status, err
		}
		items = append(items, i)
	}
	slices.SortFunc(items, func(a, b workv1alpha2.AggregatedStatusItem) int {
		return strings.Compare(a.ClusterName, b.ClusterName)
	})
	status.AggregatedStatus = items
	if len(items) == 0 {
		status.AggregatedStatus = nil
	}

	views = slices.DeleteFunc(slices.Clone(views), func(v view) bool { return !v.placed })
	slices.SortFunc(views, func(a, b view) int { return strings.Compare(a.cluster, b.cluster) })
	if outcome != nil {
		status.SchedulerObservedGeneration = outcome.Generation
		set(&status, metav1.Condition{
			Type: workv1alpha2.ConditionScheduled, Status: outcome.Status, Reason: outcome.Reason,
			Message: cut(outcome.Message, maxConditionMessage), ObservedGeneration: outcome.Generation,
		}, now)
	}
	for _, c := range []*metav1.Condition{fullyApplied(b, views), healthy(items, views)} {
		if c != nil {
			c.ObservedGeneration = b.Generation
			set(&status, *c, now)
		}
	}
	return status, nil
}

// item is what the status says of one cluster.
func item(written workv1alpha2.AggregatedStatusItem, v view) (workv1alpha2.AggregatedStatusItem, error) {
	i := written
	i.ClusterName = v.cluster
	if v.result != nil {
		i.Applied, i.AppliedMessage = v.result.Applied, cut(v.result.Message, maxItemMessage)
	}
	switch {
	case v.contact == lost:
		i.Health = workv1alpha2.ResourceUnknown
	case v.contact == unsure:
	case v.object != nil:
		i.Health, i.Status = v.object.Health, nil
		if len(v.object.Status) > 0 {
			raw, err := json.Marshal(v.object.Status)
			if err != nil {
				return i, fmt.Errorf("encode status in cluster %s: %w", v.cluster, err)
			}
			if i.Status = (&runtime.RawExtension{Raw: raw}); written.Status != nil && sameJSON(raw, written.Status.Raw) {
				i.Status = written.Status
			}
		}
	case v.listed:
		i.Health, i.Status = "", nil // it is not there
	}
	return i, nil
}

// sameJSON compares two documents without regard for how they are written down.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// precedence orders what may keep a binding from being applied, the most urgent first.
var precedence = []string{
	workv1alpha2.ReasonConflict, workv1alpha2.ReasonRejected, workv1alpha2.ReasonRenderFailed,
	workv1alpha2.ReasonAPINotServed, workv1alpha2.ReasonClusterUnreachable, workv1alpha2.ReasonApplying,
}

// fullyApplied sums up the results; nil: not known well enough to change what is written.
func fullyApplied(b *workv1alpha2.ResourceBinding, views []view) *metav1.Condition {
	c := &metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionFalse}
	if len(views) == 0 {
		c.Reason = workv1alpha2.ReasonNoClusterFits
		return c
	}
	if slices.ContainsFunc(views, func(v view) bool { return !answered(b, v) }) {
		if w := meta.FindStatusCondition(b.Status.Conditions, c.Type); w != nil && w.ObservedGeneration == b.Generation {
			return nil
		}
	}
	var waiting []string
	messages := map[string][]string{}
	for _, v := range views {
		switch {
		case !answered(b, v) && v.contact == lost:
			messages[workv1alpha2.ReasonClusterUnreachable] = append(messages[workv1alpha2.ReasonClusterUnreachable], v.cluster+": the cluster cannot be reached")
		case !answered(b, v):
			waiting = append(waiting, v.cluster)
		case !v.result.Applied:
			messages[v.result.Reason] = append(messages[v.result.Reason], v.cluster+": "+v.result.Message)
		}
	}
	for _, reason := range precedence {
		if len(messages[reason]) > 0 {
			c.Reason, c.Message = reason, cut(strings.Join(messages[reason], "; "), maxConditionMessage)
			return c
		}
	}
	if len(waiting) > 0 {
		c.Reason, c.Message = workv1alpha2.ReasonApplying, cut("waiting for "+strings.Join(waiting, ", "), maxConditionMessage)
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied
	return c
}

// answered is true when the result in a cluster speaks of the binding as it is now.
func answered(b *workv1alpha2.ResourceBinding, v view) bool {
	return v.result != nil && v.result.Generation >= b.Generation
}

// healthy sums up the objects' health; nil: not known well enough to change what is written.
func healthy(items []workv1alpha2.AggregatedStatusItem, views []view) *metav1.Condition {
	if len(views) == 0 {
		return &metav1.Condition{Type: workv1alpha2.ConditionHealthy, Status: metav1.ConditionFalse, Reason: workv1alpha2.ReasonNoClusterFits}
	}
	health := make(map[string]workv1alpha2.ResourceHealth, len(items))
	for _, i := range items {
		health[i.ClusterName] = i.Health
	}
	var away, unhealthy, waiting []string
	for _, v := range views {
		switch {
		case v.contact == lost:
			away = append(away, v.cluster)
		case v.contact == unsure || v.object == nil && !v.listed:
			return nil
		case health[v.cluster] == workv1alpha2.ResourceUnhealthy:
			unhealthy = append(unhealthy, v.cluster)
		case health[v.cluster] != workv1alpha2.ResourceHealthy:
			waiting = append(waiting, v.cluster)
		}
	}
	c := &metav1.Condition{Type: workv1alpha2.ConditionHealthy, Status: metav1.ConditionFalse}
	switch {
	case len(away) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, workv1alpha2.ReasonClusterUnreachable, strings.Join(away, ", ")
	case len(unhealthy) > 0:
		c.Reason, c.Message = workv1alpha2.ReasonUnhealthy, strings.Join(unhealthy, ", ")
	case len(waiting) > 0:
		c.Reason, c.Message = workv1alpha2.ReasonProgressing, strings.Join(waiting, ", ")
	default:
		c.Status, c.Reason = metav1.ConditionTrue, workv1alpha2.ReasonHealthy
	}
	c.Message = cut(c.Message, maxConditionMessage)
	return c
}

// removal says which clusters keep a deleted binding from going, and the way out; nil: it
// is about to go, or not known.
func removal(views []view) *metav1.Condition {
	var away, busy []string
	for _, v := range views {
		switch v.contact {
		case lost:
			away = append(away, v.cluster)
		case answers:
			busy = append(busy, v.cluster)
		case unsure:
		}
	}
	slices.Sort(away)
	slices.Sort(busy)
	c := &metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionFalse}
	switch {
	case len(away) > 0:
		c.Reason = workv1alpha2.ReasonClusterUnreachable
		c.Message = "deleted; its copies go when these clusters answer again, or are given up when they are unjoined: " + strings.Join(away, ", ")
	case len(busy) > 0:
		c.Reason = workv1alpha2.ReasonRemoving
		c.Message = "deleted; its copies are not gone yet from " + strings.Join(busy, ", ")
	default:
		return nil
	}
	c.Message = cut(c.Message, maxConditionMessage)
	return c
}

// set sets a condition; only a change of its status moves lastTransitionTime.
func set(status *workv1alpha2.BindingStatus, c metav1.Condition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&status.Conditions, c)
}

// cut shortens a text to at most n bytes without breaking a character.
func cut(s string, n int) string {
	const ellipsis = "…"
	if len(s) <= n {
		return s
	}
	n -= len(ellipsis)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + ellipsis
}
