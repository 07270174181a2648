package search

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	none  = "<none>"
	unset = "<unset>"
)

// builtin has the columns of tables of Kubernetes' own kinds, as kubectl shows them. Secrets are
// missing, because only the metadata of most Secrets is mirrored: their tables have the columns of
// plain.
var builtin = map[schema.GroupKind]*columns{
	{Kind: "Pod"}: withConditions(ended,
		text("Ready", func(p *corev1.Pod) string { return summarize(p).ready }),
		text("Status", func(p *corev1.Pod) string { return summarize(p).status }),
		text("Restarts", func(p *corev1.Pod) string { return summarize(p).restarts }),
		age[corev1.Pod](),
		wide("IP", func(p *corev1.Pod) string { return or(p.Status.PodIP, none) }),
		wide("Node", func(p *corev1.Pod) string { return or(p.Spec.NodeName, none) }),
		wide("Nominated Node", func(p *corev1.Pod) string { return or(p.Status.NominatedNodeName, none) }),
		wide("Readiness Gates", readinessGates),
	),
	{Group: "apps", Kind: "Deployment"}: table(
		text("Ready", func(d *appsv1.Deployment) string { return ratio(d.Status.ReadyReplicas, d.Spec.Replicas) }),
		numeral("Up-to-date", func(d *appsv1.Deployment) int32 { return d.Status.UpdatedReplicas }),
		numeral("Available", func(d *appsv1.Deployment) int32 { return d.Status.AvailableReplicas }),
		age[appsv1.Deployment](),
		wide("Containers", func(d *appsv1.Deployment) string { return containers(d.Spec.Template) }),
		wide("Images", func(d *appsv1.Deployment) string { return images(d.Spec.Template) }),
		wide("Selector", func(d *appsv1.Deployment) string { return metav1.FormatLabelSelector(d.Spec.Selector) }),
	),
	{Group: "apps", Kind: "StatefulSet"}: table(
		text("Ready", func(s *appsv1.StatefulSet) string { return ratio(s.Status.ReadyReplicas, s.Spec.Replicas) }),
		age[appsv1.StatefulSet](),
		wide("Containers", func(s *appsv1.StatefulSet) string { return containers(s.Spec.Template) }),
		wide("Images", func(s *appsv1.StatefulSet) string { return images(s.Spec.Template) }),
	),
	{Group: "apps", Kind: "DaemonSet"}: table(
		number("Desired", func(d *appsv1.DaemonSet) int32 { return d.Status.DesiredNumberScheduled }),
		number("Current", func(d *appsv1.DaemonSet) int32 { return d.Status.CurrentNumberScheduled }),
		number("Ready", func(d *appsv1.DaemonSet) int32 { return d.Status.NumberReady }),
		number("Up-to-date", func(d *appsv1.DaemonSet) int32 { return d.Status.UpdatedNumberScheduled }),
		number("Available", func(d *appsv1.DaemonSet) int32 { return d.Status.NumberAvailable }),
		text("Node Selector", func(d *appsv1.DaemonSet) string { return labels.FormatLabels(d.Spec.Template.Spec.NodeSelector) }),
		age[appsv1.DaemonSet](),
		wide("Containers", func(d *appsv1.DaemonSet) string { return containers(d.Spec.Template) }),
		wide("Images", func(d *appsv1.DaemonSet) string { return images(d.Spec.Template) }),
		wide("Selector", func(d *appsv1.DaemonSet) string { return metav1.FormatLabelSelector(d.Spec.Selector) }),
	),
	{Group: "apps", Kind: "ReplicaSet"}: table(
		number("Desired", func(r *appsv1.ReplicaSet) int32 { return value(r.Spec.Replicas, 1) }),
		number("Current", func(r *appsv1.ReplicaSet) int32 { return r.Status.Replicas }),
		number("Ready", func(r *appsv1.ReplicaSet) int32 { return r.Status.ReadyReplicas }),
		age[appsv1.ReplicaSet](),
		wide("Containers", func(r *appsv1.ReplicaSet) string { return containers(r.Spec.Template) }),
		wide("Images", func(r *appsv1.ReplicaSet) string { return images(r.Spec.Template) }),
		wide("Selector", func(r *appsv1.ReplicaSet) string { return metav1.FormatLabelSelector(r.Spec.Selector) }),
	),
	{Kind: "ReplicationController"}: table(
		number("Desired", func(r *corev1.ReplicationController) int32 { return value(r.Spec.Replicas, 1) }),
		number("Current", func(r *corev1.ReplicationController) int32 { return r.Status.Replicas }),
		number("Ready", func(r *corev1.ReplicationController) int32 { return r.Status.ReadyReplicas }),
		age[corev1.ReplicationController](),
		wide("Containers", func(r *corev1.ReplicationController) string {
			return containers(value(r.Spec.Template, corev1.PodTemplateSpec{}))
		}),
		wide("Images", func(r *corev1.ReplicationController) string {
			return images(value(r.Spec.Template, corev1.PodTemplateSpec{}))
		}),
		wide("Selector", func(r *corev1.ReplicationController) string { return labels.FormatLabels(r.Spec.Selector) }),
	),
	{Group: "policy", Kind: "PodDisruptionBudget"}: table(
		text("Min Available", func(b *policyv1.PodDisruptionBudget) string { return orNotSet(b.Spec.MinAvailable) }),
		text("Max Unavailable", func(b *policyv1.PodDisruptionBudget) string { return orNotSet(b.Spec.MaxUnavailable) }),
		number("Allowed Disruptions", func(b *policyv1.PodDisruptionBudget) int32 { return b.Status.DisruptionsAllowed }),
		age[policyv1.PodDisruptionBudget](),
	),
	{Group: "batch", Kind: "Job"}: table(
		text("Status", jobStatus),
		text("Completions", jobCompletions),
		text("Duration", jobDuration),
		age[batchv1.Job](),
		wide("Containers", func(j *batchv1.Job) string { return containers(j.Spec.Template) }),
		wide("Images", func(j *batchv1.Job) string { return images(j.Spec.Template) }),
		wide("Selector", func(j *batchv1.Job) string { return metav1.FormatLabelSelector(j.Spec.Selector) }),
	),
	{Group: "batch", Kind: "CronJob"}: table(
		text("Schedule", func(c *batchv1.CronJob) string { return c.Spec.Schedule }),
		text("Timezone", func(c *batchv1.CronJob) string { return value(c.Spec.TimeZone, none) }),
		text("Suspend", func(c *batchv1.CronJob) string {
			if value(c.Spec.Suspend, false) {
				return "True"
			}
			return "False"
		}),
		number("Active", func(c *batchv1.CronJob) int { return len(c.Status.Active) }),
		text("Last Schedule", func(c *batchv1.CronJob) string {
			if c.Status.LastScheduleTime == nil {
				return none
			}
			return since(c.Status.LastScheduleTime.Time)
		}),
		age[batchv1.CronJob](),
		wide("Containers", func(c *batchv1.CronJob) string { return containers(c.Spec.JobTemplate.Spec.Template) }),
		wide("Images", func(c *batchv1.CronJob) string { return images(c.Spec.JobTemplate.Spec.Template) }),
		wide("Selector", func(c *batchv1.CronJob) string { return metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector) }),
	),
	{Kind: "Service"}: table(
		text("Type", func(s *corev1.Service) string { return string(s.Spec.Type) }),
		text("Cluster-IP", func(s *corev1.Service) string { return or(s.Spec.ClusterIP, none) }),
		text("External-IP", externalIPs),
		text("Port(s)", ports),
		age[corev1.Service](),
		wide("Selector", func(s *corev1.Service) string { return labels.FormatLabels(s.Spec.Selector) }),
	),
	{Kind: "Node"}: table(
		text("Status", nodeStatus),
		text("Roles", nodeRoles),
		age[corev1.Node](),
		text("Version", func(n *corev1.Node) string { return n.Status.NodeInfo.KubeletVersion }),
		wide("Internal-IP", func(n *corev1.Node) string { return address(n, corev1.NodeInternalIP) }),
		wide("External-IP", func(n *corev1.Node) string { return address(n, corev1.NodeExternalIP) }),
		wide("OS-Image", func(n *corev1.Node) string { return or(n.Status.NodeInfo.OSImage, "<unknown>") }),
		wide("Kernel-Version", func(n *corev1.Node) string {
			kernel := or(n.Status.NodeInfo.KernelVersion, "<unknown>")
			if arch := n.Status.NodeInfo.Architecture; arch != "" {
				kernel += " (" + arch + ")"
			}
			return kernel
		}),
		wide("Container-Runtime", func(n *corev1.Node) string { return or(n.Status.NodeInfo.ContainerRuntimeVersion, "<unknown>") }),
	),
	{Kind: "Namespace"}: table(
		text("Status", func(n *corev1.Namespace) string { return string(n.Status.Phase) }),
		age[corev1.Namespace](),
	),
	{Kind: "ConfigMap"}: table(
		numeral("Data", func(c *corev1.ConfigMap) int { return len(c.Data) + len(c.BinaryData) }),
		age[corev1.ConfigMap](),
	),
	{Group: "networking.k8s.io", Kind: "Ingress"}: table(
		text("Class", func(i *networkingv1.Ingress) string { return value(i.Spec.IngressClassName, none) }),
		text("Hosts", hosts),
		text("Address", func(i *networkingv1.Ingress) string {
			return join(i.Status.LoadBalancer.Ingress, func(l networkingv1.IngressLoadBalancerIngress) string { return or(l.IP, l.Hostname) })
		}),
		text("Ports", func(i *networkingv1.Ingress) string {
			if len(i.Spec.TLS) > 0 {
				return "80, 443"
			}
			return "80"
		}),
		age[networkingv1.Ingress](),
	),
	{Kind: "PersistentVolume"}: table(
		text("Capacity", func(v *corev1.PersistentVolume) string { return storage(v.Spec.Capacity) }),
		text("Access Modes", func(v *corev1.PersistentVolume) string { return accessModes(v.Spec.AccessModes) }),
		text("Reclaim Policy", func(v *corev1.PersistentVolume) string { return string(v.Spec.PersistentVolumeReclaimPolicy) }),
		text("Status", func(v *corev1.PersistentVolume) string { return phase(v.DeletionTimestamp, string(v.Status.Phase)) }),
		text("Claim", func(v *corev1.PersistentVolume) string {
			if v.Spec.ClaimRef == nil {
				return ""
			}
			return v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
		}),
		text("StorageClass", func(v *corev1.PersistentVolume) string { return v.Spec.StorageClassName }),
		text("VolumeAttributesClass", func(v *corev1.PersistentVolume) string { return value(v.Spec.VolumeAttributesClassName, unset) }),
		text("Reason", func(v *corev1.PersistentVolume) string { return v.Status.Reason }),
		age[corev1.PersistentVolume](),
		wide("VolumeMode", func(v *corev1.PersistentVolume) string { return string(value(v.Spec.VolumeMode, unset)) }),
	),
	{Kind: "PersistentVolumeClaim"}: table(
		text("Status", func(c *corev1.PersistentVolumeClaim) string {
			return phase(c.DeletionTimestamp, string(c.Status.Phase))
		}),
		text("Volume", func(c *corev1.PersistentVolumeClaim) string { return c.Spec.VolumeName }),
		text("Capacity", func(c *corev1.PersistentVolumeClaim) string { return storage(c.Status.Capacity) }),
		text("Access Modes", func(c *corev1.PersistentVolumeClaim) string { return accessModes(c.Status.AccessModes) }),
		text("StorageClass", func(c *corev1.PersistentVolumeClaim) string { return value(c.Spec.StorageClassName, "") }),
		text("VolumeAttributesClass", func(c *corev1.PersistentVolumeClaim) string { return value(c.Spec.VolumeAttributesClassName, unset) }),
		age[corev1.PersistentVolumeClaim](),
		wide("VolumeMode", func(c *corev1.PersistentVolumeClaim) string { return string(value(c.Spec.VolumeMode, unset)) }),
	),
	{Kind: "Event"}: table(
		text("Last Seen", lastSeen),
		text("Type", func(e *corev1.Event) string { return e.Type }),
		text("Reason", func(e *corev1.Event) string { return e.Reason }),
		text("Object", func(e *corev1.Event) string {
			kind := strings.ToLower(e.InvolvedObject.Kind)
			if e.InvolvedObject.Name == "" {
				return kind
			}
			return kind + "/" + e.InvolvedObject.Name
		}),
		wide("Subobject", func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }),
		wide("Source", eventSource),
		text("Message", func(e *corev1.Event) string { return strings.TrimSpace(e.Message) }),
		wide("First Seen", func(e *corev1.Event) string { return since(first(e)) }),
		wideNumeral("Count", eventCount),
		column[corev1.Event]{head: head{name: nameHead.name, typ: "string", format: "name", wide: true, cell: nameHead.cell}},
	),
}

