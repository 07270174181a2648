// Package failover decides which evictions may begin, and when. An eviction is that of an object
// from a cluster, because of a taint with the effect NoExecute that the object does not tolerate.
// The package placement decides which evictions are due, and where the objects go.
//
// Judge and Limits.Cluster are pure: they say why evictions wait, by one snapshot of the fleet and
// the stored State. Queue grants those that do not wait, at a rate. Taints is pure: it says which
// taints the ClusterTaintPolicies give to a cluster. Keeper writes these taints, and keeps the
// State in a ConfigMap. See docs/design/0030-failover.md.
package failover

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/scheduler"
)

// Hold is the reason why an eviction that is due waits. "" means that it does not wait.
type Hold string

// The values of Hold. Judge returns those of the whole fleet, and Limits.Cluster those of one
// cluster.
const (
	HoldOff           Hold = "TurnedOff"     // a flag turns evictions off
	HoldUnknown       Hold = "StateUnknown"  // the State was not read yet
	HoldPaused        Hold = "Paused"        // a user has paused failover
	HoldUnconfirmed   Hold = "Unconfirmed"   // the taint is older than the first start with failover
	HoldStarting      Hold = "Starting"      // a cluster was not probed yet since the start
	HoldSettling      Hold = "Settling"      // the cluster began or ceased to answer a moment ago
	HoldManyAtOnce    Hold = "ManyAtOnce"    // too many clusters do not answer
	HoldRate          Hold = "RateLimited"   // other evictions come first, or the rate is 0
	HoldJobMayRun     Hold = "JobMayRun"     // the object runs once, and may run in the cluster
	HoldNoReplacement Hold = "NoReplacement" // no other cluster fits
)

// Wait says why an eviction waits. The zero value means that it does not wait.
type Wait struct {
	Hold Hold
	// Message is for users. It changes only with what the eviction waits for: it has no counters.
	Message string
	// Until is when the wait ends; zero: it ends when something changes.
	Until time.Time
}

// Verdict says whether evictions may begin in the whole fleet.
type Verdict struct {
	// Wait says why no eviction may begin. With the Hold "" evictions may begin, Rate of them in a
	// second. Rate is 0 while they wait.
	Wait Wait
	Rate float64
	// Secondary is true while so many clusters do not answer that the secondary rate applies.
	Secondary bool
}

// Judge returns whether evictions may begin in the fleet at the time now. Only clusters that joined
// and do not leave the fleet count.
func Judge(s *fleet.Snapshot, state State, limits Limits, now time.Time) Verdict {
	switch {
	case !limits.NoExecute:
		return waiting(HoldOff, "--"+flagNoExecute+" of the server is false")
	case !state.Known:
		return waiting(HoldUnknown, "the server has not read ConfigMap "+clusterv1alpha1.SecretNamespace+"/"+ConfigMapName+" yet, which says whether failover is paused")
	case state.Paused:
		return waiting(HoldPaused, state.pause())
	}
	members := 0
	var lost, back []time.Time // since when clusters do not answer, or answer again
	for _, c := range s.Clusters() {
		switch {
		case !c.Joined || c.Leaving:
			continue
		case c.Lost:
			lost = append(lost, c.Since)
		case !c.Reachable && !c.Probed:
			return waiting(HoldStarting, unprobed(c.Name))
		case c.Reachable && now.Before(c.Since.Add(limits.Settling)):
			back = append(back, c.Since)
		}
		members++
	}
	if !limits.exceeded(len(lost), members) {
		// After an outage of the hub's network the clusters answer again one after the other.
		if len(lost) > 0 && limits.exceeded(len(lost)+len(back), members) {
			slices.SortFunc(back, time.Time.Compare)
			first := 0 // the time at this index ends the wait when its cluster has settled
			for first < len(back)-1 && limits.exceeded(len(lost)+len(back)-1-first, members) {
				first++
			}
			return Verdict{Wait: Wait{
				Hold: HoldSettling, Until: back[first].Add(limits.Settling),
				Message: fmt.Sprintf("more than %v of the clusters (--%s) do not answer, or began to less than %s ago (--%s)",
					limits.Threshold, flagThreshold, limits.Settling, flagSettling),
			}}
		}
		if limits.Rate == 0 {
			return waiting(HoldRate, "--"+flagRate+" is 0")
		}
		return Verdict{Rate: limits.Rate}
	}
	return limits.many(lost, members, now)
}

