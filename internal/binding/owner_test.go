package binding

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

func TestPropagation(t *testing.T) {
	const orphan, foreground = metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground
	earlier := bound("web-deployment", "b", 0).Spec
	earlier.Resource.UID = "t"
	owned := earlier
	owned.OwnerReferenced = true
	stored := owned
	stored.DeletionPropagation = foreground
	for name, tc := range map[string]struct {
		spec       workv1alpha2.BindingSpec
		references []metav1.OwnerReference
		seen, want metav1.DeletionPropagation
	}{
		"OfAnEarlierVersion":     {spec: earlier},
		"OfAnEarlierVersionSeen": {spec: earlier, seen: orphan, want: orphan},
		"Owned":                  {spec: owned, references: []metav1.OwnerReference{Owner(&owned)}},
		"OwnedAndSeen":           {spec: owned, references: []metav1.OwnerReference{Owner(&owned)}, seen: foreground, want: foreground},
		"ReferenceRemoved":       {spec: owned, want: orphan},
		"ReferenceOfOthers":      {spec: owned, references: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "another"}}, want: orphan},
		"TheBindingSays":         {spec: stored, seen: orphan, want: foreground},
	} {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tc.references}, Spec: tc.spec}
			if got := Propagation(b, tc.seen); got != tc.want {
				t.Errorf("it is %q, want %q", got, tc.want)
			}
		})
	}
}
