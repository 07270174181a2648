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

// Report is what is known of a template's copy in one cluster that it is placed in.
type Report struct {
	Cluster string
	// Current is true when the copy is of the template as it is now.
	Current bool
	// Observed is true when the copy's status, too, speaks of the copy as it is now.
	Observed bool
	// Asked is how many replicas the copy asks for; nil where that is not known, or of a kind
	// without replicas.
	Asked *int32
	// Leaving is true when the template is placed there no more, and the copy stays until as
	// much is available elsewhere: its replicas count as those of an earlier version.
	Leaving bool
	// Status is what Reflect made of the copy's status; nil: nothing is reported.
	Status map[string]any
}

// upToDate is true when the report speaks of the template as it is now.
func (r Report) upToDate() bool { return r.Current && r.Observed }

// Placing says how the replicas of a template are placed.
type Placing struct {
	// Duplicated is true when each cluster has all replicas, false when each has a share.
	Duplicated bool
	// Missing is how many of the replicas that the template asks for are placed nowhere.
	Missing int32
}

// Aggregate makes the status of a template on the hub from the reports of all clusters that
// it is placed in, or leaves. It equals the status that the template has when nothing changed, and is
// valid to the API server of the hub. It is not ok for kinds whose status is not aggregated,
// and where nothing is known yet that would be worth a write.
//
// The numbers of divided replicas are sums. Where each cluster has all replicas, they say how
// the cluster fares that lacks most, so that they compare with the spec's. observedGeneration
// never goes back, and follows the template's generation only when every report is up to date,
// so that whoever waits on the hub waits for the last cluster. The result depends on nothing
// but the arguments, except that a condition that flips takes the time from the clock.
func Aggregate(template *unstructured.Unstructured, placing Placing, reports []Report) (status map[string]any, ok bool) {
	return aggregate(template, placing, reports, time.Now())
}

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

// Equal compares a status that was aggregated with the one that the template has. The API
// server writes some fields that are zero, leaves others out, and has other types for numbers.
func Equal(wanted map[string]any, is any) bool {
	return reflect.DeepEqual(significant(wanted), significant(is))
}

// significant is a value without what is zero in it; nil when that is all of it.
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

// input is what a status is aggregated from. The reports are in the order of their clusters.
type input struct {
	template *unstructured.Unstructured
	placing  Placing
	reports  []Report
	leaving  []Report
	now      string
}

// upToDate is true when every cluster speaks of the template as it is now.
func (in input) upToDate() bool {
	return len(in.reports) > 0 && !slices.ContainsFunc(in.reports, func(r Report) bool { return !r.upToDate() })
}

// observe sets the generation that every cluster has seen.
func (in input) observe(status map[string]any) {
	generation := number(in.template.Object, "status", "observedGeneration")
	if in.upToDate() {
		generation = max(generation, in.template.GetGeneration())
	}
	if generation != 0 {
		status["observedGeneration"] = generation
	}
}

// count adds up the counters.
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

// duplicated is a counter of a template of which each cluster has all replicas: that of the
// cluster that is the farthest from what its copy asks for, told as if it asked for what the
// template does. Copies may ask for another number because of an override or an autoscaler.
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
		case name == "replicas": // too many are as far from the end as too few
			worst = max(worst, n)
		default:
			worst = min(worst, n)
		}
	}
	return worst
}

// sum adds up one counter.
func sum(reports []Report, name string) int64 {
	var total int64
	for _, r := range reports {
		total += counter(r, name)
	}
	return total
}

// counter reads one counter of one cluster. Replicas of an earlier version are not updated
// ones, whatever their cluster calls them.
func counter(r Report, name string) int64 {
	if strings.HasPrefix(name, "updated") && !r.upToDate() {
		return 0
	}
	return number(r.Status, name)
}

// which returns the clusters that the test holds for.
func which(reports []Report, test func(Report) bool) []string {
	var clusters []string
	for _, r := range reports {
		if test(r) {
			clusters = append(clusters, r.Cluster)
		}
	}
	return clusters
}