// orNotSet returns a number or percentage for a cell, as kubectl shows it; N/A for nil.
func orNotSet(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

// value returns *p, or otherwise if p is nil.
func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// ratio returns ready/desired for a cell, such as 2/3. If desired is nil, it counts as 1.
func ratio(ready int32, desired *int32) string { return fmt.Sprintf("%d/%d", ready, value(desired, 1)) }

func join[T any](all []T, name func(T) string) string {
	names := make([]string, 0, len(all))
	for _, one := range all {
		names = append(names, name(one))
	}
	return strings.Join(names, ",")
}

func containers(t corev1.PodTemplateSpec) string {
	return join(t.Spec.Containers, func(c corev1.Container) string { return c.Name })
}

func images(t corev1.PodTemplateSpec) string {
	return join(t.Spec.Containers, func(c corev1.Container) string { return c.Image })
}

func phase(deleted *metav1.Time, phase string) string {
	if deleted != nil {
		return "Terminating"
	}
	return phase
}

func storage(l corev1.ResourceList) string {
	if q, ok := l[corev1.ResourceStorage]; ok {
		return q.String()
	}
	return ""
}

func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	short := map[corev1.PersistentVolumeAccessMode]string{
		corev1.ReadWriteOnce: "RWO", corev1.ReadOnlyMany: "ROX", corev1.ReadWriteMany: "RWX", corev1.ReadWriteOncePod: "RWOP",
	}
	return join(modes, func(m corev1.PersistentVolumeAccessMode) string { return or(short[m], string(m)) })
}

