package interpreter

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Report is what is known of the copy of a template in one cluster. Aggregate computes the status
// of the template from such reports.
type Report struct {
	Cluster string
	// Current is true if the copy was rendered from the present version of the template.
	Current bool
	// Observed is true if Current is true and Status is about the present spec of the copy, by its
	// observedGeneration.
	Observed bool
	// Asked is the number of replicas in the spec of the copy; nil if that is not known, or the kind
	// has no replicas.
	Asked *int32
	// Leaving is true if the template is no longer placed in the cluster, and the copy stays only
	// until as many replicas are available elsewhere. Its replicas do not count as updated.
	Leaving bool
	// Status is the result of Reflect for the copy; nil: no status is known.
	Status map[string]any
}

// upToDate reports whether the status of the copy is about the present version of the template.
func (r Report) upToDate() bool { return r.Current && r.Observed }

// Placing describes how the replicas of a template are placed. It is an argument of Aggregate.
type Placing struct {
	// Duplicated is true if each cluster has all replicas, and false if each has a share.
	Duplicated bool
	// Missing is the number of replicas of the template that are placed in no cluster.
	Missing int32
}

// Aggregate computes the status of a template on the hub from a report of each cluster in which it
// is placed or from which it is moving out. The result equals the present status, by the func
// Equal, if nothing changed. The API server of the hub accepts it. ok is false for a kind whose
// status is not aggregated, and while too little is known for a write. The arguments are not
// changed.
//
// The counters of divided replicas are sums. If each cluster has all replicas, a counter is that of
// the cluster that lacks most, so that clients can compare it with the spec. observedGeneration
// never decreases. It reaches the generation of the template only when every report is up to date:
// a client that waits on the hub waits for the last cluster. The result depends only on the
// arguments, except for the times of conditions that change.
func Aggregate(template *unstructured.Unstructured, placing Placing, reports []Report) (status map[string]any, ok bool) {
	return aggregate(template, placing, reports, time.Now())
}

// aggregate is Aggregate with at as the present time.
func aggregate(template *unstructured.Unstructured, placing Placing, reports []Report, at time.Time) (map[string]any, bool) {
	k := kindOf(template)
	reports = slices.Clone(reports)
	slices.SortFunc(reports, func(a, b Report) int { return cmp.Compare(a.Cluster, b.Cluster) })
	in := input{template: template, placing: placing, now: at.UTC().Format(time.RFC3339)}
	for _, r := range reports {
		if r.Leaving {
			in.leaving = append(in.leaving, r)
		} else {
			in.reports = append(in.reports, r)
		}
	}
	reports = in.reports
	if k.whole && len(reports) == 1 {
		return in.theOne(k)
	}
	unknown := !slices.ContainsFunc(reports, func(r Report) bool { return r.Status != nil })
	if len(k.counters) == 0 && k.aggregate == nil || k.whole && unknown {
		return nil, false
	}
	status := map[string]any{}
	if len(k.counters) > 0 {
		in.count(k, status)
		in.observe(status)
	}
	if k.aggregate != nil {
		k.aggregate(in, status)
	}
	return status, true
}

// Equal reports whether wanted, an aggregated status, equals is, the status that the template has.
// Zero values and absent fields count as equal, and so do equal numbers of different Go types,
// because the API server may change both.
func Equal(wanted map[string]any, is any) bool {
	return reflect.DeepEqual(significant(wanted), significant(is))
}

// significant returns a JSON value without the zero values in it, and with all numbers as float64;
// nil if nothing is left.
func significant(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, field := range v {
			if field = significant(field); field != nil {
				out[name] = field
			}
		}
		if len(out) > 0 {
			return out
		}
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = significant(v[i])
		}
		if len(out) > 0 {
			return out
		}
	case string:
		if v != "" {
			return v
		}
	case bool:
		if v {
			return v
		}
	case int64:
		if v != 0 {
			return float64(v)
		}
	case float64:
		if v != 0 {
			return v
		}
	}
	return nil
}

