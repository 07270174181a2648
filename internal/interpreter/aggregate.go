package interpreter

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Aggregate makes the status of a template on the hub from what its clusters report. It
// equals the status that the template has when nothing changed, and is valid to the API
// server of the hub. It is not ok for kinds whose status is not aggregated.
//
// The numbers are sums. observedGeneration follows the template's generation only when
// every cluster has the manifest as rendered now and its controller has seen it, so that
// `kubectl rollout status` and `kubectl wait` on the hub wait for the last cluster. The
// result depends on nothing but the arguments, except that a condition that flips takes
// the time from the clock.
func Aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (status map[string]any, ok bool) {
	return aggregate(template, items, time.Now())
}

func aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem, now time.Time) (map[string]any, bool) {
	k := kindOf(template)
	if len(k.counters) == 0 && k.aggregate == nil {
		return nil, false
	}
	members := make([]member, len(items))
	for i := range items {
		members[i] = member{cluster: items[i].ClusterName, applied: items[i].Applied, status: decode(items[i].Status)}
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.cluster, b.cluster) })
	status := map[string]any{}
	if len(k.counters) > 0 {
		aggregateCounters(k, template, members, status)
	}
	if k.aggregate != nil {
		k.aggregate(template, members, status, now.UTC().Format(time.RFC3339))
	}
	return status, true
}

// member is what one cluster reports.
type member struct {
	cluster string
	applied bool
	status  map[string]any // as Reflect made it; nil: nothing reported
}

// decode reads a status that Reflect made. What it did not make is no report.
func decode(raw *runtime.RawExtension) map[string]any {
	var status map[string]any
	if raw == nil || json.Unmarshal(raw.Raw, &status) != nil {
		return nil
	}
	return status
}

// sum adds up one counter.
func sum(members []member, name string) int64 {
	var total int64
	for _, m := range members {
		total += number(m.status, name)
	}
	return total
}

// which returns the clusters that the test holds for.
func which(members []member, test func(member) bool) []string {
	var clusters []string
	for _, m := range members {
		if test(m) {
			clusters = append(clusters, m.cluster)
		}
	}
	return clusters
}

// has tests for a key of a reflected status that is true.
func has(key string) func(member) bool {
	return func(m member) bool { return m.status[key] == true }
}

// naming lists clusters in a message.
func naming(clusters []string) string {
	const most = 5
	if len(clusters) <= most {
		return strings.Join(clusters, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(clusters[:most], ", "), len(clusters)-most)
}

// allObserved says whether every cluster speaks of the current template.
func allObserved(members []member) bool {
	return len(members) > 0 &&
		!slices.ContainsFunc(members, func(m member) bool { return !m.applied || m.status[keyObserved] != true })
}

// aggregateCounters adds up the counters of a workload.
func aggregateCounters(k kind, t *unstructured.Unstructured, members []member, status map[string]any) {
	for _, name := range k.counters {
		if n := sum(members, name); n != 0 || slices.Contains(k.always, name) {
			status[name] = n
		}
	}
	generation := number(t.Object, "status", "observedGeneration")
	if allObserved(members) {
		generation = t.GetGeneration()
	}
	if generation != 0 {
		status["observedGeneration"] = generation
	}
}

func aggregateDeployment(t *unstructured.Unstructured, members []member, status map[string]any, now string) {
	present := list(t.Object, "status", "conditions")
	if len(present) == 0 && !slices.ContainsFunc(members, func(m member) bool { return m.status != nil }) {
		return // nothing is known yet
	}

	available := verdict{kind: "Available", status: corev1.ConditionTrue, reason: "MinimumReplicasAvailable", message: "Available in every cluster."}
	missing := which(members, func(m member) bool { return m.status[keyAvailable] != true })
	switch {
	case len(members) == 0:
		available.status, available.reason, available.message = corev1.ConditionFalse, "MinimumReplicasUnavailable", "Placed in no cluster."
	case len(missing) > 0:
		available.status, available.reason = corev1.ConditionFalse, "MinimumReplicasUnavailable"
		available.message = "Not available in " + naming(missing) + "."
	}

	progressing := verdict{kind: "Progressing", status: corev1.ConditionTrue, reason: "ReplicaSetUpdated", message: "Being rolled out."}
	stalled := which(members, has(keyStalled))
	switch {
	case len(stalled) > 0:
		progressing.status, progressing.reason = corev1.ConditionFalse, "ProgressDeadlineExceeded"
		progressing.message = "No progress in time in " + naming(stalled) + "."
	case allObserved(members) && status["updatedReplicas"] == status["replicas"] && status["availableReplicas"] == status["replicas"]:
		progressing.reason, progressing.message = "NewReplicaSetAvailable", "Rolled out in every cluster."
	}

	status["conditions"] = []any{
		available.condition(present, now, "lastUpdateTime"),
		progressing.condition(present, now, "lastUpdateTime"),
	}
}

// verdict is what a condition is to say.
type verdict struct {
	kind            string
	status          corev1.ConditionStatus
	reason, message string
}

// condition makes the condition. Its transition time stays while its status does, and
// the time in the other field while nothing of it changes.
func (v verdict) condition(present []any, now, touched string) map[string]any {
	c := map[string]any{
		"type": v.kind, "status": string(v.status), "reason": v.reason, "message": v.message,
		"lastTransitionTime": now, touched: now,
	}
	old := condition(present, v.kind)
	if old["status"] == c["status"] && text(old, "lastTransitionTime") != "" {
		c["lastTransitionTime"] = old["lastTransitionTime"]
		if old["reason"] == c["reason"] && old["message"] == c["message"] && text(old, touched) != "" {
			c[touched] = old[touched]
		}
	}
	return c
}

// addresses is every load balancer's address, each once.
func addresses(members []member) []any {
	var all []any
	for _, m := range members {
		for _, address := range list(m.status, "loadBalancer", "ingress") {
			address, ok := address.(map[string]any)
			if !ok || slices.ContainsFunc(all, func(a any) bool { return reflect.DeepEqual(a, address) }) {
				continue
			}
			all = append(all, address)
		}
	}
	return all
}

func aggregateService(t *unstructured.Unstructured, members []member, status map[string]any, _ string) {
	if text(t.Object, "spec", "type") != string(corev1.ServiceTypeLoadBalancer) {
		members = nil // the API server refuses addresses of another type
	}
	for _, m := range members {
		for _, address := range list(m.status, "loadBalancer", "ingress") {
			// Clusters before 1.30 do not report the mode; the hub's API server wants it.
			if address, ok := address.(map[string]any); ok && text(address, "ip") != "" && text(address, "ipMode") == "" {
				address["ipMode"] = string(corev1.LoadBalancerIPModeVIP)
			}
		}
	}
	aggregateIngress(t, members, status, "")
}

func aggregateIngress(_ *unstructured.Unstructured, members []member, status map[string]any, _ string) {
	balancer := map[string]any{}
	if all := addresses(members); len(all) > 0 {
		balancer["ingress"] = all
	}
	status["loadBalancer"] = balancer
}
