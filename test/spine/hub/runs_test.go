package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// TestWorkRunsOnce kills the server with SIGKILL while it creates Jobs. Each Job ends in its
// cluster and is deleted there, either after the hub knows that it ended or while no server runs.
// No Job is created before its binding records the start, and none is created twice.
func TestWorkRunsOnce(t *testing.T) {
	testenv.Rotate(t, 3, "TestKills", "TestDeletionsUnderKills", "TestWorkRunsOnce")
	w := spine.Start(t, "runs-once")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "jobs", "{apiVersion: batch/v1, kind: Job}", spine.In("oak"))+
		spine.Policy(w.Namespace, "maps", "{apiVersion: v1, kind: ConfigMap}", spine.In("oak"))+spine.ConfigMap(w.Namespace, "first", "one"))
	w.Applied("ConfigMap", "first") // so that the namespace exists
	cfg, err := w.Hub.Config()
	w.Must(err)
	admin, err := testenv.NewAPI(cfg) // usable across restarts of the hub
	w.Must(err)
	phase := func(ctx context.Context, name string) (string, error) {
		b, err := admin.Find(ctx, "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, name+"-job")
		if err != nil {
			return "", err
		}
		runs, _, err := unstructured.NestedSlice(b.Object, "status", "runs")
		if len(runs) != 1 || err != nil {
			return "", errors.Join(err, fmt.Errorf("it says %v", runs))
		}
		run, _ := runs[0].(map[string]any)
		said, _, err := unstructured.NestedString(run, "phase")
		return said, err
	}
	kills := testenv.Count(t, "KILLS", 2, 50)
	var names []string
	for i := range 2 * kills {
		name, kill := fmt.Sprintf("job-%d", i), i%2 == 0
		names = append(names, name)
		var once sync.Once
		asked := make(chan error, 1)
		w.Oak.OnWriteIn(w.Namespace, func(r testenv.Write) {
			if r.Resource != "jobs" || r.Name != name || r.Verb != "apply" || r.DryRun {
				return
			}
			once.Do(func() {
				var said string
				// The hub may not answer for a moment. The write waits until it does.
				err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, spine.Patience, true, func(ctx context.Context) (bool, error) {
					var err error
					said, err = phase(ctx, name)
					if spine.Unanswered(err) {
						return false, nil
					}
					return true, err
				})
				if err == nil && said != "Began" {
					err = fmt.Errorf("the binding says %q", said)
				}
				if kill {
					w.Hub.Kill()
				}
				asked <- err
			})
		})
		w.Eventually(name+" is applied", func() error {
			if kill && !w.Hub.Running() { // the hub has the template, as it began to create the Job
				return nil
			}
			return spine.Try(t.Context(), admin, `
---
apiVersion: batch/v1
kind: Job
metadata: {name: `+name+`, namespace: `+w.Namespace+`}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: x, image: "example.org/job:1"}]}}}
`)
		})
		if err := <-asked; err != nil {
			t.Errorf("%s is created before it begins: %v", name, err)
		}
		w.Eventually(name+" ends in oak", func() error { return ends(t.Context(), w.Oak, w.Namespace, name) })
		if !kill {
			w.Eventually(name+" is known to have ended", func() error {
				if said, err := phase(t.Context(), name); said != "Complete" {
					return fmt.Errorf("it is %q: %w", said, err)
				}
				return nil
			})
		}
		w.Oak.Remove(t, "batch/v1", "Job", w.Namespace, name)
		if kill {
			w.Restart()
		}
		w.Eventually(name+" is known to have ended", func() error {
			if said, err := phase(t.Context(), name); said != "Complete" {
				return fmt.Errorf("it is %q: %w", said, err)
			}
			return nil
		})
	}
	w.Hub.Kill()
	w.Restart()
	w.Ready(w.Oak)
	for _, name := range names {
		w.Applied("Job", name)
	}
	w.CaughtUp(time.Second, w.Oak)
	made := map[string]int{}
	for _, r := range w.Writes(w.Oak) {
		if r.Resource == "jobs" && r.Verb == "apply" && r.Code == 201 {
			made[r.Name]++
		}
	}
	for _, name := range names {
		if o := w.Lookup(w.Oak.API, "batch/v1", "Job", w.Namespace, name); o != nil {
			t.Errorf("%s is there again: %v", name, o.GetUID())
		}
		if made[name] > 1 {
			t.Errorf("%s was created %d times", name, made[name])
		}
	}
}

// ends completes a Job in a member.
func ends(ctx context.Context, m *testenv.Member, namespace, name string) error {
	o, err := m.Find(ctx, "batch/v1", "Job", namespace, name)
	if err != nil {
		return err
	}
	if hasEnded(o) { // the answer to an earlier attempt was lost
		return nil
	}
	now := time.Now().UTC().Format(time.RFC3339)
	condition := func(kind string) any {
		return map[string]any{"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now}
	}
	o.Object["status"] = map[string]any{
		"succeeded": int64(1), "startTime": now, "completionTime": now, "conditions": []any{condition("SuccessCriteriaMet"), condition("Complete")},
	}
	return m.Status().Update(ctx, o)
}
