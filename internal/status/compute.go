package status

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/template"
)

const (
	maxItems            = 100  // clusters in status.aggregatedStatus
	maxItemMessage      = 1024 // bytes of appliedMessage, as the schema limits it
	maxScheduledMessage = 1024 // bytes of the message of the condition Scheduled
	maxConditionMessage = 512  // bytes of the messages of the other conditions
	maxNamed            = 5    // clusters that a message names
)

// contact says whether a cluster answers the hub.
type contact int

const (
	unsure contact = iota // not probed yet since the start
	answers
	lost // it does not answer, or is no longer on the hub
)

// view is what is known of a binding in one cluster: of its copy, the object that was rendered from
// the template.
type view struct {
	cluster string
	id      string // the ID of the cluster, see member.ID; "": it does not answer
	placed  bool   // the binding names the cluster
	// leaving is true if the binding no longer names the cluster, but the copy stays there until as
	// many replicas are available elsewhere.
	leaving bool
	contact contact
	result  *apply.Result     // of the last attempt to write the copy; nil: none is known
	listed  bool              // the mirror knows every object of the type in the cluster
	object  *mirror.Object    // the copy; nil: there is none, or it is not known
	ended   *mirror.Object    // the last state of a copy that is gone; nil: none was seen
	run     *workv1alpha2.Run // record of the work of a Job or Pod in the cluster; nil: none
	contest apply.Contest     // another client undoes writes of the copy; empty Reason: none does

	// recorded is the entry of the cluster in the stored status of the binding, or from before the
	// start; nil: none.
	recorded *workv1alpha2.AggregatedStatusItem
}

// subject has the facts about the template of a binding on which the status depends.
type subject struct {
	version    string           // see template.Version; "": the template is not known
	generation int64            // 0 for kinds without generations
	observed   int64            // observedGeneration in the status of the template
	nodePorts  map[string]int64 // see interpreter.NodePorts
	// deletion is the message about what the deletion of the template waits for; "": the template is
	// not deleted, or waits for nothing. waitReason is the reason for the condition DeletionWaits.
	deletion, waitReason string
	edited               bool // this process has seen another version of the template
	// isNew is true while this process has not run long enough to know that no client undoes writes of
	// copies any more.
	isNew bool
}

// applied says whether a cluster has the manifest that is wanted now, as far as is known.
type applied int

const (
	unknown applied = iota // the status that was written before stays
	yes
	no          // for the reason in view.result
	unreachable // the cluster does not answer
	waiting     // the present version has not been written to the cluster yet
)

// clusterState is what is known of a binding in a cluster, with what its status says about that.
type clusterState struct {
	view
	applied applied
	item    workv1alpha2.AggregatedStatusItem // the entry of the cluster in the status
}

// current reports whether the copy in the cluster is the one that is wanted now: its manifest was
// applied, and the mirror does not show another one. It is also true if the work has ended and no
// copy is left.
func (s clusterState) current() bool {
	switch {
	case s.applied != yes:
		return false
	case s.rests():
		return true
	case s.object == nil:
		return s.result == nil || !s.listed
	default:
		return s.result == nil || s.object.Digest == s.result.Digest
	}
}

// judge returns the state of the binding b in the cluster of each view, sorted by cluster. of
// describes the template. The error is that of a status that cannot be encoded.
func judge(b *workv1alpha2.ResourceBinding, of subject, views []view) ([]clusterState, error) {
	states := make([]clusterState, 0, len(views))
	alone := len(b.Spec.Clusters) == 1
	for _, v := range views {
		v.deletedAgain()
		s := clusterState{view: v, applied: judgeApplied(b, of, v)}
		var err error
		if s.item, err = item(s, binding.Kind(b).GroupKind(), alone); err != nil {
			return nil, err
		}
		states = append(states, s)
	}
	slices.SortFunc(states, func(a, b clusterState) int { return cmp.Compare(a.cluster, b.cluster) })
	return states, nil
}

// judgeApplied returns whether one cluster has the manifest that is wanted now. A result of the
// applier counts only if it is about the present template and binding, and is not stale. Without
// one, the status that an earlier process wrote counts, if it may still hold.
func judgeApplied(b *workv1alpha2.ResourceBinding, of subject, v view) applied {
	r := v.result
	switch {
	case r != nil && of.version != "" && b.Spec.Resource.Generation == of.generation &&
		!r.Stale && r.Generation >= b.Generation && template.Same(r.Template, of.version):
		if r.Applied {
			return yes
		}
		return no
	case (r == nil || of.version == "") && stands(b, of, v.contact):
		if v.contact != lost {
			return unknown
		}
		if v.recorded != nil && v.recorded.Applied {
			return yes
		}
		return unreachable
	case v.contact == lost:
		return unreachable
	}
	return waiting
}

