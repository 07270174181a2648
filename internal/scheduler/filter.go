package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/policy"
)

// Verdict says why an object is or is not placed in a cluster.
type Verdict struct {
	Cluster string
	Chosen  bool
	// Rejections of every filter that let the cluster not pass, in the filters' order. A
	// cluster without any that is not chosen got no replicas.
	Rejections []Rejection
}

// Rejection says why a filter let a cluster not pass.
type Rejection struct{ Reason, Message string }

// Reasons of rejections.
const (
	ReasonLeaving        = "Leaving"        // the cluster is being removed
	ReasonNotSelected    = "NotSelected"    // the affinity does not select it
	ReasonAffinityWrong  = "AffinityWrong"  // the affinity cannot be read
	ReasonUnknownCluster = "UnknownCluster" // no cluster has the name
	ReasonTainted        = "Tainted"        // a taint is not tolerated
	ReasonUnreachable    = "Unreachable"    // the cluster does not answer
	ReasonAPINotServed   = "APINotServed"   // the cluster does not serve the kind
	ReasonAPIUnknown     = "APIUnknown"     // the cluster cannot say whether it does
	ReasonNoWeight       = "NoWeight"       // no staticWeightList entry selects it
)

// Fits says whether every filter let the cluster pass.
func (v Verdict) Fits() bool { return len(v.Rejections) == 0 }

// candidate says whether the policy means the cluster.
func (v Verdict) candidate() bool {
	return !slices.ContainsFunc(v.Rejections, func(r Rejection) bool { return r.Reason == ReasonNotSelected })
}

// filter says why a cluster does not pass; nil when it does. placed is true when the
// object is in the cluster already.
type filter func(c Cluster, r Request, placed bool) *Rejection

// filters in the order in which their reasons are told.
var filters = []filter{leaving, affinity, weight, taints, reachable, api}

// judge lets every filter look at every cluster.
func judge(clusters []Cluster, r Request) []Verdict {
	placed := make(map[string]bool, len(r.Previous))
	for _, t := range r.Previous {
		placed[t.Name] = true
	}
	verdicts := make([]Verdict, len(clusters))
	for i, c := range clusters {
		verdicts[i].Cluster = c.Name
		for _, f := range filters {
			if rejection := f(c, r, placed[c.Name]); rejection != nil {
				verdicts[i].Rejections = append(verdicts[i].Rejections, *rejection)
			}
		}
	}
	return verdicts
}

func reject(reason, format string, args ...any) *Rejection {
	return &Rejection{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func leaving(c Cluster, _ Request, _ bool) *Rejection {
	if !c.Leaving {
		return nil
	}
	return reject(ReasonLeaving, "it is leaving the fleet")
}

func affinity(c Cluster, r Request, _ bool) *Rejection {
	a := r.Placement.ClusterAffinity
	matches, err := match(a, c)
	switch {
	case err != nil:
		return reject(ReasonAffinityWrong, "placement.clusterAffinity.%v", err)
	case matches:
		return nil
	case slices.Contains(a.ExcludeClusters, c.Name):
		return reject(ReasonNotSelected, "clusterAffinity excludes it")
	default:
		return reject(ReasonNotSelected, "clusterAffinity does not select it")
	}
}

func match(a *policyv1alpha1.ClusterAffinity, c Cluster) (bool, error) {
	return policy.MatchCluster(a, c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// weight rejects a cluster that no entry of a static weight list selects: it would get no
// replicas.
func weight(c Cluster, r Request, _ bool) *Rejection {
	list := staticWeights(r)
	if list == nil {
		return nil
	}
	w, err := weigh(list, c)
	if err != nil {
		return reject(ReasonAffinityWrong, "placement.replicaScheduling.weightPreference.%v", err)
	}
	if w == 0 {
		return reject(ReasonNoWeight, "no entry of staticWeightList selects it")
	}
	return nil
}

// taints rejects a cluster with a taint that is not tolerated. What is in the cluster
// already stays: nothing is evicted.
func taints(c Cluster, r Request, placed bool) *Rejection {
	if placed {
		return nil
	}
	for _, t := range c.Taints {
		if t.Effect != corev1.TaintEffectNoSchedule && t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(r.Placement.ClusterTolerations, func(toleration corev1.Toleration) bool {
			return tolerates(toleration, t)
		}) {
			return reject(ReasonTainted, "taint %s is not tolerated", t.ToString())
		}
	}
	return nil
}

func tolerates(toleration corev1.Toleration, t corev1.Taint) bool {
	return (toleration.Effect == "" || toleration.Effect == t.Effect) &&
		(toleration.Key == "" || toleration.Key == t.Key) &&
		(toleration.Operator == corev1.TolerationOpExists ||
			(toleration.Operator == "" || toleration.Operator == corev1.TolerationOpEqual) && toleration.Value == t.Value)
}

func reachable(c Cluster, _ Request, placed bool) *Rejection {
	if c.Reachable || placed {
		return nil
	}
	return reject(ReasonUnreachable, "it does not answer")
}

func api(c Cluster, _ Request, placed bool) *Rejection {
	switch {
	case c.API == presence.Absent && c.Reachable:
		return reject(ReasonAPINotServed, "it does not serve the kind")
	case c.API == presence.Unknown && c.Reachable && !placed:
		return reject(ReasonAPIUnknown, "whether it serves the kind is not known")
	}
	return nil
}
