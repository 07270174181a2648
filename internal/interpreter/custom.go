package interpreter

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// maxWhole is the largest status, in bytes of JSON, that is reflected as a whole. Of a larger
// status only the conditions are kept, if they are not larger, too.
const maxWhole = 8 << 10

// builtIn reports whether an API group belongs to Kubernetes itself: it has no dot, or is one of a
// list. Groups of custom resources have a dot, and may also end in k8s.io.
func builtIn(group string) bool {
	switch group {
	case "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io",
		"authorization.k8s.io", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io",
		"flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io",
		"rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io", "storagemigration.k8s.io":
		return true
	}
	return !strings.Contains(group, ".")
}

// custom returns the description of the kind of an object that is not in the table of kindOf, by
// the conventions of most custom kinds. The kind has replicas if spec.replicas of this object is a
// whole number from 0 to math.MaxInt32, which a binding can store.
func custom(o *unstructured.Unstructured) kind {
	k := kind{health: conventionalHealth}
	if builtIn(o.GroupVersionKind().Group) {
		return k // the status of such a kind is set by the hub itself
	}
	k.whole, k.aggregate = true, aggregateCustom
	if n, found, err := unstructured.NestedInt64(o.Object, "spec", "replicas"); found && err == nil && n >= 0 && n <= math.MaxInt32 {
		k.replicas = []string{"spec", "replicas"}
		k.counters = []string{"replicas", "readyReplicas", "availableReplicas", "updatedReplicas"}
	}
	return k
}

// The types of conditions that most kinds use: those that are True if the object works, and those
// that are True if it does not.
var (
	goodConditions = []string{"Ready", "Available", "Established", "Healthy"}
	badConditions  = []string{"Stalled", "Reconciling"}
)

// conventionalHealth judges the health of an object by what most kinds have in their status:
// observedGeneration, conditions, and the number of available replicas. Without any of these, an
// object of a built-in kind is healthy because it exists, and an object of a custom kind is
// Unknown.
func conventionalHealth(o *unstructured.Unstructured) workv1alpha2.ResourceHealth {
	_, judged, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if judged && !observed(o) {
		return workv1alpha2.ResourceUnhealthy
	}
	conditions := list(o.Object, "status", "conditions")
	for _, conditionType := range badConditions {
		if conditionIs(o, conditionType, corev1.ConditionTrue) {
			return workv1alpha2.ResourceUnhealthy
		}
	}
	for _, conditionType := range goodConditions {
		if c := condition(conditions, conditionType); c != nil {
			return health(c["status"] == string(corev1.ConditionTrue))
		}
	}
	if k := kindOf(o); k.replicas != nil {
		if n, known := serving(k, o); known {
			return health(n >= desired(o))
		}
	}
	if judged || builtIn(o.GroupVersionKind().Group) {
		return workv1alpha2.ResourceHealthy
	}
	return workv1alpha2.ResourceUnknown
}

// reflectWhole adds to status, the reflected status, the whole status of the object without the
// volatile fields of its kind. It also adds the generation of the object, with which generations in
// the status are compared. If the status is larger than maxWhole, it adds only the conditions; if
// these are too large, too, or there is no status, it adds nothing.
func reflectWhole(k kind, o *unstructured.Unstructured, status map[string]any) {
	whole, _, err := unstructured.NestedMap(o.Object, "status")
	if err != nil || len(whole) == 0 {
		return
	}
	for _, name := range k.volatile {
		delete(whole, name)
	}
	if tooLarge(whole) {
		conditions := whole["conditions"]
		if whole = map[string]any{"conditions": conditions}; conditions == nil || tooLarge(whole) {
			return
		}
	}
	if _, found, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); !found || observed(o) {
		status[keyObserved] = true
	}
	if generation := o.GetGeneration(); generation != 0 {
		status[keyGeneration] = generation
	}
	status[keyWhole] = whole
}

// tooLarge reports whether the JSON of a status is longer than maxWhole.
func tooLarge(status map[string]any) bool {
	raw, err := json.Marshal(status)
	return err != nil || len(raw) > maxWhole
}

// Brief returns the part of a reflected status (see Reflect) that is kept in a binding with several
// clusters. Of a status that was kept whole, this is only the phase and up to 8 conditions without
// messages. Any other status is returned as it is. The argument is not changed.
func Brief(status map[string]any) map[string]any {
	whole, ok := status[keyWhole].(map[string]any)
	if !ok {
		return status
	}
	status = maps.Clone(status)
	delete(status, keyWhole)
	brief := map[string]any{}
	if phase := text(whole, "phase"); phase != "" {
		brief["phase"] = phase
	}
	var conditions []any
	for _, c := range list(whole, "conditions") {
		if c, ok := c.(map[string]any); ok {
			conditions = append(conditions, map[string]any{"type": text(c, "type"), "status": text(c, "status"), "reason": text(c, "reason")})
		}
	}
	const most = 8
	if len(conditions) > 0 {
		brief["conditions"] = conditions[:min(most, len(conditions))]
	}
	if len(brief) > 0 {
		status[keyWhole] = brief
	}
	return status
}