// input is the input of one aggregation, see Aggregate.
type input struct {
	template *unstructured.Unstructured
	placing  Placing
	reports  []Report // of the clusters in which the template is placed, sorted by cluster
	leaving  []Report // of the clusters from which the template moves out
	now      string   // the present time, as the API writes it
}

// upToDate reports whether there are clusters, and the status of every copy is about the present
// version of the template.
func (in input) upToDate() bool {
	return len(in.reports) > 0 && !slices.ContainsFunc(in.reports, func(r Report) bool { return !r.upToDate() })
}

// observe sets observedGeneration in status: to the generation of the template if every report is
// up to date, else to the value that the status of the template has.
func (in input) observe(status map[string]any) {
	generation := number(in.template.Object, "status", "observedGeneration")
	if in.upToDate() {
		generation = max(generation, in.template.GetGeneration())
	}
	if generation != 0 {
		status["observedGeneration"] = generation
	}
}

// count sets the counters of the kind k in status, as Aggregate describes. It leaves out zeros,
// except counters in k.always.
func (in input) count(k kind, status map[string]any) {
	for _, name := range k.counters {
		n := sum(in.reports, name)
		if k.replicas != nil {
			n += sum(in.leaving, name)
		}
		if in.placing.Duplicated && k.replicas != nil {
			n = in.duplicated(name)
		}
		if n != 0 || slices.Contains(k.always, name) {
			status[name] = n
		}
	}
}

// duplicated returns the counter with the name for a template if each cluster has all replicas. It
// is that of the cluster that is farthest from the number of replicas in its copy. An override or
// an autoscaler may give a copy another number than the template; then the counter is changed by
// the difference.
func (in input) duplicated(name string) int64 {
	asked := desired(in.template)
	var worst int64
	for i, r := range in.reports {
		n := counter(r, name)
		if name == "unavailableReplicas" {
			worst = max(worst, n)
			continue
		}
		of := asked
		if r.Asked != nil {
			of = int64(*r.Asked)
		}
		n = max(0, asked+n-of)
		switch {
		case i == 0:
			worst = n
		case name == "replicas": // too many replicas are as far from the end as too few
			worst = max(worst, n)
		default:
			worst = min(worst, n)
		}
	}
	return worst
}

// sum returns the sum of the counter with the name over the reports.
func sum(reports []Report, name string) int64 {
	var total int64
	for _, r := range reports {
		total += counter(r, name)
	}
	return total
}

// counter returns the counter with the name from the report of one cluster. Counters of updated
// replicas are 0 unless the report is up to date, because the cluster may count replicas of an
// earlier version of the template.
func counter(r Report, name string) int64 {
	if strings.HasPrefix(name, "updated") && !r.upToDate() {
		return 0
	}
	return number(r.Status, name)
}

// which returns the names of the clusters for whose reports test returns true; nil: none.
func which(reports []Report, test func(Report) bool) []string {
	var clusters []string
	for _, r := range reports {
		if test(r) {
			clusters = append(clusters, r.Cluster)
		}
	}
	return clusters
}

// has returns a test of a report: whether the value of a key in its status is true.
func has(key string) func(Report) bool {
	return func(r Report) bool { return r.Status[key] == true }
}

