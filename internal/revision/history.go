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

// Annotations that Kubernetes keeps for rollouts.
const (
	numberAnnotation = "deployment.kubernetes.io/revision"
	causeAnnotation  = "kubernetes.io/change-cause"
)

// isHistorys says whether an annotation of a workload is no part of its revisions: those that
// kubectl leaves alone when it rolls back. All the others are: kubectl replaces them.
func isHistorys(annotation string) bool {
	switch annotation {
	case corev1.LastAppliedConfigAnnotation, appsv1.DeprecatedRollbackTo,
		numberAnnotation, "deployment.kubernetes.io/revision-history",
		"deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas":
		return true
	}
	return false
}

// revision is one pod template that a workload had.
type revision struct {
	number int64
	hash   string
	// template is canonical: equal templates are equal bytes.
	template []byte
	// annotations are those that the workload had with this template.
	annotations map[string]string
	created     time.Time
}

// content is what a record holds of a revision.
type content struct {
	Template    json.RawMessage   `json:"template"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// canonical is a pod template without the label by which a ReplicaSet tells its pods.
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

// hashOf identifies a pod template of one workload. Another workload's has another hash, even
// if it had the same name: what was left behind of it is in nobody's way.
func hashOf(workload types.UID, template []byte) string {
	sum := sha256.Sum256(append([]byte(workload+"/"), template...))
	return hex.EncodeToString(sum[:5])
}

// fromRecord reads what record has made.
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

// object is a revision as it is on the hub.
type object struct {
	client.Object
	revision
}

// plan is what brings records and hub to the history that a workload has.
type plan struct {
	record []revision // to put into the records
	forget []int64    // to take out of them
	write  []write
	remove []client.Object
	// annotate is the number that the workload itself shall show; empty: as it is.
	annotate string
}

// write is one object of the history on the hub.
type write struct {
	object client.Object
	action action
	// current is true of the revision that is the workload's template now.
	current bool
}

type action string

const (
	keep   action = "Keep"
	create action = "Create"
	update action = "Update"
)

// decide says what is to be done about a workload of which these records and objects are known.
// It numbers as Kubernetes does: a template that was there before gets the next number.
func decide(w *workload, known []revision, objects []object, now time.Time) (plan, error) {
	history := merge(known, objects)
	var last int64
	if n := len(history); n > 0 {
		last = history[n-1].number
	}
	// The newest, should two be equal.
	current := len(history) - 1
	for current >= 0 && !bytes.Equal(history[current].template, w.template) {
		current--
	}
	switch {
	case current < 0 && w.paused:
		// Nothing is rolled out until it is resumed: this template may never be a revision.
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
	// The limit is on what is not current, which is last or, while paused, not in the history.
	if surplus := len(history) - w.limit; current >= 0 && surplus > 1 {
		history = history[surplus-1:]
		current = len(history) - 1
	} else if current < 0 && surplus > 0 {
		history = history[surplus:]
	}

	p := plan{}
	p.record, p.forget = difference(known, history)
	if !w.helm && last < 2 && len(objects) == 0 {
		return p, nil // nobody can roll back, and nobody waits for it
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
	// kubectl replaces the annotations of a Deployment that it rolls back, which fails where
	// there are none; it also finds the number there that `rollout status --revision` asks for.
	if d := w.deployment; d != nil && current >= 0 && last > 1 {
		if n := strconv.FormatInt(last, 10); d.Annotations[numberAnnotation] != n {
			p.annotate = n
		}
	}
	return p, nil
}

// merge is the history that records and objects tell, by number. What is on the hub is believed
// first: the records may be lost, or older.
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
			// It was numbered anew, and the object was not written yet.
			history[i].number = max(history[i].number, k.number)
		}
	}
	slices.SortStableFunc(history, func(a, b revision) int { return cmp.Compare(a.number, b.number) })
	return history
}

// difference is what makes the records tell a history.
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