func jobStatus(j *batchv1.Job) string {
	for _, t := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		if jobIs(j, t) {
			return string(t)
		}
	}
	if j.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, t := range []batchv1.JobConditionType{batchv1.JobSuspended, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if jobIs(j, t) {
			return string(t)
		}
	}
	return "Running"
}

func jobIs(j *batchv1.Job, t batchv1.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

func jobCompletions(j *batchv1.Job) string {
	if parallel := value(j.Spec.Parallelism, 1); j.Spec.Completions == nil && parallel > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallel)
	}
	return ratio(j.Status.Succeeded, j.Spec.Completions)
}

func jobDuration(j *batchv1.Job) string {
	switch {
	case j.Status.StartTime == nil:
		return ""
	case j.Status.CompletionTime == nil:
		return since(j.Status.StartTime.Time)
	default:
		return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
	}
}

func externalIPs(s *corev1.Service) string {
	ips := s.Spec.ExternalIPs
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		balancers := join(s.Status.LoadBalancer.Ingress, func(l corev1.LoadBalancerIngress) string { return or(l.IP, l.Hostname) })
		if balancers != "" {
			ips = append([]string{balancers}, ips...)
		}
		return or(strings.Join(ips, ","), "<pending>")
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
	}
	return or(strings.Join(ips, ","), none)
}

