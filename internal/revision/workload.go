package revision

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kinds are the kinds for which Kubernetes keeps revisions.
var kinds = []schema.GroupKind{
	{Group: appsv1.GroupName, Kind: "Deployment"},
	{Group: appsv1.GroupName, Kind: "StatefulSet"},
	{Group: appsv1.GroupName, Kind: "DaemonSet"},
}

// defaultLimit is the default revisionHistoryLimit of Kubernetes.
const defaultLimit = 10

// workload is the part of a Deployment, StatefulSet or DaemonSet that the history needs. owner is
// the reference to it for history objects; helm is true if Helm manages it; limit is its
// revisionHistoryLimit.
type workload struct {
	uid        types.UID
	deployment *appsv1.Deployment // nil for other kinds
	owner      metav1.OwnerReference
	namespace  string
	name       string
	template   []byte // canonical form
	// annotations that belong to a revision.
	annotations map[string]string
	helm        bool
	paused      bool
	limit       int
}

// read returns the workload of a Deployment, StatefulSet or DaemonSet on the hub. Other kinds, and
// objects that do not decode, are an error.
func read(o *unstructured.Unstructured) (*workload, error) {
	w := &workload{
		uid: o.GetUID(), namespace: o.GetNamespace(), name: o.GetName(), limit: defaultLimit,
		owner: *metav1.NewControllerRef(o, o.GroupVersionKind()),
		helm:  o.GetLabels()["app.kubernetes.io/managed-by"] == "Helm",
	}
	var template *corev1.PodTemplateSpec
	var limit *int32
	var err error
	switch o.GetKind() {
	case "Deployment":
		w.deployment = &appsv1.Deployment{}
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, w.deployment)
		template, limit, w.paused = &w.deployment.Spec.Template, w.deployment.Spec.RevisionHistoryLimit, w.deployment.Spec.Paused
	case "StatefulSet":
		var s appsv1.StatefulSet
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s)
		template, limit = &s.Spec.Template, s.Spec.RevisionHistoryLimit
	case "DaemonSet":
		var d appsv1.DaemonSet
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d)
		template, limit = &d.Spec.Template, d.Spec.RevisionHistoryLimit
	default:
		return nil, fmt.Errorf("read %s %s/%s: this kind has no revisions", o.GetKind(), w.namespace, w.name)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", o.GetKind(), w.namespace, w.name, err)
	}
	if limit != nil {
		w.limit = int(*limit)
	}
	if w.template, err = canonical(template); err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", o.GetKind(), w.namespace, w.name, err)
	}
	w.annotations = ofRevision(o.GetAnnotations())
	return w, nil
}

// ofRevision returns those annotations of a workload or ReplicaSet that belong to one revision, in
// a new map; nil if there are none.
func ofRevision(all map[string]string) map[string]string {
	annotations := maps.Clone(all)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return isHistorys(key) })
	if len(annotations) == 0 {
		return nil
	}
	return annotations
}

// object returns the object that a revision must have on the hub, and the action that makes it so.
// The argument is has the existing object, nil for none, and is not changed. For the action keep,
// is itself is the result.
func (w *workload) object(r revision, is client.Object) (client.Object, action, error) {
	switch is := is.(type) {
	case *appsv1.ReplicaSet:
		annotations := w.numbered(r)
		if maps.Equal(is.Annotations, annotations) {
			return is, keep, nil
		}
		rs := is.DeepCopy()
		rs.Annotations = annotations
		return rs, update, nil
	case *appsv1.ControllerRevision:
		if is.Revision == r.number && maps.Equal(is.Annotations, r.annotations) {
			return is, keep, nil
		}
		cr := is.DeepCopy()
		cr.Revision, cr.Annotations = r.number, maps.Clone(r.annotations)
		return cr, update, nil
	}
	var o client.Object
	var err error
	if w.deployment != nil {
		o, err = w.replicaSet(r)
	} else {
		o, err = w.controllerRevision(r)
	}
	if err != nil {
		return nil, "", fmt.Errorf("write revision %d of %s %s/%s: %w", r.number, w.owner.Kind, w.namespace, w.name, err)
	}
	return o, create, nil
}

// numbered returns the annotations for the ReplicaSet of a revision: those of the revision, and
// deployment.kubernetes.io/revision with its number.
func (w *workload) numbered(r revision) map[string]string {
	annotations := map[string]string{numberAnnotation: strconv.FormatInt(r.number, 10)}
	maps.Copy(annotations, r.annotations)
	return annotations
}

// objectName returns the name of a history object: the name of the workload, shortened if
// necessary, "-" and the hash.
func objectName(workload, hash string) string {
	workload = workload[:min(len(workload), validation.DNS1123SubdomainMaxLength-len(hash)-1)]
	return strings.TrimRight(workload, "-.") + "-" + hash
}