// stands reports whether the status that an earlier process wrote may still hold for the present
// template: the generations of binding and template are the same, and this process saw no edit. A
// template without generations may have been edited while no process ran. So for such a template
// the status does not hold for a lost cluster (c).
func stands(b *workv1alpha2.ResourceBinding, of subject, c contact) bool {
	w := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	if w == nil || w.ObservedGeneration != b.Generation || of.edited {
		return false
	}
	return of.version == "" || b.Spec.Resource.Generation == of.generation && (of.generation != 0 || c != lost)
}

// compute returns the new status of the binding b. Conditions and counts about which too little is
// known stay as they are. of describes the template, outcome is the last decision (nil: none is
// known), and states and runs are those of the clusters. It changes no argument.
func compute(
	b *workv1alpha2.ResourceBinding, of subject, outcome *placement.Outcome, states []clusterState, runs []workv1alpha2.Run, now time.Time,
) workv1alpha2.BindingStatus {
	status := *b.Status.DeepCopy()
	status.AggregatedStatus, status.Runs = items(states), runs
	if outcome != nil {
		set(&status, metav1.Condition{
			Type: workv1alpha2.ConditionScheduled, Status: outcome.Status, Reason: outcome.Reason,
			Message: cut(outcome.Message, maxScheduledMessage), ObservedGeneration: outcome.Generation,
		}, now)
	}
	states = slices.DeleteFunc(slices.Clone(states), func(s clusterState) bool { return !s.placed })
	if c, ok := counts(states); ok {
		status.Counts = &c
	}
	if of.version != "" && len(of.nodePorts) == 0 {
		// The Service has another type now.
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionHubNodePorts)
	}
	if of.version != "" && of.deletion == "" {
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionDeletionWaits)
	}
	if contested(states) == nil && (!of.isNew || len(states) == 0) {
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionContested)
	}
	for _, c := range []*metav1.Condition{
		fullyApplied(states), healthy(states), hubNodePorts(of, states), deletionWaits(of), contested(states),
	} {
		if c != nil {
			c.ObservedGeneration = b.Generation
			set(&status, *c, now)
		}
	}
	return status
}

// items returns the entries of the status for at most maxItems clusters. Clusters that are to have
// no copy any more come first, because only their entry remembers them. Then come clusters in which
// the copy is not applied and healthy, then all others.
func items(states []clusterState) []workv1alpha2.AggregatedStatusItem {
	rank := func(s clusterState) int {
		switch {
		case !s.placed:
			return 0
		case !s.item.Applied || s.item.Health != workv1alpha2.ResourceHealthy:
			return 1
		}
		return 2
	}
	states = slices.Clone(states)
	slices.SortStableFunc(states, func(a, b clusterState) int { return cmp.Compare(rank(a), rank(b)) })
	var items []workv1alpha2.AggregatedStatusItem
	for _, s := range states[:min(maxItems, len(states))] {
		items = append(items, s.item)
	}
	return items
}

// counts returns the numbers of clusters in which the copy is applied, healthy and unhealthy. ok is
// false if nothing is known of some cluster; the numbers in the status then stay.
func counts(states []clusterState) (c workv1alpha2.ClusterCounts, ok bool) {
	for _, s := range states {
		if s.applied == unknown && s.recorded == nil {
			return c, false
		}
		c.Total++
		if s.item.Applied {
			c.Applied++
		}
		switch s.item.Health {
		case workv1alpha2.ResourceHealthy:
			c.Healthy++
		case workv1alpha2.ResourceUnhealthy:
			c.Unhealthy++
		case workv1alpha2.ResourceUnknown:
		}
	}
	return c, true
}

