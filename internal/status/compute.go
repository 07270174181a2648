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
)

const (
	maxItems            = 100  // clusters in aggregatedStatus
	maxItemMessage      = 1024 // the schema's limit of appliedMessage
	maxScheduledMessage = 1024 // the message names clusters that were not chosen
	maxConditionMessage = 512
	maxNamed            = 5 // clusters that a message names
)

// contact says whether a cluster answers.
type contact int

const (
	unsure contact = iota // not probed yet
	answers
	lost
)

// view is what is known of a binding in one cluster.
type view struct {
	cluster string
	id      string // the ID of the cluster, see member.ID; "": it does not answer
	placed  bool   // the binding names the cluster
	// leaving is true if the binding does not name the cluster, and the copy stays until as much
	// is available elsewhere.
	leaving bool
	contact contact
	result  *apply.Result     // nil: not known
	listed  bool              // the mirror knows every object of the type
	object  *mirror.Object    // nil: there is none, or it is not known
	ended   *mirror.Object    // the last state of a copy that is gone; nil: none was seen
	run     *workv1alpha2.Run // the new record of the work there; nil: none
	contest apply.Contest     // why the copy is contested

	// recorded is what was known of the cluster before this process started; nil: nothing.
	recorded *workv1alpha2.AggregatedStatusItem
}

// subject is the current template of a status.
type subject struct {
	version    string // see template.Version; "": not known
	generation int64  // 0 for kinds without
	observed   int64  // observedGeneration in its status
	nodePorts  map[string]int64
	// deletion says what the deletion of the template waits for; "": the template is not deleted,
	// or waits for nothing. waitReason is the reason of the condition.
	deletion, waitReason string
	edited               bool // this process has seen another version of the template
	// isNew is true if this process has not watched long enough to know that no copy is contested.
	isNew bool
}

// applied says whether a cluster has the manifest that is wanted now.
type applied int

const (
	unknown applied = iota // the earlier status stays
	yes
	no          // for the reason in the result of the cluster
	unreachable // the cluster cannot be asked
	waiting     // the cluster has not answered for this version yet
)

// The state of a binding in a cluster, with the conclusions for its status.
type standing struct {
	view
	applied applied
	item    workv1alpha2.AggregatedStatusItem
}