// metadata returns the metadata of a new history object of a revision. labels are those of the
// workload's pods, by which kubectl finds the object. hashLabel is the label that gets the hash.
func (w *workload) metadata(r revision, labels map[string]string, hashLabel string) metav1.ObjectMeta {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[hashLabel] = r.hash
	return metav1.ObjectMeta{
		Namespace: w.namespace, Name: objectName(w.name, r.hash),
		Labels: labels, OwnerReferences: []metav1.OwnerReference{w.owner},
	}
}

// replicaSet returns a new ReplicaSet for a revision of a Deployment. It has 0 replicas, because
// nothing on the hub creates pods. A pod template that cannot be decoded is an error.
func (w *workload) replicaSet(r revision) (*appsv1.ReplicaSet, error) {
	var template corev1.PodTemplateSpec
	if err := json.Unmarshal(r.template, &template); err != nil {
		return nil, fmt.Errorf("decode pod template: %w", err)
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: w.metadata(r, template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)}
	rs.Annotations = w.numbered(r)
	template.Labels = maps.Clone(rs.Labels)
	selector := w.deployment.Spec.Selector.DeepCopy()
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = r.hash
	rs.Spec = appsv1.ReplicaSetSpec{
		Replicas: new(int32), MinReadySeconds: w.deployment.Spec.MinReadySeconds, Selector: selector, Template: template,
	}
	return rs, nil
}

// hashLabel is the label in which Kubernetes stores the hash of a ControllerRevision.
const hashLabel = "controller.kubernetes.io/hash"

// controllerRevision returns a new ControllerRevision for a revision of a StatefulSet or DaemonSet.
// A pod template that cannot be decoded is an error.
func (w *workload) controllerRevision(r revision) (*appsv1.ControllerRevision, error) {
	var labelled struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(r.template, &labelled); err != nil {
		return nil, fmt.Errorf("decode pod template: %w", err)
	}
	data, err := patchOf(r.template)
	if err != nil {
		return nil, err
	}
	cr := &appsv1.ControllerRevision{ObjectMeta: w.metadata(r, labelled.Metadata.Labels, hashLabel), Revision: r.number}
	cr.Annotations = maps.Clone(r.annotations)
	cr.Data.Raw = data
	return cr, nil
}

// patchOf returns the strategic merge patch that restores a pod template. Its bytes are the same as
// kubectl's, which compares them to find out whether a rollback changes anything.
func patchOf(template []byte) ([]byte, error) {
	var t map[string]any
	if err := json.Unmarshal(template, &t); err != nil {
		return nil, fmt.Errorf("decode pod template: %w", err)
	}
	t["$patch"] = "replace"
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": t}})
	if err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	return patch, nil
}

// fromObject returns the revision that a ReplicaSet or a ControllerRevision of a workload stores. A
// ReplicaSet without a valid number has the number 0. For an object without the label for the hash,
// it computes the hash from the pod template. Data without a readable pod template is an error.
func fromObject(o client.Object, workload types.UID) (object, error) {
	r := revision{created: o.GetCreationTimestamp().Time}
	var template *corev1.PodTemplateSpec
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		// The number is 0 if the annotation is invalid.
		r.number, _ = strconv.ParseInt(o.Annotations[numberAnnotation], 10, 64)
		r.hash, r.annotations = o.Labels[appsv1.DefaultDeploymentUniqueLabelKey], ofRevision(o.Annotations)
		template = &o.Spec.Template
	case *appsv1.ControllerRevision:
		r.number, r.hash, r.annotations = o.Revision, o.Labels[hashLabel], o.Annotations
		var data struct {
			Spec struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(o.Data.Raw, &data); err != nil {
			return object{}, fmt.Errorf("read ControllerRevision %s/%s: %w", o.Namespace, o.Name, err)
		}
		template = &data.Spec.Template
	}
	var err error
	if r.template, err = canonical(template); err != nil {
		return object{}, fmt.Errorf("read %T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err)
	}
	if r.hash == "" {
		r.hash = hashOf(workload, r.template)
	}
	return object{Object: o, revision: r}, nil
}

// status returns the status for the ReplicaSet of a revision. Only the ReplicaSet of the current
// revision has replicas: those that the Deployment's status counts as updated. They count as ready
// when every cluster is available and runs no older template; the sum could hide a cluster without
// ready replicas. While clusters have not observed the Deployment's generation, the earlier status
// stays.
func (w *workload) status(rs *appsv1.ReplicaSet, current bool) appsv1.ReplicaSetStatus {
	d := w.deployment
	status := appsv1.ReplicaSetStatus{ObservedGeneration: rs.Generation}
	switch {
	case !current:
	case d.Status.ObservedGeneration != d.Generation:
		status = rs.Status
		status.ObservedGeneration = rs.Generation
	default:
		status.Replicas, status.FullyLabeledReplicas = d.Status.UpdatedReplicas, d.Status.UpdatedReplicas
		available := slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
		})
		if available && d.Status.Replicas == d.Status.UpdatedReplicas {
			status.ReadyReplicas = min(d.Status.ReadyReplicas, status.Replicas)
			status.AvailableReplicas = min(d.Status.AvailableReplicas, status.ReadyReplicas)
		}
	}
	return status
}