// waiting returns the verdict that no eviction may begin until something changes.
func waiting(hold Hold, message string) Verdict {
	return Verdict{Wait: Wait{Hold: hold, Message: message}}
}

// unprobed returns the message of HoldStarting: the cluster was not probed yet.
func unprobed(cluster string) string {
	return "cluster " + cluster + " was not probed yet since the server started"
}

// exceeded reports whether n of the members, which are not fewer, are more than the threshold.
func (l *Limits) exceeded(n, members int) bool {
	// 11 of 20 are exactly 0.55, but 0.55 times 20 may be a little more or less than 11.
	return n > 0 && float64(n)/float64(members) > l.Threshold
}

// many returns the verdict while more clusters than the threshold do not answer. lost has the times
// since when they do not, and members is the number of clusters. Nothing is evicted while so many
// ceased to answer within twice the default toleration: the cause may be the network of the hub.
func (l *Limits) many(lost []time.Time, members int, now time.Time) Verdict {
	const window = 2 * scheduler.DefaultToleration
	recent := slices.DeleteFunc(slices.Clone(lost), func(since time.Time) bool { return !since.After(now.Add(-window)) })
	small := members <= l.LargeFleet
	if l.exceeded(len(recent), members) {
		slices.SortFunc(recent, time.Time.Compare)
		first := 0 // the time at this index ends the wait when it is no longer recent
		for first < len(recent)-1 && l.exceeded(len(recent)-1-first, members) {
			first++
		}
		then := "if they stay away, evictions begin at --" + flagSecondaryRate
		if small {
			then = fmt.Sprintf("a fleet of at most %d clusters (--%s) evicts nothing meanwhile", l.LargeFleet, flagLargeFleet)
		}
		return Verdict{Secondary: true, Wait: Wait{
			Hold: HoldManyAtOnce, Until: recent[first].Add(window),
			Message: fmt.Sprintf("more than %v of the clusters (--%s) ceased to answer within %s; %s", l.Threshold, flagThreshold, window, then),
		}}
	}
	lostMany := fmt.Sprintf("more than %v of the clusters (--%s) do not answer", l.Threshold, flagThreshold)
	switch {
	case small:
		return Verdict{Secondary: true, Wait: Wait{
			Hold: HoldManyAtOnce, Message: fmt.Sprintf("%s; a fleet of at most %d clusters (--%s) evicts nothing meanwhile", lostMany, l.LargeFleet, flagLargeFleet),
		}}
	case l.SecondaryRate == 0:
		return Verdict{Secondary: true, Wait: Wait{Hold: HoldRate, Message: lostMany + ", and --" + flagSecondaryRate + " is 0"}}
	}
	return Verdict{Secondary: true, Rate: l.SecondaryRate}
}

// Cluster returns why an eviction from the cluster c because of the taint waits at the time now,
// other than for the whole fleet: HoldUnconfirmed, HoldStarting or HoldSettling. The zero Wait
// means that it does not.
func (l *Limits) Cluster(c *scheduler.Cluster, taint *corev1.Taint, state State, now time.Time) Wait {
	if !state.CountFrom.IsZero() && (taint.TimeAdded.IsZero() || taint.TimeAdded.Time.Before(state.CountFrom)) {
		return Wait{Hold: HoldUnconfirmed, Message: "the taint was added before " + state.CountFrom.UTC().Format(time.RFC3339) +
			", the first start with failover; orrery failover resume confirms it"}
	}
	if !c.Reachable && !c.Lost {
		return Wait{Hold: HoldStarting, Message: unprobed(c.Name)}
	}
	if settled := c.Since.Add(l.Settling); now.Before(settled) {
		change := "began"
		if c.Lost {
			change = "ceased"
		}
		return Wait{Hold: HoldSettling, Message: fmt.Sprintf("the cluster %s to answer less than %s ago", change, l.Settling), Until: settled}
	}
	return Wait{}
}

// limited returns the wait of an eviction that only waits for the rate of the verdict.
func (l *Limits) limited(v Verdict) Wait {
	flag := flagRate
	if v.Secondary {
		flag = flagSecondaryRate
	}
	return Wait{Hold: HoldRate, Message: fmt.Sprintf("other evictions come first; %v begin in a second (--%s)", v.Rate, flag)}
}
