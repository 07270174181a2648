package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
)

// The hub mirrors the objects of a type from a cluster in one API version. A client may ask for
// another version. The code in this file converts objects of Kubernetes' own types if the versions
// differ only in the name, or so little that a pure function can convert them.

// interchangeable has, by type of Kubernetes, the API versions that differ only in the name. It
// contains all types that some Kubernetes since 1.30 serves in at least two such versions.
var interchangeable = map[schema.GroupResource][]string{
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}:         {"v1", "v1beta1", "v1alpha1"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"}:   {"v1", "v1beta1", "v1alpha1"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       {"v1", "v1beta1", "v1alpha1"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: {"v1", "v1beta1", "v1alpha1"},
	{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:                        {"v1beta1", "v1alpha1"},
	{Group: "coordination.k8s.io", Resource: "leasecandidates"}:                            {"v1beta1", "v1alpha2"},
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}:                       {"v1", "v1beta3"},
	{Group: "networking.k8s.io", Resource: "ipaddresses"}:                                  {"v1", "v1beta1"},
	{Group: "networking.k8s.io", Resource: "servicecidrs"}:                                 {"v1", "v1beta1"},
	{Group: "resource.k8s.io", Resource: "deviceclasses"}:                                  {"v1", "v1beta2", "v1beta1"},
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:                                 {"v1", "v1beta2"},
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}:                         {"v1", "v1beta2"},
	{Group: "resource.k8s.io", Resource: "resourceslices"}:                                 {"v1", "v1beta2"},
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}:                         {"v1", "v1beta1", "v1alpha1"},
}

// versionsLike returns the API versions of a type that differ from version only in the name, and
// version itself. It is nil if there are none. The result must not be changed.
func versionsLike(gr schema.GroupResource, version string) []string {
	if versions := interchangeable[gr]; slices.Contains(versions, version) {
		return versions
	}
	return nil
}

// areInterchangeable reports whether two versions of a type differ only in the name.
func areInterchangeable(gr schema.GroupResource, one, other string) bool {
	return slices.Contains(versionsLike(gr, one), other)
}

// conversion shows objects that are mirrored as one type (from) as objects of another type (to)
// with the same resource. Clients ask for the type to.
type conversion struct {
	resource string
	from, to schema.GroupVersionKind
	// convert changes an object in place from one type to the other, except apiVersion and kind.
	convert func(body) error
	// fields has the fields by which objects of the type to can be selected, each with its path in
	// objects of the type from. Fields of metadata are the same in both types, and not included.
	fields map[string]string
}

// conversions are all conversions. Every supported Kubernetes serves both types of each.
var conversions = []*conversion{
	{
		resource: "horizontalpodautoscalers",
		from:     autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
		to:       autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
		convert:  toAutoscalingV1,
	},
	{
		resource: "events",
		from:     corev1.SchemeGroupVersion.WithKind("Event"),
		to:       eventsv1.SchemeGroupVersion.WithKind("Event"),
		convert:  toEventsV1,
		fields: map[string]string{
			"reason": "reason", "type": "type", "reportingController": "reportingComponent",
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace", "regarding.name": "involvedObject.name",
			"regarding.uid": "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion",
			"regarding.resourceVersion": "involvedObject.resourceVersion", "regarding.fieldPath": "involvedObject.fieldPath",
		},
	},
}

// source returns the location of the mirrored type from which a request for the type at is
// answered. It is at itself, unless the requested type is not mirrored and a mirrored type can be
// converted to it. Then the result has that type, and the conversion in shown.
func (s *Search) source(at location) location {
	i := slices.IndexFunc(conversions, func(c *conversion) bool {
		return c.to.GroupVersion() == at.GroupVersion() && c.resource == at.Resource
	})
	if i < 0 {
		return at
	}
	mirrored := func(gvk schema.GroupVersionKind) bool { return s.mirrors(gvk.GroupVersion().WithResource(at.Resource)) }
	if c := conversions[i]; mirrored(c.from) && !mirrored(c.to) {
		at.shown = c
		at.GroupVersionResource = c.from.GroupVersion().WithResource(c.resource)
	}
	return at
}

