package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

const (
	// oakThenPine places an object in oak and, if it may not stay there, in pine.
	oakThenPine = "clusterAffinities: [{affinityName: first, clusterNames: [oak]}, {affinityName: second, clusterNames: [pine]}]"
	// directly is the part of a policy with which old copies do not wait for their replacements.
	directly = "failover: {cluster: {purgeMode: Directly}}"
)

// tolerating returns the part of a placement that tolerates taints with the effect NoExecute. A
// key tolerates without an end, KEY:SECONDS for a time.
func tolerating(keys ...string) string {
	list := make([]string, 0, len(keys))
	for _, k := range keys {
		key, seconds, ends := strings.Cut(k, ":")
		toleration := "{key: " + key + ", operator: Exists, effect: NoExecute"
		if ends {
			toleration += ", tolerationSeconds: " + seconds
		}
		list = append(list, toleration+"}")
	}
	return ", clusterTolerations: [" + strings.Join(list, ", ") + "]"
}

// noExecute returns a taint for the function taint. added is the time at which it was added; "":
// the hub sets the time.
func noExecute(key, added string) string {
	if added != "" {
		added = fmt.Sprintf(`,"timeAdded":%q`, added)
	}
	return fmt.Sprintf(`{"key":%q,"value":"yes","effect":"NoExecute"%s}`, key, added)
}