// current reports whether the object in the cluster, too, is the one that is wanted now. What
// was applied counts as present until the cluster shows otherwise.
func (s standing) current() bool {
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

// judge returns the state of a binding in each cluster, sorted by cluster.
func judge(b *workv1alpha2.ResourceBinding, of subject, views []view) ([]standing, error) {
	standings := make([]standing, 0, len(views))
	alone := len(b.Spec.Clusters) == 1
	for _, v := range views {
		v.deletedAgain()
		s := standing{view: v, applied: judgeApplied(b, of, v)}
		var err error
		if s.item, err = item(s, binding.Kind(b).GroupKind(), alone); err != nil {
			return nil, err
		}
		standings = append(standings, s)
	}
	slices.SortFunc(standings, func(a, b standing) int { return cmp.Compare(a.cluster, b.cluster) })
	return standings, nil
}

// judgeApplied judges one cluster. Only a result for the current template, binding and manifest
// counts.
func judgeApplied(b *workv1alpha2.ResourceBinding, of subject, v view) applied {
	r := v.result
	switch {
	case r != nil && of.version != "" && b.Spec.Resource.Generation == of.generation &&
		!r.Stale && r.Generation >= b.Generation && r.Template == of.version:
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

// stands reports whether the status that an earlier process wrote may still hold for the
// current template. The generation of the template shows that. For a template without
// generations, an edit while no process ran would go unnoticed. So the status does not hold
// then for a cluster that cannot be asked.
func stands(b *workv1alpha2.ResourceBinding, of subject, c contact) bool {
	w := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	if w == nil || w.ObservedGeneration != b.Generation || of.edited {
		return false
	}
	return of.version == "" || b.Spec.Resource.Generation == of.generation && (of.generation != 0 || c != lost)
}

// compute returns the new status of a binding. Parts that are not known stay.
func compute(
	b *workv1alpha2.ResourceBinding, of subject, outcome *placement.Outcome, standings []standing, runs []workv1alpha2.Run, now time.Time,
) workv1alpha2.BindingStatus {
	status := *b.Status.DeepCopy()
	status.AggregatedStatus, status.Runs = items(standings), runs
	if outcome != nil {
		set(&status, metav1.Condition{
			Type: workv1alpha2.ConditionScheduled, Status: outcome.Status, Reason: outcome.Reason,
			Message: cut(outcome.Message, maxScheduledMessage), ObservedGeneration: outcome.Generation,
		}, now)
	}
	standings = slices.DeleteFunc(slices.Clone(standings), func(s standing) bool { return !s.placed })
	if c, ok := counts(standings); ok {
		status.Counts = &c
	}
	if of.version != "" && len(of.nodePorts) == 0 {
		// The Service has another type now.
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionHubNodePorts)
	}
	if of.version != "" && of.deletion == "" {
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionDeletionWaits)
	}
	if contested(standings) == nil && (!of.isNew || len(standings) == 0) {
		meta.RemoveStatusCondition(&status.Conditions, workv1alpha2.ConditionContested)
	}
	for _, c := range []*metav1.Condition{
		fullyApplied(standings), healthy(standings), hubNodePorts(of, standings), deletionWaits(of), contested(standings),
	} {
		if c != nil {
			c.ObservedGeneration = b.Generation
			set(&status, *c, now)
		}
	}
	return status
}

// items returns the entries of single clusters: first of those that are to hold no copy any
// more, as only the entries remember them, then of those that are not applied and healthy.
func items(standings []standing) []workv1alpha2.AggregatedStatusItem {
	rank := func(s standing) int {
		switch {
		case !s.placed:
			return 0
		case !s.item.Applied || s.item.Health != workv1alpha2.ResourceHealthy:
			return 1
		}
		return 2
	}
	standings = slices.Clone(standings)
	slices.SortStableFunc(standings, func(a, b standing) int { return cmp.Compare(rank(a), rank(b)) })
	var items []workv1alpha2.AggregatedStatusItem
	for _, s := range standings[:min(maxItems, len(standings))] {
		items = append(items, s.item)
	}
	return items
}

// counts returns the numbers of clusters. ok is false if too little is known to change the status.
func counts(standings []standing) (c workv1alpha2.ClusterCounts, ok bool) {
	for _, s := range standings {
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

// item returns the entry of one cluster. If it is the only cluster (alone), the entry has the
// whole reflected status.
func item(s standing, kind schema.GroupKind, alone bool) (workv1alpha2.AggregatedStatusItem, error) {
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
		i.Applied = true // as an earlier process saw it
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

// sameJSON reports whether two documents are equal as JSON.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// precedence lists the reasons why a binding is not applied, the most urgent first.
var precedence = []string{
	workv1alpha2.ReasonHubRestored,
	workv1alpha2.ReasonConflict, workv1alpha2.ReasonRejected, workv1alpha2.ReasonRenderFailed, workv1alpha2.ReasonPodSecurity,
	workv1alpha2.ReasonMutated, workv1alpha2.ReasonRunUnknown, workv1alpha2.ReasonAPINotServed, workv1alpha2.ReasonListFails, workv1alpha2.ReasonOverrideMissing, workv1alpha2.ReasonSuspended,
	workv1alpha2.ReasonClusterUnreachable, workv1alpha2.ReasonApplying,
}

// fullyApplied returns the condition FullyApplied; nil if too little is known to change it.
func fullyApplied(standings []standing) *metav1.Condition {
	c := &metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionFalse}
	if len(standings) == 0 {
		c.Reason = workv1alpha2.ReasonNoClusterFits
		return c
	}
	var due, notes []string
	messages := map[string][]string{}
	for _, s := range standings {
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

// healthy returns the condition Healthy; nil if too little is known to change it. A healthy
// object counts only if it is the one that is wanted now.
func healthy(standings []standing) *metav1.Condition {
	c := &metav1.Condition{Type: workv1alpha2.ConditionHealthy, Status: metav1.ConditionFalse}
	if len(standings) == 0 {
		c.Reason = workv1alpha2.ReasonNoClusterFits
		return c
	}
	var away, unhealthy, due, unjudged []string
	for _, s := range standings {
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
		c.Message = "its status does not say whether it does its job: " + listing(unjudged, ", ")
	default:
		c.Status, c.Reason = metav1.ConditionTrue, workv1alpha2.ReasonHealthy
	}
	return c
}

// hubNodePorts returns the condition that says whether the clusters serve a Service of type
// NodePort at its node ports on the hub; nil if that is not known, or the template is no such
// Service. A cluster that cannot be asked counts as it was last seen.
func hubNodePorts(of subject, standings []standing) *metav1.Condition {
	if len(of.nodePorts) == 0 {
		return nil
	}
	var own []string
	known := false
	for _, s := range standings {
		if !s.placed {
			continue
		}
		if !s.current() {
			return nil // its ports are those of another generation
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

// reported returns the reports for the template's own status. ok is false if too little is
// known to change that status.
func reported(of subject, standings []standing) (reports []interpreter.Report, ok bool) {
	for _, s := range standings {
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
			// An earlier process saw it applied. That keeps the status that it wrote, but advances
			// nothing.
			r.Current = s.applied == yes && of.observed == of.generation
			r.Observed = r.Current
		}
		reports = append(reports, r)
	}
	return reports, true
}

// set sets a condition. Only a change of its status changes lastTransitionTime.
func set(status *workv1alpha2.BindingStatus, c metav1.Condition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&status.Conditions, c)
}

// listing joins the first texts about clusters and counts the others.
func listing(said []string, separator string) string {
	more := ""
	if len(said) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(said)-maxNamed)
		said = said[:maxNamed]
	}
	return cut(strings.Join(said, separator), maxConditionMessage-len(more)-100) + more
}

// cut shortens a text to at most n bytes without splitting a character.
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
