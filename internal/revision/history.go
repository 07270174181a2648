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
	numberAnnotation = "deployment.kubernetes.io/revision"
	causeAnnotation  = "kubernetes.io/change-cause"
)

// isHistorys reports whether an annotation of a workload is not part of its revisions. kubectl
// keeps these annotations in a rollback, and replaces all others.
func isHistorys(annotation string) bool {
	switch annotation {
	case corev1.LastAppliedConfigAnnotation, appsv1.DeprecatedRollbackTo,
		numberAnnotation, "deployment.kubernetes.io/revision-history",
		"deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas":
		return true
	}
	return false
}

// revision is one pod template of a workload.
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

// canonical encodes a pod template without the label that a ReplicaSet adds to its pods.
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

// hashOf returns the hash of a pod template of one workload. The hash contains the UID of the
// workload, so objects that an earlier workload of the same name left behind do not conflict.
func hashOf(workload types.UID, template []byte) string {
	sum := sha256.Sum256(append([]byte(workload+"/"), template...))
	return hex.EncodeToString(sum[:5])
}

// fromRecord reverses record.
func fromRecord(r records.Revision) (revision, error) {
	var c content
	if err := json.Unmarshal(r.Content, &c); err != nil {
		return revision{}, fmt.Errorf("read revision %d of %s: %w", r.Number, r.Template, err)
	}
	return revision{
		number: r.Number, hash: r.Hash, template: c.Template, annotations: c.Annotations, created: r.Created,
	}, nil
}

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

func (r revision) same(o revision) bool {
	return r.number == o.number && r.hash == o.hash && bytes.Equal(r.template, o.template) &&
		maps.Equal(r.annotations, o.annotations)
}

// object is a revision with its object on the hub.
type object struct {
	client.Object
	revision
}

// plan is the list of changes to the records and the hub.
type plan struct {
	record []revision // to store in the records
	forget []int64    // to delete from the records
	write  []write
	remove []client.Object
	// annotate is the revision number to write to the workload; "": no change.
	annotate string
}

// write is one object of the history on the hub.
type write struct {
	object client.Object
	action action
	// current is true for the workload's present template.
	current bool
}

type action string

const (
	keep   action = "Keep"
	create action = "Create"
	update action = "Update"
)

// decide returns the changes for a workload with these records and objects. It numbers as
// Kubernetes does: a template that returns gets the next number.
func decide(w *workload, known []revision, objects []object, now time.Time) (plan, error) {
	history := merge(known, objects)
	var last int64
	if n := len(history); n > 0 {
		last = history[n-1].number
	}
	// If two templates are equal, the newest one.
	current := len(history) - 1
	for current >= 0 && !bytes.Equal(history[current].template, w.template) {
		current--
	}
	switch {
	case current < 0 && w.paused:
		// While it is paused, nothing is rolled out: this template may never be a revision.
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
	// The limit is for revisions that are not current. The current one is the last or, while
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
		return p, nil // no rollback is possible, and no client waits for it
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
	// kubectl replaces the annotations of a Deployment in a rollback, which fails if there are
	// none. `rollout status --revision` also reads the number there.
	if d := w.deployment; d != nil && current >= 0 && last > 1 {
		if n := strconv.FormatInt(last, 10); d.Annotations[numberAnnotation] != n {
			p.annotate = n
		}
	}
	return p, nil
}

// merge returns the history from records and objects, sorted by number. Objects take precedence:
// the records may be lost or older.
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
			// It got a new number, and the object was not written yet.
			history[i].number = max(history[i].number, k.number)
		}
	}
	slices.SortStableFunc(history, func(a, b revision) int { return cmp.Compare(a.number, b.number) })
	return history
}

// difference returns the changes that turn the records into the history.
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

func find(objects []object, hash string) client.Object {
	for _, o := range objects {
		if o.hash == hash {
			return o.Object
		}
	}
	return nil
}