// mirrors reports whether a type, in this API version, is mirrored from any cluster.
func (s *Search) mirrors(gvr schema.GroupVersionResource) bool {
	return slices.ContainsFunc(s.Mirror.Types(), func(t mirror.Type) bool { return t.GroupVersionResource() == gvr })
}

// asked returns the type that the client asks for. If at.shown is set, it differs from the mirrored
// type in at.
func (at *location) asked() schema.GroupVersionResource {
	if at.shown != nil {
		return at.shown.to.GroupVersion().WithResource(at.Resource)
	}
	return at.GroupVersionResource
}

// as returns the kind in which the client gets objects of the type k: that of the conversion, or
// the kind in the requested version.
func (at *location) as(k kind) schema.GroupVersionKind {
	if at.shown != nil {
		return at.shown.to
	}
	return at.GroupVersion().WithKind(k.GroupVersionKind.Kind)
}

// translate replaces the paths in p.fields by those of the mirrored type, if objects are converted
// for the answer. Then a filter, and a field that the conversion does not have, are errors (400).
func (at *location) translate(p *params) error {
	if at.shown == nil {
		return nil
	}
	if p.asked.filter != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("parameter filter: %s are mirrored as those of %s, whose fields expressions see: ask for these", at.asked().GroupResource(), at.GroupVersion()))
	}
	fields := slices.Clone(p.fields)
	for i, f := range fields {
		if strings.HasPrefix(f.Path, "metadata.") {
			continue
		}
		path, ok := at.shown.fields[f.Path]
		if !ok {
			return apierrors.NewBadRequest(fmt.Sprintf("parameter fieldSelector: %s of %s are selected by %s; they are mirrored as those of %s, which can be selected by any field",
				at.Resource, at.asked().GroupVersion(), strings.Join(append(slices.Sorted(maps.Keys(at.shown.fields)), "metadata"), ", "), at.GroupVersion()))
		}
		fields[i].Path = path
	}
	p.fields = fields
	return nil
}

// shownAs returns the groups whose mirrored types discovery needs for a group: the group itself,
// and groups with types that can be shown as types of that group.
func shownAs(group string) []string {
	groups := []string{group}
	for _, v := range conversions {
		if v.to.Group == group {
			groups = append(groups, v.from.Group)
		}
	}
	return groups
}

// addConverted adds the types that are not mirrored, but can be shown by conversion from mirrored
// types.
func (c catalogue) addConverted() {
	for _, v := range conversions {
		types := c[v.from.Group][v.from.Version]
		i := slices.IndexFunc(types, func(a member.API) bool { return a.Resource == v.resource })
		if i < 0 || slices.ContainsFunc(c[v.to.Group][v.to.Version], func(a member.API) bool { return a.Resource == v.resource }) {
			continue
		}
		shown := types[i]
		shown.GroupVersionKind = v.to
		if c[v.to.Group] == nil {
			c[v.to.Group] = map[string][]member.API{}
		}
		c[v.to.Group][v.to.Version] = append(c[v.to.Group][v.to.Version], shown)
	}
}

// rename moves the value of the field from to the field to, and replaces a value there. Without the
// field from, it does nothing.
func (b body) rename(from, to string) {
	if value, ok := b[from]; ok {
		delete(b, from)
		b[to] = value
	}
}

