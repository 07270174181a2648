package revision

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/records"
)

// Annotations that Kubernetes uses for rollouts.
const (
	// numberAnnotation has the number of the revision, on a Deployment and its ReplicaSets.
	numberAnnotation = "deployment.kubernetes.io/revision"
	// causeAnnotation has the reason for a change as a user wrote it, which kubectl rollout history
	// prints.
	causeAnnotation = "kubernetes.io/change-cause"
)

// isHistorys reports whether an annotation of a workload belongs to the workload or its history,
// and not to one revision. In a rollback kubectl keeps these annotations, and replaces all others
// by those of the revision.
func isHistorys(annotation string) bool {
	switch annotation {
	case corev1.LastAppliedConfigAnnotation, appsv1.DeprecatedRollbackTo,
		numberAnnotation, "deployment.kubernetes.io/revision-history",
		"deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas":
		return true
	}
	return false
}

// revision is one pod template that a workload had, with the number of its last rollout. hash
// identifies the pod template in the names of objects.
type revision struct {
	number int64
	hash   string
	// template is in canonical form: equal templates have equal bytes.
	template []byte
	// annotations of the workload with this template.
	annotations map[string]string
	created     time.Time
}

// content is the part of a revision that a record stores as JSON.
type content struct {
	Template    json.RawMessage   `json:"template"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// canonical returns a pod template as JSON, without the label pod-template-hash that a ReplicaSet
// adds to its pods. Equal templates have equal bytes. It does not change t.
func canonical(t *corev1.PodTemplateSpec) ([]byte, error) {
	if _, ok := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; ok {
		t = t.DeepCopy()
		delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	}
	b, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	return b, nil
}

// hashOf returns the hash of a pod template, as 10 hexadecimal digits, for the names of history
// objects. workload is the UID of the workload and part of the hash. So objects that an earlier
// workload of the same name left behind do not conflict.
func hashOf(workload types.UID, template []byte) string {
	sum := sha256.Sum256(append([]byte(workload+"/"), template...))
	return hex.EncodeToString(sum[:5])
}

// fromRecord returns the revision that a record of the records database stores. It returns an error
// if the content of r is not valid JSON.
func fromRecord(r records.Revision) (revision, error) {
	var c content
	if err := json.Unmarshal(r.Content, &c); err != nil {
		return revision{}, fmt.Errorf("read revision %d of %s: %w", r.Number, r.Template, err)
	}
	return revision{
		number: r.Number, hash: r.Hash, template: c.Template, annotations: c.Annotations, created: r.Created,
	}, nil
}

// record returns the revision in the form in which the records database stores it. workload is the
// UID of the workload.
func (r revision) record(workload types.UID) (records.Revision, error) {
	c, err := json.Marshal(content{Template: r.template, Annotations: r.annotations})
	if err != nil {
		return records.Revision{}, fmt.Errorf("encode revision %d: %w", r.number, err)
	}
	return records.Revision{
		Template: workload, Number: r.number, Hash: r.hash, Content: c,
		Cause: r.annotations[causeAnnotation], Created: r.created,
	}, nil
}

// same reports whether two revisions are equal, except for the time of creation.
func (r revision) same(o revision) bool {
	return r.number == o.number && r.hash == o.hash && bytes.Equal(r.template, o.template) &&
		maps.Equal(r.annotations, o.annotations)
}

// object is a revision together with its object on the hub: a ReplicaSet of a Deployment, or a
// ControllerRevision of a StatefulSet or DaemonSet.
type object struct {
	client.Object
	revision
}

// plan is the list of changes to the records and the hub that decide returns.
type plan struct {
	record []revision // to store in the records
	forget []int64    // to delete from the records
	write  []write
	remove []client.Object
	// annotate is the revision number to write to the workload; "": no change.
	annotate string
}

// write is one object that the history must have on the hub, with the action that leads to it.
type write struct {
	object client.Object
	action action
	// current is true for the workload's present template.
	current bool
}

// action says how an object on the hub becomes the wanted one.
type action string

const (
	keep   action = "Keep"
	create action = "Create"
	update action = "Update"
)

// decide returns the changes to the history of a workload. known are its revisions in the records,
// and objects those on the hub. now is the creation time of a new revision. As in Kubernetes, a pod
// template that was used before gets the next number when it returns. While the workload is paused,
// a new pod template gets no revision. Revisions beyond the limit of the workload are removed. An
// error means that a revision cannot be written as an object. decide does not change its arguments.
func decide(w *workload, known []revision, objects []object, now time.Time) (plan, error) {
	history := merge(known, objects)
	var last int64
	if n := len(history); n > 0 {
		last = history[n-1].number
	}
	// current is the index of the workload's pod template, of the newest one if several are equal; -1:
	// none.
	current := len(history) - 1
	for current >= 0 && !bytes.Equal(history[current].template, w.template) {
		current--
	}
	switch {
	case current < 0 && w.paused:
		// A paused workload rolls nothing out: its template may never be a revision.
	case current < 0:
		history = append(history, revision{number: last + 1, hash: hashOf(w.uid, w.template), template: w.template, created: now})
	case current < len(history)-1:
		r := history[current]
		r.number = last + 1
		history = append(slices.Delete(history, current, current+1), r)
	}
	if current >= 0 || !w.paused {
		current = len(history) - 1
		history[current].annotations = w.annotations
		last = history[current].number
	}
	// The limit is for revisions that are not current. The current revision is the last or, while
	// paused, not in the history.
	if surplus := len(history) - w.limit; current >= 0 && surplus > 1 {
		history = history[surplus-1:]
		current = len(history) - 1
	} else if current < 0 && surplus > 0 {
		history = history[surplus:]
	}

	p := plan{}
	p.record, p.forget = difference(known, history)
	if !w.helm && last < 2 && len(objects) == 0 {
		return p, nil // no rollback is possible yet, and no client waits for an object
	}
	kept := map[string]bool{}
	for i, r := range history {
		kept[r.hash] = true
		o, action, err := w.object(r, find(objects, r.hash))
		if err != nil {
			return plan{}, err
		}
		p.write = append(p.write, write{object: o, action: action, current: i == current})
	}
	for _, o := range objects {
		if !kept[o.hash] {
			p.remove = append(p.remove, o.Object)
		}
	}
	// In a rollback kubectl replaces the annotations of a Deployment, which fails if the Deployment
	// has none. `rollout status --revision` also reads the number in the annotation.
	if d := w.deployment; d != nil && current >= 0 && last > 1 {
		if n := strconv.FormatInt(last, 10); d.Annotations[numberAnnotation] != n {
			p.annotate = n
		}
	}
	return p, nil
}

// merge returns the history of a workload, sorted by number, from the records (known) and the
// objects on the hub. Objects take precedence, because the records may be lost or older. A record
// is left out if an object has its number. A record with the hash of an object gives that object's
// revision its number, if that is higher.
func merge(known []revision, objects []object) []revision {
	var history []revision
	for _, o := range objects {
		history = append(history, o.revision)
	}
	for _, k := range known {
		taken := slices.ContainsFunc(history, func(r revision) bool { return r.number == k.number })
		i := slices.IndexFunc(history, func(r revision) bool { return r.hash == k.hash })
		switch {
		case taken:
		case i < 0:
			history = append(history, k)
		default:
			// The revision got a new number, and its object was not written yet.
			history[i].number = max(history[i].number, k.number)
		}
	}
	slices.SortStableFunc(history, func(a, b revision) int { return cmp.Compare(a.number, b.number) })
	return history
}

// difference returns the changes that turn the records (known) into the history: revisions to store
// and numbers of revisions to delete.
func difference(known, history []revision) (put []revision, forget []int64) {
	has := map[int64]revision{}
	for _, k := range known {
		has[k.number] = k
	}
	for _, r := range history {
		if k, ok := has[r.number]; !ok || !k.same(r) {
			put = append(put, r)
		}
		delete(has, r.number)
	}
	return put, slices.Sorted(maps.Keys(has))
}

// find returns the object on the hub of the revision with the hash; nil if there is none.
func find(objects []object, hash string) client.Object {
	for _, o := range objects {
		if o.hash == hash {
			return o.Object
		}
	}
	return nil
}
