package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
)

func TestWaitsIn(t *testing.T) {
	for name, tc := range map[string]struct {
		message string
		want    []waitingObject
	}{
		"Nothing": {"2 of 3 clusters; ash: it does not answer", nil},
		"One": {
			"1 of 3 clusters; to leave oak because of taint a=b:NoExecute, waits: Paused (by alice: maintenance (until 14:00); orrery failover resume ends that)",
			[]waitingObject{{Cluster: "oak", Taint: "a=b:NoExecute", Reason: "Paused", Message: "by alice: maintenance (until 14:00); orrery failover resume ends that"}},
		},
		"Several": {
			"2 of 2 clusters; to leave elm because of taint a:NoExecute, waits: NoReplacement (no other cluster fits); to leave oak because of taint x.org/a:NoExecute, waits: RateLimited; ash: it does not answer",
			[]waitingObject{
				{Cluster: "elm", Taint: "a:NoExecute", Reason: "NoReplacement", Message: "no other cluster fits"},
				{Cluster: "oak", Taint: "x.org/a:NoExecute", Reason: "RateLimited"},
			},
		},
		"First":    {"to leave oak because of taint a:NoExecute, waits: Starting", []waitingObject{{Cluster: "oak", Taint: "a:NoExecute", Reason: "Starting"}}},
		"Cut":      {"x; to leave oak because of taint a:NoExecute, waits: Paused (by al…", []waitingObject{{Cluster: "oak", Taint: "a:NoExecute", Reason: "Paused", Message: "by al…"}}},
		"CutEarly": {"x; to leave oak because of taint a:NoExe…", nil},
		"Foreign":  {"x; to leave the house because of taint a, waits: no", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, waitsIn(tc.message)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// failing returns a Cluster with a taint that evicts, and with one that does not.
func failing(name string, added *metav1.Time) clusterv1alpha1.Cluster {
	return clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{Taints: []corev1.Taint{
		{Key: "gpu", Effect: corev1.TaintEffectNoSchedule},
		{Key: "disk", Value: "old", Effect: corev1.TaintEffectNoExecute, TimeAdded: added},
	}}}
}

// leavingOak returns the binding of a ConfigMap with a message of the condition Scheduled, and with
// tasks that leave clusters for a reason.
func leavingOak(name, message, reason string, from ...string) *workv1alpha2.ResourceBinding {
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "-configmap"}}
	b.Spec.Resource.Kind, b.Spec.Resource.Name = "ConfigMap", name
	for _, cluster := range from {
		b.Spec.GracefulEvictionTasks = append(b.Spec.GracefulEvictionTasks, workv1alpha2.GracefulEvictionTask{FromCluster: cluster, Reason: reason})
	}
	if message != "" {
		b.Status.Conditions = []metav1.Condition{{Type: workv1alpha2.ConditionScheduled, Status: metav1.ConditionTrue, Message: message}}
	}
	return b
}