func ports(s *corev1.Service) string {
	return or(join(s.Spec.Ports, func(p corev1.ServicePort) string {
		if p.NodePort > 0 {
			return fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
		return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}), none)
}

func nodeStatus(n *corev1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func nodeRoles(n *corev1.Node) string {
	var roles []string
	for label, role := range n.Labels {
		if suffix, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok {
			role = suffix
		} else if label != "kubernetes.io/role" {
			continue
		}
		if role != "" {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return or(strings.Join(slices.Compact(roles), ","), none)
}

func address(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return none
}

func hosts(i *networkingv1.Ingress) string {
	var hosts []string
	for _, r := range i.Spec.Rules {
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	const shown = 3
	if more := len(hosts) - shown; more > 0 {
		return fmt.Sprintf("%s + %d more...", strings.Join(hosts[:shown], ","), more)
	}
	return or(strings.Join(hosts, ","), "*")
}

// first returns the first time at which an Event was seen. Newer Events have eventTime instead of
// firstTimestamp. It is zero if the Event has neither.
func first(e *corev1.Event) time.Time {
	if e.FirstTimestamp.IsZero() {
		return e.EventTime.Time
	}
	return e.FirstTimestamp.Time
}

func lastSeen(e *corev1.Event) string {
	switch {
	case e.Series != nil:
		return since(e.Series.LastObservedTime.Time)
	case e.LastTimestamp.IsZero():
		return since(first(e))
	default:
		return since(e.LastTimestamp.Time)
	}
}

// eventSource returns the component that reports an event and, after a comma, its host or
// instance if known.
func eventSource(e *corev1.Event) string {
	source := or(e.Source.Component, e.ReportingController)
	if instance := or(e.Source.Host, e.ReportingInstance); instance != "" {
		source += ", " + instance
	}
	return source
}

func eventCount(e *corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return cmp.Or(e.Count, 1)
}