// theOne returns the status of a template that is placed in one cluster: that of its copy, with
// generations of the template in place of those of the copy. It returns false if no whole status of
// the copy is known.
func (in input) theOne(k kind) (map[string]any, bool) {
	r := in.reports[0]
	whole, ok := r.Status[keyWhole].(map[string]any)
	if !ok {
		return nil, false
	}
	whole = runtime.DeepCopyJSON(whole)
	for _, name := range k.volatile {
		delete(whole, name)
	}
	generation := number(r.Status, keyGeneration)
	old := list(in.template.Object, "status", "conditions")
	in.translate(r, whole, generation, number(in.template.Object, "status", "observedGeneration"))
	for _, c := range list(whole, "conditions") {
		if c, ok := c.(map[string]any); ok {
			in.translate(r, c, generation, number(condition(old, text(c, "type")), "observedGeneration"))
		}
	}
	return whole, true
}

// translate replaces observedGeneration in o, the status of a copy or one of its conditions, if o
// has it. The new value is the generation of the template if the copy is current and its controller
// has seen generation, the generation of the copy. Otherwise it is old, the value that the template
// has.
func (in input) translate(r Report, o map[string]any, generation, old int64) {
	seen, found, err := unstructured.NestedInt64(o, "observedGeneration")
	switch {
	case !found || err != nil:
	case r.Current && seen >= generation:
		o["observedGeneration"] = max(old, in.template.GetGeneration())
	default:
		o["observedGeneration"] = old
	}
}

// aggregateCustom combines the conditions of several copies of an object of a custom kind.
// observedGeneration is that of the template. For kinds that end, the phase is set if all copies
// report the same. All other fields belong to each copy alone and are left out.
func aggregateCustom(in input, status map[string]any) {
	delete(status, "observedGeneration")
	if slices.ContainsFunc(in.reports, func(r Report) bool { return number(r.Status, keyWhole, "observedGeneration") != 0 }) {
		in.observe(status)
	}
	if conditions := in.conditions(); len(conditions) > 0 {
		status["conditions"] = conditions
	}
	if Ends(in.template.GroupVersionKind().GroupKind()) && len(in.reports) > 0 {
		// Users look first at the phase, which says how the work ended.
		phase := text(in.reports[0].Status, keyWhole, "phase")
		if phase != "" && len(which(in.reports, func(r Report) bool { return text(r.Status, keyWhole, "phase") == phase })) == len(in.reports) {
			status["phase"] = phase
		}
	}
}

// conditions returns the conditions of all copies, combined to one of each type by the method
// together.
func (in input) conditions() (conditions []any) {
	var types []string
	for _, r := range in.reports {
		for _, c := range list(r.Status, keyWhole, "conditions") {
			if c, ok := c.(map[string]any); ok && text(c, "type") != "" && !slices.Contains(types, text(c, "type")) {
				types = append(types, text(c, "type"))
			}
		}
	}
	for _, conditionType := range types {
		conditions = append(conditions, in.together(conditionType))
	}
	return conditions
}

// together combines the conditions of one type of all copies to one condition. Its status is the
// one that all copies have. If they differ, it is the worse one, if some copy has that: False for a
// type in goodConditions, True for a type in badConditions. Otherwise it is Unknown. A copy without
// the condition counts as Unknown.
func (in input) together(conditionType string) map[string]any {
	all := make([]map[string]any, len(in.reports))
	statuses := map[string][]string{}
	for i, r := range in.reports {
		all[i] = condition(list(r.Status, keyWhole, "conditions"), conditionType)
		status := cmp.Or(text(all[i], "status"), string(corev1.ConditionUnknown))
		statuses[status] = append(statuses[status], r.Cluster)
	}
	s := conditionState{kind: conditionType, status: corev1.ConditionUnknown, reason: "ClustersDiffer"}
	if len(statuses) == 1 {
		s.status = corev1.ConditionStatus(slices.Collect(maps.Keys(statuses))[0])
		s.reason, s.message = text(all[0], "reason"), text(all[0], "message")
	} else {
		for _, worse := range []struct {
			of     []string
			status corev1.ConditionStatus
		}{{goodConditions, corev1.ConditionFalse}, {badConditions, corev1.ConditionTrue}} {
			if slices.Contains(worse.of, conditionType) && len(statuses[string(worse.status)]) > 0 {
				s.status = worse.status
			}
		}
		var said []string
		for _, status := range slices.Sorted(maps.Keys(statuses)) {
			said = append(said, fmt.Sprintf("%s in %s", status, naming(statuses[status])))
		}
		s.message = strings.Join(said, "; ")
	}
	c := s.condition(list(in.template.Object, "status", "conditions"), in.now, "lastTransitionTime")
	c["message"] = s.message // the usual type of conditions requires a message
	return c
}
