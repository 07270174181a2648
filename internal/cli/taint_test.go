package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
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

func TestPrintMoves(t *testing.T) {
	share := func(replicas int32) *fleetv1alpha1.MovedShare {
		return &fleetv1alpha1.MovedShare{Replicas: &replicas}
	}
	web := fleetv1alpha1.ExplainedObject{Kind: "Deployment", Namespace: "shop", Name: "web"}
	for name, tc := range map[string]struct {
		status fleetv1alpha1.PlacementReviewStatus
		want   string
	}{
		"Early":   {fleetv1alpha1.PlacementReviewStatus{Message: "try again"}, "  what would move is unknown: try again\n"},
		"Nothing": {fleetv1alpha1.PlacementReviewStatus{Moves: &fleetv1alpha1.PlacementMoves{Looked: 4, Exact: true}}, "  no object would move\n"},
		"Some": {fleetv1alpha1.PlacementReviewStatus{Moves: &fleetv1alpha1.PlacementMoves{Looked: 9, Moving: 6, Hidden: 1, Items: []fleetv1alpha1.PlacementMove{
			{Of: web, Clusters: []fleetv1alpha1.MovedCluster{{Name: "elm", From: share(1), To: share(3)}, {Name: "oak", From: share(2), Stays: true}, {Name: "pine", To: share(1)}}},
			{Of: fleetv1alpha1.ExplainedObject{Kind: "Namespace", Name: "shop"}, Clusters: []fleetv1alpha1.MovedCluster{{Name: "oak", From: &fleetv1alpha1.MovedShare{}}}, AtOnce: true},
			{Of: web, Hidden: 2, Later: true},
		}}}, `  6 of 9 objects would move:
  - Deployment shop/web: has 3 replicas in elm instead of 1, leaves oak (2 replicas) once as much is available elsewhere, goes to pine (1 replica)
  - Namespace shop: leaves oak, is in no cluster then
  - Deployment shop/web: changes in 2 clusters that you may not see, after its next change, because its policy is Lazy
  - and 2 more
  - and 1 that you may not see
  more objects may move: the hub does not know all of them yet, or its time was over
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := printMoves(&out, &tc.status); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// reviewingHub is a hub with the cluster oak, which has the taint a:NoSchedule. It keeps the taints
// of the last review, and says that nothing would move. A review with a taint "refuse" is refused.
type reviewingHub struct{ asked []string }

func (h *reviewingHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case (tenants{}).serves(w, r.URL.Path):
	case r.URL.Path == fleetv1alpha1.PlacementReviewsPath:
		var review fleetv1alpha1.PlacementReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Spec.Moves == nil || review.Spec.Moves.Cluster == nil || review.Spec.Moves.Cluster.Taints == nil {
			http.Error(w, "want taints of a cluster", http.StatusInternalServerError)
			return
		}
		h.asked = []string{}
		for _, taint := range review.Spec.Moves.Cluster.Taints {
			h.asked = append(h.asked, taint.ToString())
		}
		if slices.Contains(h.asked, "refuse:NoExecute") {
			reply(w, http.StatusBadRequest, metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest, Message: "no such field",
			})
			return
		}
		review.Status = &fleetv1alpha1.PlacementReviewStatus{Moves: &fleetv1alpha1.PlacementMoves{Looked: 1, Exact: true}}
		reply(w, http.StatusCreated, review)
	case r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") != metav1.DryRunAll:
		http.Error(w, "want a dry run", http.StatusInternalServerError)
	default:
		oak := clusterv1alpha1.Cluster{
			TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1alpha1.GroupVersion.String(), Kind: "Cluster"},
			ObjectMeta: metav1.ObjectMeta{Name: "oak", ResourceVersion: "1"},
		}
		oak.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
		reply(w, http.StatusOK, oak)
	}
}

// TestTaintPreview: with --dry-run=server "orrery taint" asks the hub what would move with all
// taints of the cluster, and prints the answer or why there is none.
func TestTaintPreview(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
		want []string // taints in the review; nil: there is no review
	}{
		"Added":     {[]string{"taint", "cluster", "oak", "disk=old:NoExecute", "--dry-run=server"}, 0, "cluster/oak tainted (server dry run)\n  no object would move\n", []string{"a:NoSchedule", "disk=old:NoExecute"}},
		"Removed":   {[]string{"taint", "cluster", "oak", "a-", "--dry-run=server"}, 0, "cluster/oak untainted (server dry run)\n  no object would move\n", []string{}},
		"Unchanged": {[]string{"taint", "cluster", "oak", "a:NoSchedule", "--dry-run=server"}, 0, "cluster/oak unchanged\n", nil},
		"Client":    {[]string{"taint", "cluster", "oak", "b:NoExecute", "--dry-run=client"}, 0, "cluster/oak tainted (dry run)\n", nil},
		"Cordon":    {[]string{"cordon", "oak", "--dry-run=server"}, 0, "cluster/oak cordoned (server dry run)\n", nil},
		"Refused":   {[]string{"taint", "cluster", "oak", "refuse:NoExecute", "--dry-run=server"}, 1, "cluster/oak tainted (server dry run)\nerror: cluster oak: preview what would move: no such field\n", []string{"a:NoSchedule", "refuse:NoExecute"}},
	} {
		t.Run(name, func(t *testing.T) {
			reviewing := &reviewingHub{}
			server := httptest.NewServer(reviewing)
			defer server.Close()
			alone(t, server.URL)
			var out bytes.Buffer
			code := Main(tc.args, strings.NewReader(""), &out, &out)
			if code != tc.code || out.String() != tc.says {
				t.Errorf("code %d, %q\nwant %q", code, out.String(), tc.says)
			}
			if diff := cmp.Diff(tc.want, reviewing.asked); diff != "" {
				t.Errorf("taints in the review (-want +got):\n%s", diff)
			}
		})
	}
}