// naming joins the first five texts about clusters with commas, and adds the number of the others.
func naming(clusters []string) string {
	const most = 5
	if len(clusters) <= most {
		return strings.Join(clusters, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(clusters[:most], ", "), len(clusters)-most)
}

// aggregateDeployment adds the conditions Available and Progressing to the status of a Deployment,
// unless no status is known yet. The conditions have no message while all is well, and
// lastUpdateTime changes only with their text. Many clients watch templates, so the status is kept
// small.
func aggregateDeployment(in input, status map[string]any) {
	present := list(in.template.Object, "status", "conditions")
	if len(present) == 0 && !slices.ContainsFunc(in.reports, func(r Report) bool { return r.Status != nil }) {
		return // nothing is known yet
	}

	available := conditionState{kind: "Available", status: corev1.ConditionTrue, reason: "MinimumReplicasAvailable"}
	missing := which(in.reports, func(r Report) bool { return r.Status[keyAvailable] != true })
	switch {
	case len(in.reports) == 0:
		available.status, available.reason, available.message = corev1.ConditionFalse, "MinimumReplicasUnavailable", "Placed in no cluster."
	case len(missing) > 0:
		available.status, available.reason = corev1.ConditionFalse, "MinimumReplicasUnavailable"
		available.message = "Not available in " + naming(missing) + "."
	}

	progressing := conditionState{kind: "Progressing", status: corev1.ConditionTrue, reason: "ReplicaSetUpdated"}
	stalled := which(in.reports, func(r Report) bool { return r.upToDate() && r.Status[keyStalled] == true })
	waiting := which(in.reports, func(r Report) bool { return !r.Current })
	switch {
	case len(stalled) > 0:
		progressing.status, progressing.reason = corev1.ConditionFalse, "ProgressDeadlineExceeded"
		progressing.message = "No progress in time in " + naming(stalled) + "."
	case in.placing.Missing > 0:
		progressing.message = fmt.Sprintf("%d of %d replicas are placed in no cluster.", in.placing.Missing, desired(in.template))
	case len(waiting) > 0:
		progressing.message = "Not yet applied in " + naming(waiting) + "."
	case !in.rolledOut(status):
		progressing.message = "Being rolled out."
	default:
		progressing.reason = "NewReplicaSetAvailable"
	}
	status["conditions"] = []any{
		available.condition(present, in.now, "lastUpdateTime"),
		progressing.condition(present, in.now, "lastUpdateTime"),
	}
}

// rolledOut reports whether every copy is up to date and has all requested replicas, and all
// replicas in status are updated and available.
func (in input) rolledOut(status map[string]any) bool {
	short := func(r Report) bool { return r.Asked != nil && number(r.Status, "replicas") < int64(*r.Asked) }
	return in.upToDate() && !slices.ContainsFunc(in.reports, short) &&
		number(status, "updatedReplicas") == number(status, "replicas") &&
		number(status, "availableReplicas") == number(status, "replicas")
}

// conditionState is the content of a condition without its times.
type conditionState struct {
	kind            string // the type of the condition
	status          corev1.ConditionStatus
	reason, message string
}

// condition returns the condition with its times. present are the conditions that the object has,
// and now is the present time. lastTransitionTime stays while the status of the condition is the
// same. touched is the name of another time, such as lastUpdateTime: it stays while also reason and
// message are the same.
func (s conditionState) condition(present []any, now, touched string) map[string]any {
	c := map[string]any{
		"type": s.kind, "status": string(s.status), "reason": s.reason,
		"lastTransitionTime": now, touched: now,
	}
	if s.message != "" {
		c["message"] = s.message
	}
	old := condition(present, s.kind)
	if old["status"] == c["status"] && text(old, "lastTransitionTime") != "" {
		c["lastTransitionTime"] = old["lastTransitionTime"]
		if old["reason"] == c["reason"] && text(old, "message") == s.message && text(old, touched) != "" {
			c[touched] = old[touched]
		}
	}
	return c
}

// addresses returns the distinct addresses of the load balancers of all copies, in the order of the
// reports.
func addresses(reports []Report) []any {
	var all []any
	for _, r := range reports {
		for _, address := range list(r.Status, "loadBalancer", "ingress") {
			address, ok := address.(map[string]any)
			if !ok || slices.ContainsFunc(all, func(a any) bool { return reflect.DeepEqual(a, address) }) {
				continue
			}
			all = append(all, address)
		}
	}
	return all
}

// aggregateService sets the addresses in the status of a Service: those of the load balancers of
// all clusters.
func aggregateService(in input, status map[string]any) {
	if text(in.template.Object, "spec", "type") != string(corev1.ServiceTypeLoadBalancer) {
		in.reports = nil // the API server refuses addresses for other types
	}
	all := addresses(in.reports)
	for i, address := range all {
		// Clusters before 1.30 do not report the mode, which the hub's API server requires.
		if address, ok := address.(map[string]any); ok && text(address, "ip") != "" && text(address, "ipMode") == "" {
			address = maps.Clone(address)
			address["ipMode"] = string(corev1.LoadBalancerIPModeVIP)
			all[i] = address
		}
	}
	balance(status, all)
}

// aggregateIngress sets the addresses in the status of an Ingress: those of all clusters.
func aggregateIngress(in input, status map[string]any) { balance(status, addresses(in.reports)) }

// balance sets loadBalancer in status to the addresses.
func balance(status map[string]any, addresses []any) {
	balancer := map[string]any{}
	if len(addresses) > 0 {
		balancer["ingress"] = addresses
	}
	status["loadBalancer"] = balancer
}

// aggregateCronJob sets lastScheduleTime and lastSuccessfulTime to the last ones of all clusters.
// They never go back. The list of active Jobs is left out, because these Jobs are not on the hub.
func aggregateCronJob(in input, status map[string]any) {
	for _, name := range []string{"lastScheduleTime", "lastSuccessfulTime"} {
		if last := max(latest(in.reports, name), text(in.template.Object, "status", name)); last != "" {
			status[name] = last
		}
	}
}

// aggregateClaims sets the phase of a PersistentVolumeClaim with several copies: Lost if one is
// lost, Bound if all are bound, else Pending. The capacities are left out, because they belong to
// different volumes.
func aggregateClaims(in input, status map[string]any) {
	status["phase"] = worstPhase(in.reports, string(corev1.ClaimLost), string(corev1.ClaimPending), string(corev1.ClaimBound))
}

// aggregateVolumes sets the phase of a PersistentVolume with several copies: that of the copy that
// is farthest from being claimed. The API server sets the time of the last phase change itself;
// that time is kept while the phase stays.
func aggregateVolumes(in input, status map[string]any) {
	phase := worstPhase(in.reports, string(corev1.VolumeFailed), string(corev1.VolumePending), string(corev1.VolumeAvailable),
		string(corev1.VolumeBound), string(corev1.VolumeReleased))
	status["phase"] = phase
	const changed = "lastPhaseTransitionTime"
	if at := text(in.template.Object, "status", changed); at != "" && text(in.template.Object, "status", "phase") == phase {
		status[changed] = at
	}
}

// aggregatePods sets the phase of a Pod with several copies to the worst one, and combines the
// conditions. All other fields belong to each copy alone. Fields that the API server of the hub
// sets itself are kept.
func aggregatePods(in input, status map[string]any) {
	status["phase"] = worstPhase(in.reports, string(corev1.PodFailed), string(corev1.PodPending), string(corev1.PodRunning), string(corev1.PodSucceeded))
	if conditions := in.conditions(); len(conditions) > 0 {
		status["conditions"] = conditions
	}
	if class := text(in.template.Object, "status", "qosClass"); class != "" {
		status["qosClass"] = class
	}
	if seen := number(in.template.Object, "status", "observedGeneration"); seen != 0 {
		status["observedGeneration"] = seen
	}
	if slices.ContainsFunc(in.reports, func(r Report) bool { return number(r.Status, keyWhole, "observedGeneration") != 0 }) {
		in.observe(status)
	}
}

// worstPhase returns the first of the phases that the status of some copy has; the caller passes
// the worst first. A copy without a phase, or with another one, counts as Pending. Without reports
// the result is Pending.
func worstPhase(reports []Report, phases ...string) string {
	const pending = "Pending"
	for _, phase := range phases {
		for _, r := range reports {
			is := text(r.Status, keyWhole, "phase")
			if !slices.Contains(phases, is) {
				is = pending
			}
			if is == phase {
				return phase
			}
		}
	}
	return pending
}