// toEventsV1 converts an Event of the core API in place to one of events.k8s.io, which has
// other names for the same fields. apiVersion and kind stay.
func toEventsV1(o body) error {
	for from, to := range map[string]string{
		"involvedObject": "regarding", "message": "note", "reportingComponent": "reportingController", "source": "deprecatedSource",
		"firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp", "count": "deprecatedCount",
	} {
		o.rename(from, to)
	}
	// In older Events these two fields are empty. Events of events.k8s.io omit empty fields.
	for _, name := range []string{"reportingController", "reportingInstance"} {
		if string(o[name]) == `""` {
			delete(o, name)
		}
	}
	return nil
}

// Annotations of HorizontalPodAutoscalers of v1 for the values that v1 has no fields for.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"
)

// toAutoscalingV1 converts a HorizontalPodAutoscaler in place from v2 to v1, as API servers do:
// everything except the CPU utilization becomes annotations. apiVersion and kind stay. An
// object without spec is not changed.
func toAutoscalingV1(o body) error {
	if o["spec"] == nil {
		return nil // a deleted object may have only its metadata
	}
	var spec autoscalingv2.HorizontalPodAutoscalerSpec
	var status autoscalingv2.HorizontalPodAutoscalerStatus
	if err := json.Unmarshal(o["spec"], &spec); err != nil {
		return fmt.Errorf("parse spec: %w", err)
	}
	if raw := o["status"]; raw != nil {
		if err := json.Unmarshal(raw, &status); err != nil {
			return fmt.Errorf("parse status: %w", err)
		}
	}
	annotations := map[string]any{}
	v1 := autoscalingv1.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(spec.ScaleTargetRef), MinReplicas: spec.MinReplicas, MaxReplicas: spec.MaxReplicas,
	}
	var others []autoscalingv1.MetricSpec
	for _, m := range spec.Metrics {
		if m.Type != autoscalingv2.ResourceMetricSourceType || m.Resource == nil || m.Resource.Name != corev1.ResourceCPU || m.Resource.Target.AverageUtilization == nil {
			others = append(others, metricV1(m))
		} else if v1.TargetCPUUtilizationPercentage == nil {
			v1.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
		}
	}
	now := autoscalingv1.HorizontalPodAutoscalerStatus{
		ObservedGeneration: status.ObservedGeneration, LastScaleTime: status.LastScaleTime,
		CurrentReplicas: status.CurrentReplicas, DesiredReplicas: status.DesiredReplicas,
	}
	var current []autoscalingv1.MetricStatus
	for _, m := range status.CurrentMetrics {
		current = append(current, metricStatusV1(m))
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			now.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
	}
	if len(others) > 0 {
		annotations[metricsAnnotation] = others
	}
	if len(current) > 0 {
		annotations[currentMetricsAnnotation] = current
	}
	if len(status.Conditions) > 0 {
		annotations[conditionsAnnotation] = status.Conditions // v1 and v2 have the same fields
	}
	if spec.Behavior != nil {
		raw, err := json.Marshal(spec.Behavior)
		if err != nil {
			return err
		}
		var behavior any
		if err := json.Unmarshal(raw, &behavior); err != nil {
			return err
		}
		annotations[behaviorAnnotation] = capitalized(behavior)
	}
	return errors.Join(o.annotate(annotations), o.set("spec", v1), o.set("status", now))
}

// annotate sets the four annotations for values that HorizontalPodAutoscalers of v1 have no fields
// for. The values are given by annotation, and are encoded as JSON. Annotations without a given
// value are removed.
func (b body) annotate(annotations map[string]any) error {
	metadata, all := body{}, map[string]string{}
	if err := json.Unmarshal(b["metadata"], &metadata); err != nil {
		return err
	}
	if raw := metadata["annotations"]; raw != nil {
		if err := json.Unmarshal(raw, &all); err != nil {
			return err
		}
	}
	for _, name := range []string{metricsAnnotation, currentMetricsAnnotation, conditionsAnnotation, behaviorAnnotation} {
		delete(all, name)
		if value, ok := annotations[name]; ok {
			raw, err := json.Marshal(value)
			if err != nil {
				return err
			}
			all[name] = string(raw)
		}
	}
	return errors.Join(metadata.set("annotations", all), b.set("metadata", metadata))
}

