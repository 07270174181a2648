package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// recordedEvents are events, each as "TYPE REASON of GOTYPE".
type recordedEvents []string

func (r *recordedEvents) Eventf(regarding, _ runtime.Object, eventtype, reason, _, _ string, _ ...any) {
	*r = append(*r, fmt.Sprintf("%s %s of %T", eventtype, reason, regarding))
}

// TestDeletionWaits follows a template with a finalizer through its deletion.
func TestDeletionWaits(t *testing.T) {
	template := func(deleted bool, finalizers ...string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("v1")
		o.SetKind("ConfigMap")
		o.SetName("held")
		o.SetUID("uid")
		o.SetResourceVersion("7")
		o.SetFinalizers(finalizers)
		if deleted {
			o.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
		}
		return o
	}
	var events recordedEvents
	w := &writer{events: &events}
	b := &workv1alpha2.ResourceBinding{}
	b.Namespace, b.Spec.Resource.Kind, b.Spec.Resource.Name = "shop", "ConfigMap", "held"
	for _, step := range []struct {
		name   string
		object *unstructured.Unstructured
		want   []string // finalizers that are named
		events recordedEvents
	}{
		{"NotDeleted", template(false, "example.com/cleanup"), nil, nil},
		{"ItsDependentsGo", template(true, metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents), nil, nil},
		{"Waits", template(true, "example.com/cleanup", "b"), []string{"example.com/cleanup", "b"}, recordedEvents{
			"Normal FinalizersRemain of *v1.PartialObjectMetadata", "Normal FinalizersRemain of *v1alpha2.ResourceBinding",
		}},
		{"WaitsForLess", template(true, "b"), []string{"b"}, nil},
		{"TemplateNotKnown", nil, []string{"b"}, nil},
		{"MadeAnew", template(false), nil, nil},
	} {
		events = nil
		status := compute(b, subjectOf(step.object), nil, nil, nil, time.Now())
		w.tell(b, status)
		b.Status = status
		c := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionDeletionWaits)
		switch {
		case c == nil && len(step.want) == 0:
		case c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "1970-01-01T00:00:01Z") ||
			!strings.Contains(c.Message, "are removed: "+strings.Join(step.want, ", ")+";"):
			t.Errorf("%s: the condition is %+v, want one that names %v", step.name, c, step.want)
		}
		if diff := cmp.Diff(step.events, events); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", step.name, diff)
		}
	}
}