// item returns the entry of one cluster in the status. Parts that are not known stay as they were
// recorded. alone is true if the binding names only this cluster: then the entry has the whole
// reflected status of the copy, else only what interpreter.Brief returns. kind is that of the
// template.
func item(s clusterState, kind schema.GroupKind, alone bool) (workv1alpha2.AggregatedStatusItem, error) {
	var recorded workv1alpha2.AggregatedStatusItem
	if s.recorded != nil {
		recorded = *s.recorded
	}
	i := recorded
	i.ClusterName = s.cluster
	switch {
	case s.applied == unknown:
	case s.applied == no || !s.placed && s.result != nil:
		i.Applied, i.AppliedMessage = s.result.Applied, cut(s.result.Message, maxItemMessage)
	case s.applied == yes && s.result != nil:
		i.Applied, i.AppliedMessage = true, cut(s.result.Message, maxItemMessage)
	case s.applied == yes:
		i.Applied = true // an earlier process recorded that
	default:
		i.Applied, i.AppliedMessage = false, ""
	}
	switch {
	case s.contact == lost:
		i.Health = workv1alpha2.ResourceUnknown
	case s.contact == unsure:
	case s.object != nil:
		i.Health, i.Status = s.object.Health, nil
		if len(s.object.Status) > 0 {
			body := s.object.Status
			if !alone {
				body = interpreter.Brief(body)
			}
			raw, err := json.Marshal(body)
			if err != nil {
				return i, fmt.Errorf("encode status in cluster %s: %w", s.cluster, err)
			}
			if i.Status = (&runtime.RawExtension{Raw: raw}); recorded.Status != nil && sameJSON(raw, recorded.Status.Raw) {
				i.Status = recorded.Status
			}
		}
	case s.rests():
		return i, restingItem(&i, &s.view, kind)
	case s.listed:
		i.Health, i.Status = "", nil // the object is absent
	}
	return i, nil
}

// sameJSON reports whether two JSON documents have the same content.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// precedence lists the reasons for which the condition FullyApplied is False, the most urgent
// first. The condition has the first one that applies to a cluster.
var precedence = []string{
	workv1alpha2.ReasonHubRestored,
	workv1alpha2.ReasonConflict, workv1alpha2.ReasonRejected, workv1alpha2.ReasonRenderFailed, workv1alpha2.ReasonPodSecurity,
	workv1alpha2.ReasonMutated, workv1alpha2.ReasonRunUnknown, workv1alpha2.ReasonAPINotServed, workv1alpha2.ReasonListFails, workv1alpha2.ReasonOverrideMissing, workv1alpha2.ReasonSuspended,
	workv1alpha2.ReasonClusterUnreachable, workv1alpha2.ReasonApplying,
}

// fullyApplied returns the condition FullyApplied: whether all clusters have the wanted manifest.
// It is nil if too little is known to change the condition. For a binding without clusters it is
// False.
func fullyApplied(states []clusterState) *metav1.Condition {
	c := &metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionFalse}
	if len(states) == 0 {
		c.Reason = workv1alpha2.ReasonNoClusterFits
		return c
	}
	var due, notes []string
	messages := map[string][]string{}
	for _, s := range states {
		switch s.applied {
		case unknown:
			return nil
		case yes:
			if s.item.AppliedMessage != "" {
				notes = append(notes, s.cluster+": "+s.item.AppliedMessage)
			}
		case no:
			messages[s.result.Reason] = append(messages[s.result.Reason], s.cluster+": "+s.result.Message)
		case unreachable:
			const reason = workv1alpha2.ReasonClusterUnreachable
			messages[reason] = append(messages[reason], s.cluster+": the cluster cannot be reached")
		case waiting:
			due = append(due, s.cluster)
		}
	}
	for _, reason := range precedence {
		if len(messages[reason]) > 0 {
			c.Reason, c.Message = reason, listing(messages[reason], "; ")
			return c
		}
	}
	if len(due) > 0 {
		c.Reason, c.Message = workv1alpha2.ReasonApplying, "waiting for "+listing(due, ", ")
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied, listing(notes, "; ")
	return c
}

// healthy returns the condition Healthy: whether the copies in all clusters are healthy. It is nil
// if too little is known to change the condition. A healthy copy counts only if it is the one that
// is wanted now. The condition is Unknown if a cluster does not answer.
func healthy(states []clusterState) *metav1.Condition {
	c := &metav1.Condition{Type: workv1alpha2.ConditionHealthy, Status: metav1.ConditionFalse}
	if len(states) == 0 {
		c.Reason = workv1alpha2.ReasonNoClusterFits
		return c
	}
	var away, unhealthy, due, unjudged []string
	for _, s := range states {
		switch {
		case s.contact == lost:
			away = append(away, s.cluster)
		case s.contact == unsure || s.object == nil && !s.listed:
			return nil
		case s.rests() && s.item.Health == workv1alpha2.ResourceUnhealthy:
			unhealthy = append(unhealthy, s.cluster+": "+string(s.run.Phase))
		case s.rests():
		case s.item.Health == workv1alpha2.ResourceUnhealthy:
			said := s.cluster
			if why := interpreter.Cause(s.object.Status); why != "" {
				said += ": " + why
			}
			unhealthy = append(unhealthy, said)
		case s.object == nil || s.applied != unknown && !s.current():
			due = append(due, s.cluster)
		case s.item.Health == workv1alpha2.ResourceUnknown:
			unjudged = append(unjudged, s.cluster)
		}
	}
	switch {
	case len(away) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, workv1alpha2.ReasonClusterUnreachable, listing(away, ", ")
	case len(unhealthy) > 0:
		c.Reason, c.Message = workv1alpha2.ReasonUnhealthy, listing(unhealthy, "; ")
	case len(due) > 0:
		c.Reason, c.Message = workv1alpha2.ReasonProgressing, listing(due, ", ")
	case len(unjudged) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, workv1alpha2.ReasonCannotJudge
		c.Message = "no health check for this kind: " + listing(unjudged, ", ")
	default:
		c.Status, c.Reason = metav1.ConditionTrue, workv1alpha2.ReasonHealthy
	}
	return c
}