// taint gives a cluster these taints and no others.
func taint(w *spine.World, m *testenv.Member, taints ...string) {
	w.Helper()
	w.Hub.MergePatch(w, "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name, `{"spec":{"taints":[`+strings.Join(taints, ",")+`]}}`)
}

// hasTaint waits until a cluster has a taint with this key and the time at which it was added, or
// until it has none.
func hasTaint(w *spine.World, m *testenv.Member, key string, want bool) {
	w.Helper()
	w.Eventually(fmt.Sprintf("%s has the taint %s: %t", m.Name, key, want), func() error {
		c, err := w.Hub.Find(w.Context(), "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name)
		if err != nil {
			return err
		}
		taints, _, _ := unstructured.NestedSlice(c.Object, "spec", "taints")
		has := slices.ContainsFunc(taints, func(t any) bool {
			one, ok := t.(map[string]any)
			return ok && one["key"] == key && one["timeAdded"] != nil
		})
		if has != want {
			return fmt.Errorf("its taints are %v", taints)
		}
		return nil
	})
}

// failoverState waits until the hub has stored the state of failover, and returns it.
func failoverState(w *spine.World) (state map[string]string) {
	w.Helper()
	w.Eventually("the hub has stored the state of failover", func() error {
		o, err := w.Hub.Find(w.Context(), "v1", "ConfigMap", clusterv1alpha1.SecretNamespace, "failover")
		if err != nil {
			return err
		}
		state, _, err = unstructured.NestedStringMap(o.Object, "data")
		if err == nil && len(state) == 0 {
			err = errors.New("it has no data")
		}
		return err
	})
	return state
}

// setFailover changes fields of the state of failover.
func setFailover(w *spine.World, fields map[string]string) {
	w.Helper()
	patch, err := json.Marshal(map[string]any{"data": fields})
	w.Must(err)
	w.Hub.MergePatch(w, "v1", "ConfigMap", clusterv1alpha1.SecretNamespace, "failover", string(patch))
}

// bindingOf returns the binding of a template.
func bindingOf(w *spine.World, kind, name string) (*unstructured.Unstructured, error) {
	return w.Hub.Find(w.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, name+"-"+strings.ToLower(kind))
}

// scheduled waits until the message of the condition Scheduled of a template contains a text, or
// until it does not.
func scheduled(w *spine.World, kind, name, part string, want bool) {
	w.Helper()
	w.Eventually(fmt.Sprintf("the decision on %s %s says %q: %t", kind, name, part, want), func() error {
		b, err := bindingOf(w, kind, name)
		if err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(b.Object, "status", "conditions")
		for _, c := range list {
			if c, ok := c.(map[string]any); ok && c["type"] == workv1alpha2.ConditionScheduled {
				if message := fmt.Sprint(c["message"]); strings.Contains(message, part) != want {
					return errors.New(message)
				}
				return nil
			}
		}
		return errors.New("it has no such condition")
	})
}

// delayed waits until the decision on a template says why it does not leave oak, which has a taint
// with this key.
func delayed(w *spine.World, kind, name, key, reason string) {
	w.Helper()
	scheduled(w, kind, name, "to leave oak because of taint "+key+"=yes:NoExecute, waits: "+reason+" (", true)
}

// evicting waits until the binding of a Deployment with two replicas has an eviction task for oak,
// and compares the task. key is that of the taint that evicts the Deployment.
func evicting(w *spine.World, name, key string) {
	w.Helper()
	var task map[string]any
	w.Eventually(name+" is being evicted", func() error {
		b, err := bindingOf(w, "Deployment", name)
		if err != nil {
			return err
		}
		tasks, _, err := unstructured.NestedSlice(b.Object, "spec", "gracefulEvictionTasks")
		if len(tasks) != 1 || err != nil {
			return errors.Join(err, fmt.Errorf("the tasks are %v", tasks))
		}
		task, _ = tasks[0].(map[string]any)
		return nil
	})
	message := fmt.Sprint(task["message"])
	if !strings.Contains(message, key+"=yes:NoExecute") || task["creationTimestamp"] == nil {
		w.Errorf("%s: the task %v lacks its cause or its time", name, task)
	}
	delete(task, "message")
	delete(task, "creationTimestamp")
	want := map[string]any{"fromCluster": "oak", "replicas": int64(2), "reason": workv1alpha2.ReasonTaintUntolerated, "purgeMode": "Gracefully"}
	if diff := cmp.Diff(want, task); diff != "" {
		w.Errorf("%s: the eviction task (-want +got):\n%s", name, diff)
	}
}

// evicted waits until a template is placed in pine alone, and the hub has nothing left to do for
// its eviction.
func evicted(w *spine.World, kind, name string) {
	w.Helper()
	w.Moved("ResourceBinding", name+"-"+strings.ToLower(kind), "pine")
	w.Eventually(kind+" "+name+" has left oak", func() error {
		b, err := bindingOf(w, kind, name)
		if err != nil {
			return err
		}
		if tasks, _, err := unstructured.NestedSlice(b.Object, "spec", "gracefulEvictionTasks"); len(tasks) > 0 || err != nil {
			return errors.Join(err, fmt.Errorf("the tasks are %v", tasks))
		}
		return nil
	})
	w.Applied(kind, name)
}

// TestEvictions taints oak, pauses failover and loses oak, while workloads with several policies
// are there. The workloads that leave oak show that the hub has acted on the taint, so the others
// stay by their policies.
func TestEvictions(t *testing.T) {
	const now, early, late, unreachable = "example.org/now", "example.org/early", "example.org/late", clusterv1alpha1.TaintUnreachable
	w := spine.Start(t, "evictions")
	state := failoverState(w)
	t.Cleanup(func() {
		taint(w, w.Oak)
		setFailover(w, state)
	})
	for name, p := range map[string]struct {
		placement string
		more      []string // more fields of the policy's spec
	}{
		"graceful": {placement: oakThenPine},
		"direct":   {placement: oakThenPine, more: []string{directly}},
		"never":    {placement: oakThenPine, more: []string{"failover: {cluster: {purgeMode: Never}}", "propagateDeps: true"}},
		"alone":    {placement: spine.In("oak")},
		"tolerant": {placement: oakThenPine + ", " + spine.Tolerating},
		"early":    {placement: oakThenPine + tolerating(now, late)},
		"late":     {placement: oakThenPine + tolerating(now, early)},
		"lost":     {placement: oakThenPine + tolerating(now, early, late, unreachable+":1")},
		"patient":  {placement: oakThenPine + tolerating(now, early, late)},
	} {
		app := spine.Deployment(w.Namespace, name, 2)
		if name == "never" {
			app = strings.Replace(app, "{name: web, image", "{name: web, envFrom: [{configMapRef: {name: never}}], image", 1)
		}
		w.Hub.Apply(t, spine.Policy(w.Namespace, name, "{apiVersion: apps/v1, kind: Deployment, name: "+name+"}", p.placement, p.more...)+app)
	}
	// The pod of the Job is never scheduled, so the Job does not end.
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "never", "one")+
		spine.Policy(w.Namespace, "job", "{apiVersion: batch/v1, kind: Job}", oakThenPine+tolerating(unreachable+":1"), directly)+`---
apiVersion: batch/v1
kind: Job
metadata: {name: job, namespace: `+w.Namespace+`}
spec: {template: {spec: {restartPolicy: Never, schedulingGates: [{name: example.org/closed}], containers: [{name: x, image: "example.org/job:1"}]}}}
`)
	for _, name := range []string{"graceful", "direct", "never", "alone", "tolerant", "early", "late", "lost", "patient"} {
		w.Available(w.Oak, name, 2)
		w.Applied("Deployment", name)
	}
	w.Placed(w.Oak, "v1", "ConfigMap", "never")
	w.Applied("ConfigMap", "never")
	w.Eventually("the Job runs in oak", func() error {
		job, err := w.Oak.Find(t.Context(), "batch/v1", "Job", w.Namespace, "job")
		if err != nil {
			return err
		}
		if n, _, _ := unstructured.NestedInt64(job.Object, "status", "active"); n != 1 {
			return fmt.Errorf("its status is %v", job.Object["status"])
		}
		return nil
	})
	w.Applied("Job", "job")

	before, marks := w.Content(w.Oak), map[*testenv.Member]int{w.Oak: w.Oak.Mark(), w.Pine: w.Pine.Mark()}
	stays := func(objects ...string) {
		w.Helper()
		same := spine.Content{}
		for _, o := range objects {
			same[o] = before[o]
		}
		w.Stays(w.Oak, same)
	}
	part := func(name string, do func(t *testing.T)) {
		t.Helper()
		whole := w.T
		if !t.Run(name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			do(t)
		}) {
			t.FailNow() // the next part begins with the result of this one
		}
	}
	w.Guarded("graceful", 2)
	open := w.Closed(w.Pine) // no replacement becomes available
	taint(w, w.Oak, noExecute(now, ""))

	part("Directly", func(*testing.T) {
		w.Gone(w.Oak, "apps/v1", "Deployment", "direct")
		w.Placed(w.Pine, "apps/v1", "Deployment", "direct")
		evicted(w, "Deployment", "direct")
	})

	part("Gracefully", func(t *testing.T) {
		w.Placed(w.Pine, "apps/v1", "Deployment", "graceful")
		evicting(w, "graceful", now)
		w.CaughtUp(0)
		stays("Deployment/graceful")
		open()
		w.Gone(w.Oak, "apps/v1", "Deployment", "graceful")
		w.Available(w.Pine, "graceful", 2)
		evicted(w, "Deployment", "graceful")
		// The guard of the Deployment has compared the available replicas with each write.
		for m, want := range map[*testenv.Member][]string{w.Pine: {"apply"}, w.Oak: {"delete"}} {
			if got := slices.Compact(about(w.WritesSince(m, marks[m]), "deployments", "graceful")); !slices.Equal(got, want) {
				t.Errorf("%s was written %v, want %v", m.Name, got, want)
			}
		}
	})

	part("Never", func(*testing.T) {
		w.Available(w.Pine, "never", 2)
		w.Placed(w.Pine, "v1", "ConfigMap", "never")
		unmarked(w, w.Oak, "apps/v1", "Deployment", "never")
		unmarked(w, w.Oak, "v1", "ConfigMap", "never")
		evicted(w, "Deployment", "never")
		evicted(w, "ConfigMap", "never")
		w.CaughtUp(0)
		stays("Deployment/never", "ConfigMap/never")
	})

	part("NoReplacement", func(*testing.T) {
		delayed(w, "Deployment", "alone", now, "NoReplacement")
		w.Moved("ResourceBinding", "alone-deployment", "oak")
		stays("Deployment/alone")
	})

	part("Tolerated", func(*testing.T) {
		w.Moved("ResourceBinding", "tolerant-deployment", "oak")
		absent(w, w.Pine, "apps/v1", "Deployment", "tolerant")
		stays("Deployment/tolerant")
	})

	part("AJobRunsOnce", func(*testing.T) {
		delayed(w, "Job", "job", now, "JobMayRun")
		w.Moved("ResourceBinding", "job-job", "oak")
		absent(w, w.Pine, "batch/v1", "Job", "job")
		stays("Job/job")
	})

	part("NothingComesBack", func(t *testing.T) {
		taint(w, w.Oak)
		scheduled(w, "Deployment", "alone", "to leave oak", false)
		scheduled(w, "Job", "job", "to leave oak", false)
		w.CaughtUp(0)
		for _, name := range []string{"direct", "graceful", "never"} {
			evicted(w, "Deployment", name)
		}
		for _, r := range w.WritesSince(w.Oak, marks[w.Oak]) {
			if r.Code == http.StatusCreated {
				t.Errorf("oak: %s", r)
			}
		}
	})

	// The taint is older than the first start of the hub with failover.
	const old = "2020-01-01T00:00:00Z"
	part("Unconfirmed", func(*testing.T) {
		taint(w, w.Oak, noExecute(early, old))
		delayed(w, "Deployment", "early", early, "Unconfirmed")
	})

	part("Paused", func(*testing.T) {
		setFailover(w, map[string]string{"paused": "true", "by": "alice", "why": "a test", "at": time.Now().UTC().Format(time.RFC3339)})
		delayed(w, "Deployment", "early", early, "Paused") // the hub has seen the pause
		taint(w, w.Oak, noExecute(early, old), noExecute(late, ""))
		delayed(w, "Deployment", "late", late, "Paused")
		hasTaint(w, w.Oak, late, true)
		w.CaughtUp(0)
		stays("Deployment/early", "Deployment/late")

		setFailover(w, map[string]string{"paused": "false"})
		w.Gone(w.Oak, "apps/v1", "Deployment", "late")
		w.Available(w.Pine, "late", 2)
		evicted(w, "Deployment", "late")
		delayed(w, "Deployment", "early", early, "Unconfirmed")
		w.Moved("ResourceBinding", "early-deployment", "oak")
		stays("Deployment/early")
	})

	part("Confirmed", func(*testing.T) {
		setFailover(w, map[string]string{"taintsCountFrom": ""})
		w.Gone(w.Oak, "apps/v1", "Deployment", "early")
		w.Available(w.Pine, "early", 2)
		evicted(w, "Deployment", "early")
		taint(w, w.Oak)
	})

	part("LostCluster", func(t *testing.T) {
		policy := testenv.UniqueName("evictions")
		t.Cleanup(func() { w.Hub.Remove(t, policyAPI, "ClusterTaintPolicy", "", policy) })
		w.Hub.Apply(t, fmt.Sprintf(`---
apiVersion: %s
kind: ClusterTaintPolicy
metadata: {name: %s}
spec:
  targetClusters: {clusterNames: [oak]}
  addOnConditions: [{conditionType: Ready, operator: NotIn, statusValues: ["True"]}]
  removeOnConditions: [{conditionType: Ready, operator: In, statusValues: ["True"]}]
  taints: [{key: %s, value: "yes", effect: NoExecute}]
`, policyAPI, policy, unreachable))
		w.Oak.Fail(testenv.Cut)
		w.Lost(w.Oak)
		hasTaint(w, w.Oak, unreachable, true)
		w.Available(w.Pine, "lost", 2)
		evicting(w, "lost", unreachable)
		w.Moved("ResourceBinding", "lost-deployment", "pine")
		delayed(w, "Job", "job", unreachable, "JobMayRun")
		w.CaughtUp(0, w.Pine, w.Birch)
		// Without a toleration of their own, objects tolerate this taint for five minutes.
		for _, name := range []string{"patient", "alone", "tolerant"} {
			w.Moved("ResourceBinding", name+"-deployment", "oak")
			absent(w, w.Pine, "apps/v1", "Deployment", name)
		}
		absent(w, w.Pine, "batch/v1", "Job", "job")
		w.Available(w.Oak, "lost", 2) // oak runs, and only the hub does not reach it

		mark := w.Oak.Mark()
		w.Oak.Heal()
		w.Ready(w.Oak)
		hasTaint(w, w.Oak, unreachable, false)
		w.Gone(w.Oak, "apps/v1", "Deployment", "lost")
		evicted(w, "Deployment", "lost")
		scheduled(w, "Job", "job", "to leave oak", false)
		w.CaughtUp(0)
		for _, name := range []string{"direct", "graceful", "never", "early", "late", "lost"} {
			evicted(w, "Deployment", name)
		}
		w.Moved("ResourceBinding", "job-job", "oak")
		stays("Deployment/never", "ConfigMap/never", "Deployment/alone", "Deployment/tolerant", "Deployment/patient", "Job/job")
		for _, r := range w.WritesSince(w.Oak, mark) {
			if r.Code == http.StatusCreated || strings.HasPrefix(r.Verb, "delete") && r.Name != "lost" {
				t.Errorf("oak: %s", r)
			}
		}
	})
}