func TestFailoverStatus(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	before, after := metav1.NewTime(start.Add(-time.Hour)), metav1.NewTime(start.Add(time.Hour))
	now := start.Add(2 * time.Hour)
	clusters := []clusterv1alpha1.Cluster{failing("pine", nil), failing("oak", &after), failing("elm", &before)}
	const waits = "1 of 2 clusters; to leave oak because of taint disk=old:NoExecute, waits: RateLimited (evictions begin one after the other)"
	bindings := []*workv1alpha2.ResourceBinding{
		leavingOak("a", waits, workv1alpha2.ReasonTaintUntolerated, "elm"),
		leavingOak("b", waits, "", "elm"),
		leavingOak("c", "", workv1alpha2.ReasonTaintUntolerated, "elm", "oak"),
		leavingOak("d", "to leave oak because of taint disk=old:NoExecute, waits: JobMayRun (x)", ""),
	}
	waiting := func(name, reason, message string) waitingObject {
		return waitingObject{Cluster: "oak", Namespace: "shop", Kind: "ConfigMap", Name: name, Taint: "disk=old:NoExecute", Reason: reason, Message: message}
	}
	stored := storedFailover{state: failover.State{Known: true, Paused: true, By: "alice", Why: "maintenance", At: start.Add(time.Hour), CountFrom: start}}
	want := &failoverStatus{
		Paused: true, By: "alice", Why: "maintenance", At: &after, TaintsCountFrom: &metav1.Time{Time: start},
		Taints: []evictingTaint{
			{Cluster: "elm", Key: "disk", Value: "old", Since: &before, Unconfirmed: true},
			{Cluster: "oak", Key: "disk", Value: "old", Since: &after},
			{Cluster: "pine", Key: "disk", Value: "old", Unconfirmed: true},
		},
		Leaving: []leavingCluster{{Cluster: "elm", Objects: 2}, {Cluster: "oak", Objects: 1}},
		Waiting: []waitingObject{
			waiting("a", "RateLimited", "evictions begin one after the other"), waiting("b", "RateLimited", "evictions begin one after the other"), waiting("d", "JobMayRun", "x"),
		},
	}
	status := stored.status(clusters, bindings)
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	empty := &failoverStatus{Taints: []evictingTaint{}, Leaving: []leavingCluster{}, Waiting: []waitingObject{}}
	for name, tc := range map[string]struct {
		status *failoverStatus
		wide   bool
		want   string
	}{
		"Paused": {status, false, `Evictions are paused (by alice, 60m ago: maintenance).
"orrery failover resume" ends the pause.

CLUSTER   TAINT                SINCE   CONFIRMED
elm       disk=old:NoExecute   3h      no
oak       disk=old:NoExecute   60m     yes
pine      disk=old:NoExecute   -       not yet
Taints that are not confirmed were added before 2026-01-02T03:04:05Z, the first start with failover, and evict nothing.
"orrery failover resume" confirms them.

LEAVING   OBJECTS
elm       2
oak       1

WAITS IN   OBJECTS   TAINT                REASON        MESSAGE
oak        2         disk=old:NoExecute   RateLimited   evictions begin one after the other
oak        1         disk=old:NoExecute   JobMayRun     x
`},
		"Wide": {&failoverStatus{Waiting: status.Waiting[1:2]}, true, `Evictions are not paused by a user.

No cluster has a taint with the effect NoExecute.

No object leaves a cluster because of a taint.

WAITS IN   NAMESPACE   KIND        NAME   TAINT                REASON        MESSAGE
oak        shop        ConfigMap   b      disk=old:NoExecute   RateLimited   evictions begin one after the other
`},
		"Resumed": {&failoverStatus{By: "bob", At: &after}, false, `Evictions are not paused by a user (resumed by bob, 60m ago).

No cluster has a taint with the effect NoExecute.

No object leaves a cluster because of a taint.

No object says in Scheduled that it waits to leave a cluster.
`},
		"Invalid": {(&storedFailover{problem: errors.New("key paused: maybe")}).status(nil, nil), false, `Evictions are paused, because ConfigMap orrery-cluster/failover is invalid: key paused: maybe.
"orrery failover resume" writes a valid one.

No cluster has a taint with the effect NoExecute.

No object leaves a cluster because of a taint.

No object says in Scheduled that it waits to leave a cluster.
`},
		"InvalidWithTaints": {(&storedFailover{problem: errors.New("key taintsCountFrom: 0")}).status(clusters, nil), false, `Evictions are paused, because ConfigMap orrery-cluster/failover is invalid: key taintsCountFrom: 0.
"orrery failover resume" writes a valid one.

CLUSTER   TAINT                SINCE   CONFIRMED
elm       disk=old:NoExecute   3h      no
oak       disk=old:NoExecute   60m     no
pine      disk=old:NoExecute   -       not yet
Which taints were confirmed is unknown, because the ConfigMap is invalid. They evict nothing.
"orrery failover resume" confirms all of them.

No object leaves a cluster because of a taint.

No object says in Scheduled that it waits to leave a cluster.
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := tc.status.print(&out, tc.wide, now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(empty, (&storedFailover{}).status(nil, nil)); diff != "" {
		t.Errorf("an empty hub (-want +got):\n%s", diff)
	}
}

// TestFailoverOnAHub runs the commands against a hub's API server, in the order in which a user
// would.
func TestFailoverOnAHub(t *testing.T) {
	server := testenv.StartServer(t)
	if err := testenv.InstallCRDs(server.Config()); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.Config(), client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, out, errOut string) {
		t.Helper()
		var o, e bytes.Buffer
		code = Main(append(append([]string{"failover"}, args...), "--kubeconfig="+kubeconfig), strings.NewReader(""), &o, &e)
		return code, o.String(), e.String()
	}
	says := func(want string, args ...string) {
		t.Helper()
		if code, out, errOut := run(args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("failover %q: code %d, %q, %q; want %q", args, code, out, errOut, want)
		}
	}
	for _, command := range []string{"status", "pause", "resume"} {
		code, out, errOut := run(command)
		if want := "ConfigMap orrery-cluster/failover: the hub does not have it; a running server of this version creates it"; code != 1 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s before the first start: code %d, %q, %q", command, code, out, errOut)
		}
	}

	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}); err != nil {
		t.Fatal(err)
	}
	start := time.Now().Truncate(time.Second)
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: failover.ConfigMapName}, Data: failover.State{Known: true, CountFrom: start}.Data(),
	}
	config.Data["note"] = "of somebody else"
	if err := c.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for name, added := range map[string]time.Time{"oak": start.Add(-time.Hour), "pine": start.Add(time.Hour)} {
		cluster := failing(name, &metav1.Time{Time: added})
		cluster.Spec.SyncMode, cluster.Spec.APIEndpoint = clusterv1alpha1.Push, "https://127.0.0.1:1"
		cluster.Spec.SecretRef = clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
		if err := c.Create(t.Context(), &cluster); err != nil {
			t.Fatal(err)
		}
	}
	state := func() failover.State {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
			t.Fatal(err)
		}
		if config.Data["note"] != "of somebody else" {
			t.Errorf("another key was changed: %v", config.Data)
		}
		state, err := failover.ParseState(config.Data)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}

	says("evictions are paused; objects that leave", "pause", "--reason", "maintenance")
	paused := state()
	if !paused.Paused || paused.By == "" || paused.Why != "maintenance" || paused.At.Before(start) || !paused.CountFrom.Equal(start) {
		t.Errorf("paused: %+v", paused)
	}
	says("evictions are paused already (by "+paused.By+", ", "pause")
	if again := state(); again.Why != "maintenance" || !again.At.Equal(paused.At) {
		t.Errorf("paused twice: %+v", again)
	}
	says("evictions are paused; ", "pause", "--reason", "it takes longer")
	_, out, _ := run("status", "-o", "json")
	var status failoverStatus
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !status.Paused || status.By != paused.By || status.Why != "it takes longer" || len(status.Taints) != 2 || !status.Taints[0].Unconfirmed || status.Taints[1].Unconfirmed {
		t.Errorf("status: %s", out)
	}

	says("evictions are resumed\nconfirmed: taint disk=old:NoExecute of cluster oak, added at "+start.Add(-time.Hour).UTC().Format(time.RFC3339)+"\n", "resume")
	if resumed := state(); resumed.Paused || !resumed.CountFrom.IsZero() || resumed.By != paused.By || resumed.Why != "" {
		t.Errorf("resumed: %+v", resumed)
	}
	says("nothing to resume", "resume")
	says("Evictions are not paused by a user (resumed by ", "status")

	config.Data["paused"] = "perhaps"
	if err := c.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	says("Evictions are paused, because ConfigMap orrery-cluster/failover is invalid: ", "status")
	says("evictions are resumed\n", "resume", "--reason", "repaired")
	if repaired := state(); repaired.Paused || repaired.Why != "repaired" {
		t.Errorf("repaired: %+v", repaired)
	}
}

// TestCallerWithoutReview: if the hub does not say who the caller is, it is the name of the user in
// the kubeconfig.
func TestCallerWithoutReview(t *testing.T) {
	path := alone(t, "http://127.0.0.1:1")
	for name, f := range map[string]*hubFlags{"HubByName": {}, "Context": {context: "hub"}, "File": {kubeconfig: path}} {
		c, err := f.failover(t.Context(), os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.caller(t.Context(), c); got != "me" {
			t.Errorf("%s: the caller is %q, want me", name, got)
		}
	}
}
