package cli

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseTaint(t *testing.T) {
	for text, want := range map[string]struct {
		taint  corev1.Taint
		remove bool
	}{
		"a=b:NoSchedule":             {corev1.Taint{Key: "a", Value: "b", Effect: "NoSchedule"}, false},
		"a:NoExecute":                {corev1.Taint{Key: "a", Effect: "NoExecute"}, false},
		"x.org/a=:PreferNoSchedule":  {corev1.Taint{Key: "x.org/a", Effect: "PreferNoSchedule"}, false},
		"a-":                         {corev1.Taint{Key: "a"}, true},
		"a:NoSchedule-":              {corev1.Taint{Key: "a", Effect: "NoSchedule"}, true},
		"well-known-one:NoSchedule-": {corev1.Taint{Key: "well-known-one", Effect: "NoSchedule"}, true},
	} {
		taint, remove, err := parseTaint(text)
		if diff := cmp.Diff(want.taint, taint); err != nil || diff != "" || remove != want.remove {
			t.Errorf("%s: %s %t %v", text, diff, remove, err)
		}
	}
	for _, text := range []string{"a=b", "a", "=b:NoSchedule", "a b:NoSchedule", "a=b c:NoSchedule", "a:", "a:Never", "a:Never-", "a=b:NoSchedule-", "-", "a=b=c:NoSchedule"} {
		if taint, _, err := parseTaint(text); err == nil {
			t.Errorf("%s is taken for %v", text, taint)
		}
	}
}

func TestTaintsChange(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	is := func(key, value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: effect}
	}
	timed := is("a", "", corev1.TaintEffectNoExecute)
	timed.TimeAdded = &now
	has := []corev1.Taint{is("a", "1", corev1.TaintEffectNoSchedule), is("b", "", corev1.TaintEffectNoSchedule)}
	for name, tc := range map[string]struct {
		t       tainting
		want    []corev1.Taint
		changed bool
		fails   bool
	}{
		"Added":       {t: tainting{set: []corev1.Taint{is("c", "", corev1.TaintEffectNoSchedule)}}, want: append(has[:2:2], is("c", "", corev1.TaintEffectNoSchedule)), changed: true},
		"OtherEffect": {t: tainting{set: []corev1.Taint{is("a", "", corev1.TaintEffectNoExecute)}}, want: append(has[:2:2], timed), changed: true},
		"Same":        {t: tainting{set: has[:1]}, want: has},
		"OtherValue":  {t: tainting{set: []corev1.Taint{is("a", "2", corev1.TaintEffectNoSchedule)}}, fails: true},
		"Overwritten": {
			t:    tainting{overwrite: true, set: []corev1.Taint{is("a", "2", corev1.TaintEffectNoSchedule)}},
			want: []corev1.Taint{is("a", "2", corev1.TaintEffectNoSchedule), has[1]}, changed: true,
		},
		"Removed":        {t: tainting{removed: []corev1.Taint{is("a", "", "")}}, want: has[1:], changed: true},
		"NotThere":       {t: tainting{removed: []corev1.Taint{is("a", "", corev1.TaintEffectNoExecute)}}, fails: true},
		"NeedNotBeThere": {t: tainting{mayLack: true, removed: []corev1.Taint{is("c", "", "")}}, want: has},
	} {
		before := append([]corev1.Taint{}, has...)
		got, changed, err := tc.t.change(has, now)
		if diff := cmp.Diff(tc.want, got); diff != "" || changed != tc.changed || (err != nil) != tc.fails {
			t.Errorf("%s: %s changed %t, %v", name, diff, changed, err)
		}
		if diff := cmp.Diff(before, has); diff != "" {
			t.Fatalf("%s changed what there was: %s", name, diff)
		}
	}
}