// hubNodePorts returns the condition HubNodePorts: whether all clusters serve a Service of type
// NodePort at the node ports that it has on the hub. It is nil if that is not known, or the
// template is not such a Service. For a cluster that does not answer, its last state counts.
func hubNodePorts(of subject, states []clusterState) *metav1.Condition {
	if len(of.nodePorts) == 0 {
		return nil
	}
	var own []string
	known := false
	for _, s := range states {
		if !s.placed {
			continue
		}
		if !s.current() {
			return nil // the ports may be those of an earlier version
		}
		var status map[string]any
		if s.object != nil {
			status = s.object.Status
		} else if s.item.Status != nil && json.Unmarshal(s.item.Status.Raw, &status) != nil {
			continue // this package did not write it
		}
		is := interpreter.ReflectedNodePorts(status)
		known = known || len(is) > 0
		for _, port := range slices.Sorted(maps.Keys(of.nodePorts)) {
			if n, ok := is[port]; ok && n != of.nodePorts[port] {
				own = append(own, fmt.Sprintf("%s: %s is at %d, not %d", s.cluster, port, n, of.nodePorts[port]))
			}
		}
	}
	switch {
	case !known:
		return nil
	case len(own) > 0:
		return &metav1.Condition{
			Type: workv1alpha2.ConditionHubNodePorts, Status: metav1.ConditionFalse, Reason: workv1alpha2.ReasonOwnNodePorts,
			Message: listing(own, "; "),
		}
	default:
		return &metav1.Condition{Type: workv1alpha2.ConditionHubNodePorts, Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonHubNodePorts}
	}
}

// reported returns the reports from which interpreter.Aggregate computes the status of the
// template. ok is false if too little is known to change that status.
func reported(of subject, states []clusterState) (reports []interpreter.Report, ok bool) {
	for _, s := range states {
		switch {
		case !s.placed && s.leaving && s.contact != lost && s.object != nil:
			reports = append(reports, interpreter.Report{Cluster: s.cluster, Leaving: true, Status: s.object.Status})
			continue
		case !s.placed || s.skipped():
			continue
		case s.applied == unknown || s.contact == unsure:
			return nil, false
		}
		r := interpreter.Report{Cluster: s.cluster}
		if s.object != nil {
			r.Status, r.Asked = s.object.Status, &s.object.Replicas
		} else if s.item.Status != nil && json.Unmarshal(s.item.Status.Raw, &r.Status) != nil {
			r.Status = nil // this package did not write it
		}
		if s.result != nil {
			r.Current = s.current()
			r.Observed = r.Current && interpreter.Observed(r.Status)
		} else {
			// Only an earlier process saw that the copy was applied. So the status of the template
			// stays, but its observedGeneration does not increase.
			r.Current = s.applied == yes && of.observed == of.generation
			r.Observed = r.Current
		}
		reports = append(reports, r)
	}
	return reports, true
}

// set sets a condition in the status. lastTransitionTime changes only if the status of the
// condition changes.
func set(status *workv1alpha2.BindingStatus, c metav1.Condition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&status.Conditions, c)
}

// listing joins the first maxNamed texts about clusters with the separator, and adds the number of
// the others. The result fits into the message of a condition.
func listing(said []string, separator string) string {
	more := ""
	if len(said) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(said)-maxNamed)
		said = said[:maxNamed]
	}
	return cut(strings.Join(said, separator), maxConditionMessage-len(more)-100) + more
}

// cut shortens a text to at most n bytes without splitting a character. A text that was cut ends
// with an ellipsis.
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