// has tests for a key of a reflected status that is true.
func has(key string) func(Report) bool {
	return func(r Report) bool { return r.Status[key] == true }
}

// naming lists clusters, or what is said of them, in a message.
func naming(clusters []string) string {
	const most = 5
	if len(clusters) <= most {
		return strings.Join(clusters, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(clusters[:most], ", "), len(clusters)-most)
}

// aggregateDeployment adds the conditions. They have no message while all is well, and their
// lastUpdateTime says when the text last changed: a template is watched by many, and its
// status is most of what placing it adds to it.
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

// rolledOut is true when every replica that is asked for is up to date and available.
func (in input) rolledOut(status map[string]any) bool {
	short := func(r Report) bool { return r.Asked != nil && number(r.Status, "replicas") < int64(*r.Asked) }
	return in.upToDate() && !slices.ContainsFunc(in.reports, short) &&
		number(status, "updatedReplicas") == number(status, "replicas") &&
		number(status, "availableReplicas") == number(status, "replicas")
}

// conditionState is what a condition is to say.
type conditionState struct {
	kind            string
	status          corev1.ConditionStatus
	reason, message string
}

// condition makes the condition. Its transition time stays while its status does, and
// the time in the other field while nothing of it changes.
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

// addresses is every load balancer's address, each once.
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

func aggregateService(in input, status map[string]any) {
	if text(in.template.Object, "spec", "type") != string(corev1.ServiceTypeLoadBalancer) {
		in.reports = nil // the API server refuses addresses of another type
	}
	all := addresses(in.reports)
	for i, address := range all {
		// Clusters before 1.30 do not report the mode; the hub's API server wants it.
		if address, ok := address.(map[string]any); ok && text(address, "ip") != "" && text(address, "ipMode") == "" {
			address = maps.Clone(address)
			address["ipMode"] = string(corev1.LoadBalancerIPModeVIP)
			all[i] = address
		}
	}
	balance(status, all)
}

func aggregateIngress(in input, status map[string]any) { balance(status, addresses(in.reports)) }

func balance(status map[string]any, addresses []any) {
	balancer := map[string]any{}
	if len(addresses) > 0 {
		balancer["ingress"] = addresses
	}
	status["loadBalancer"] = balancer
}

// aggregateCronJob: the Jobs that are active are in the clusters, not on the hub.
func aggregateCronJob(in input, status map[string]any) {
	for _, name := range []string{"lastScheduleTime", "lastSuccessfulTime"} {
		if last := max(latest(in.reports, name), text(in.template.Object, "status", name)); last != "" {
			status[name] = last
		}
	}
}

// aggregateClaims: several claims are bound when every one is, and lost when one is. Their capacities
// are those of different volumes.
func aggregateClaims(in input, status map[string]any) {
	status["phase"] = worstPhase(in.reports, string(corev1.ClaimLost), string(corev1.ClaimPending), string(corev1.ClaimBound))
}

// aggregateVolumes: several volumes are as the one that is the farthest from being claimed. When the phase changed last the
// API server notes by itself.
func aggregateVolumes(in input, status map[string]any) {
	phase := worstPhase(in.reports, string(corev1.VolumeFailed), string(corev1.VolumePending), string(corev1.VolumeAvailable),
		string(corev1.VolumeBound), string(corev1.VolumeReleased))
	status["phase"] = phase
	const changed = "lastPhaseTransitionTime"
	if at := text(in.template.Object, "status", changed); at != "" && text(in.template.Object, "status", "phase") == phase {
		status[changed] = at
	}
}

// aggregatePods: several pods are in the worst of their phases, and have their conditions together. What else a pod's status says
// is each pod's own; what the API server of the hub has of it by itself stays.
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

// worstPhase is the first of the phases that a cluster reports. One that reports none, or another, is pending.
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
