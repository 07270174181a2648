package apply

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestConflictNamesManagerAndField: the message of condition Conflict names the managers and their
// fields, if the answer of server-side apply has causes.
func TestConflictNamesManagerAndField(t *testing.T) {
	cause := func(message, field string) metav1.StatusCause {
		return metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: message, Field: field}
	}
	conflict := func(causes ...metav1.StatusCause) error { return apierrors.NewApplyConflict(causes, "Apply failed") }
	for name, tc := range map[string]struct {
		err  error
		want []string
	}{
		"OneField": {conflict(cause(`conflict with "kubectl" using apps/v1 at 2026-01-02T03:04:05Z`, ".spec.replicas")), []string{`"kubectl" owns spec.replicas`}},
		"TwoManagers": {
			conflict(
				cause(`conflict with "kubectl"`, ".data.b"), cause(`conflict with "helm" with subresource "scale" using v1`, ".data.c"),
				cause(`conflict with "kubectl"`, ".data.a"), cause(`conflict with "kubectl"`, ".data.a")),
			[]string{`"helm" owns data.c`, `"kubectl" owns data.a, data.b`},
		},
		"ManyFields": {
			conflict(cause(`conflict with "a"`, ".1"), cause(`conflict with "a"`, ".2"), cause(`conflict with "a"`, ".3"), cause(`conflict with "a"`, ".4")),
			[]string{`"a" owns 1, 2, 3, and 1 more`},
		},
		"OtherText":  {conflict(cause("somebody", ".data.a")), []string{"somebody owns data.a"}},
		"Wrapped":    {fmt.Errorf("apply: %w", conflict(cause(`conflict with "a"`, ".data.a"))), []string{`"a" owns data.a`}},
		"OtherCause": {conflict(metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: "no", Field: ".data"}), nil},
		"NoCauses":   {conflict(), nil},
		"NoDetails":  {apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("changed")), nil},
		"NoStatus":   {errors.New("closed"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := ownedByOthers(tc.err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for foreign, end := range map[Foreign]string{Adopt: "delete the object in the cluster", Refuse: "=true"} {
				message := foreignMessage(placeWanted(func(w *Wanted) { w.Foreign = foreign }), got...)
				if !strings.Contains(message, " exists and was not placed by this hub; ") || !strings.HasSuffix(message, end) ||
					!strings.Contains(message, strings.Join(tc.want, " and ")) {
					t.Errorf("message %q", message)
				}
			}
		})
	}
}