// capitalized returns a JSON value in which all field names begin with a capital: the behavior
// annotation has names of Go fields. Lists in value are changed in place.
func capitalized(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, field := range v {
			out[strings.ToUpper(name[:1])+name[1:]] = capitalized(field)
		}
		return out
	case []any:
		for i := range v {
			v[i] = capitalized(v[i])
		}
	}
	return value
}

// quantity returns *q; the zero quantity if q is nil.
func quantity(q *resource.Quantity) resource.Quantity {
	if q == nil {
		return resource.Quantity{}
	}
	return *q
}

func metricV1(m autoscalingv2.MetricSpec) autoscalingv1.MetricSpec {
	out := autoscalingv1.MetricSpec{Type: autoscalingv1.MetricSourceType(m.Type)}
	if s := m.Object; s != nil {
		out.Object = &autoscalingv1.ObjectMetricSource{
			Target: autoscalingv1.CrossVersionObjectReference(s.DescribedObject), MetricName: s.Metric.Name, Selector: s.Metric.Selector,
			TargetValue: quantity(s.Target.Value), AverageValue: s.Target.AverageValue,
		}
	}
	if s := m.Pods; s != nil {
		out.Pods = &autoscalingv1.PodsMetricSource{MetricName: s.Metric.Name, Selector: s.Metric.Selector, TargetAverageValue: quantity(s.Target.AverageValue)}
	}
	if s := m.Resource; s != nil {
		out.Resource = &autoscalingv1.ResourceMetricSource{Name: s.Name, TargetAverageUtilization: s.Target.AverageUtilization, TargetAverageValue: s.Target.AverageValue}
	}
	if s := m.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricSource{
			Name: s.Name, Container: s.Container, TargetAverageUtilization: s.Target.AverageUtilization, TargetAverageValue: s.Target.AverageValue,
		}
	}
	if s := m.External; s != nil {
		out.External = &autoscalingv1.ExternalMetricSource{
			MetricName: s.Metric.Name, MetricSelector: s.Metric.Selector, TargetValue: s.Target.Value, TargetAverageValue: s.Target.AverageValue,
		}
	}
	return out
}

func metricStatusV1(m autoscalingv2.MetricStatus) autoscalingv1.MetricStatus {
	out := autoscalingv1.MetricStatus{Type: autoscalingv1.MetricSourceType(m.Type)}
	if s := m.Object; s != nil {
		out.Object = &autoscalingv1.ObjectMetricStatus{
			Target: autoscalingv1.CrossVersionObjectReference(s.DescribedObject), MetricName: s.Metric.Name, Selector: s.Metric.Selector,
			CurrentValue: quantity(s.Current.Value), AverageValue: s.Current.AverageValue,
		}
	}
	if s := m.Pods; s != nil {
		out.Pods = &autoscalingv1.PodsMetricStatus{MetricName: s.Metric.Name, Selector: s.Metric.Selector, CurrentAverageValue: quantity(s.Current.AverageValue)}
	}
	if s := m.Resource; s != nil {
		out.Resource = &autoscalingv1.ResourceMetricStatus{
			Name: s.Name, CurrentAverageUtilization: s.Current.AverageUtilization, CurrentAverageValue: quantity(s.Current.AverageValue),
		}
	}
	if s := m.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricStatus{
			Name: s.Name, Container: s.Container, CurrentAverageUtilization: s.Current.AverageUtilization, CurrentAverageValue: quantity(s.Current.AverageValue),
		}
	}
	if s := m.External; s != nil {
		out.External = &autoscalingv1.ExternalMetricStatus{
			MetricName: s.Metric.Name, MetricSelector: s.Metric.Selector, CurrentValue: quantity(s.Current.Value), CurrentAverageValue: s.Current.AverageValue,
		}
	}
	return out
}
