package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/testenv"
)

// created records the Jobs that were created in a cluster, by name and in order.
type created struct {
	mu   sync.Mutex
	uids map[string][]types.UID
}

// creations records the Jobs that are created in a namespace of a cluster from now on.
func (f *fleet) creations(cfg *rest.Config, ns string) *created {
	f.t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	f.must(err)
	all, err := c.BatchV1().Jobs(ns).List(f.t.Context(), metav1.ListOptions{})
	f.must(err)
	w, err := c.BatchV1().Jobs(ns).Watch(f.t.Context(), metav1.ListOptions{ResourceVersion: all.ResourceVersion})
	f.must(err)
	out := &created{uids: map[string][]types.UID{}}
	go func() {
		for e := range w.ResultChan() {
			if j, ok := e.Object.(*batchv1.Job); ok && e.Type == watch.Added {
				out.mu.Lock()
				out.uids[j.Name] = append(out.uids[j.Name], j.UID)
				out.mu.Unlock()
			}
		}
	}()
	f.t.Cleanup(w.Stop)
	return out
}

func (c *created) of(name string) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.uids[name])
}

// wereCreated waits until the watch has reported exactly these Jobs of a name.
func (f *fleet) wereCreated(c *created, name string, uids ...types.UID) {
	f.t.Helper()
	f.eventually("what was created is seen", func() error {
		if diff := cmp.Diff(uids, c.of(name)); diff != "" {
			return fmt.Errorf("created (-want +got):\n%s", diff)
		}
		return nil
	})
}

// job creates a Job and its binding on the hub. change, unless it is nil, edits the binding
// first.
func (f *fleet) job(ns, name string, change func(*workv1alpha2.ResourceBinding), clusters ...string) *workv1alpha2.ResourceBinding {
	f.t.Helper()
	j := newJob(ns, name)
	f.must(f.hub.Create(f.t.Context(), j))
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name + "-job", Finalizers: []string{workv1alpha2.Finalizer}},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: j.UID, Generation: j.Generation},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
		},
	}
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c})
	}
	if change != nil {
		change(b)
	}
	status := *b.Status.DeepCopy()
	f.must(f.hub.Create(f.t.Context(), b))
	if len(status.Runs) > 0 {
		b.Status = status
		for i := range b.Status.Runs {
			b.Status.Runs[i].TemplateUID = j.UID
		}
		f.must(f.hub.Status().Update(f.t.Context(), b))
	}
	return b
}

func newJob(ns, name string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "run", Image: "run"}},
		}}},
	}
}

// completes waits for a Job in a member, and sets its status to complete.
func (f *fleet) completes(c client.Client, ns, name string) {
	f.t.Helper()
	f.eventually(name+" completes", func() error {
		j := &batchv1.Job{}
		if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: name}, j); err != nil {
			return err
		}
		now := metav1.Now()
		j.Status = batchv1.JobStatus{Succeeded: 1, StartTime: &now, CompletionTime: &now}
		for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		return c.Status().Update(f.t.Context(), j)
	})
}

// run waits until the mark of a binding in a cluster satisfies is, and returns the mark.
func (f *fleet) run(b *workv1alpha2.ResourceBinding, cluster string, is func(workv1alpha2.Run) bool) (found workv1alpha2.Run) {
	f.t.Helper()
	f.eventually("the binding tells of the work in "+cluster, func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		r := binding.RunIn(b.Status.Runs, b.Spec.Resource.UID, cluster)
		if r == nil || !is(*r) {
			return fmt.Errorf("it says %+v, %+v", b.Status.Runs, b.Status.Conditions)
		}
		found = *r
		return nil
	})
	return found
}

func inPhase(p workv1alpha2.RunPhase) func(workv1alpha2.Run) bool {
	return func(r workv1alpha2.Run) bool {
		return r.Phase == p && (r.CopyUID != "" || p == workv1alpha2.RunSkipped || p == workv1alpha2.RunRefused)
	}
}

// rests waits until this process has found that nothing is left to run in a cluster.
func (f *fleet) rests(b *workv1alpha2.ResourceBinding, cluster string) {
	f.t.Helper()
	f.eventually("nothing is run in "+cluster, func() error {
		if r, ok := f.applier.Result(b.UID, cluster); !ok || !r.Applied || r.Stale || r.Message == "" {
			return fmt.Errorf("the result is %+v", r)
		}
		return nil
	})
}

func (f *fleet) noJob(c client.Client, ns, name string) {
	f.t.Helper()
	if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: name}, &batchv1.Job{}); !apierrors.IsNotFound(err) {
		f.t.Errorf("Job %s is there: %v", name, err)
	}
}

func (f *fleet) deleteJob(c client.Client, ns, name string) {
	f.t.Helper()
	f.must(c.Delete(f.t.Context(), newJob(ns, name), client.PropagationPolicy(metav1.DeletePropagationBackground)))
}

// restart stops the hub and starts it again; if lost, without its store and records.
func (f *fleet) restart(lost bool) {
	f.t.Helper()
	f.stop()
	if lost {
		f.dir, f.recorded = f.t.TempDir(), f.t.TempDir()
	}
	f.start()
	f.eventually("oak is reachable", func() error {
		if m, ok := f.registry.Member("oak"); !ok || !m.Reachable() {
			return errors.New("it is not")
		}
		return nil
	})
}

func (f *fleet) place(b *workv1alpha2.ResourceBinding, clusters ...string) {
	f.t.Helper()
	f.must(f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b))
	before := client.MergeFrom(b.DeepCopy())
	b.Spec.Clusters = nil
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c})
	}
	f.must(f.hub.Patch(f.t.Context(), b, before))
}

// askAgain requests another run of the work of a template, and returns the request.
func (f *fleet) askAgain(b *workv1alpha2.ResourceBinding, id string) string {
	f.t.Helper()
	j := newJob(b.Namespace, b.Spec.Resource.Name)
	request := string(b.UID) + "/" + id
	f.must(f.hub.Patch(f.t.Context(), j, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, workv1alpha2.RerunAnnotation, request))))
	return request
}

// TestWork runs Jobs in two clusters through their end, deletion, move and another run.
func TestWork(t *testing.T) {
	f := newFleet(t)
	f.start()
	elmServer := testenv.StartServer(t)
	f.join("oak", testenv.Kubeconfig(1))
	f.join("elm", elmServer.Kubeconfig())
	oak, elm := f.client(testenv.Config(1)), f.client(elmServer.Config())
	f.finishedWorkIsNotRunAgain(oak, elm)
	f.unfinishedWorkGoesOn(oak)
	f.workThatLostItsMark(oak)
	f.workThatAnotherProcessBegan(oak)
	f.refusedWork(oak)
	f.adoptedWork(oak)
	for _, name := range []string{"oak", "elm"} {
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.must(f.hub.Delete(t.Context(), c))
		f.eventually(name+" has left", func() error {
			if err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(c), c); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it has not: %w", err)
			}
			return nil
		})
	}
}

// Work that is Complete in a cluster does not run there again, even if its copy is deleted or
// the hub loses its data. It does not run in a cluster that is added either. A request runs it
// again in both.
func (f *fleet) finishedWorkIsNotRunAgain(oak, elm client.Client) {
	ns := testenv.Namespace(f.t, testenv.Config(0))
	first := f.job(ns, "first", nil, "oak")
	f.run(first, "oak", inPhase(workv1alpha2.RunBegan)) // creates the namespace
	inOak := f.creations(testenv.Config(1), ns)

	b := f.job(ns, "once", nil, "oak")
	f.completes(oak, ns, "once")
	ran := f.run(b, "oak", inPhase(workv1alpha2.RunComplete))
	f.deleteJob(oak, ns, "once")
	f.rests(b, "oak")
	f.condition(b, workv1alpha2.ConditionHealthy, metav1.ConditionTrue, workv1alpha2.ReasonHealthy)
	f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
	f.eventually("the Job on the hub is Complete", func() error {
		j := &batchv1.Job{}
		f.must(f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: "once"}, j))
		if j.Status.CompletionTime == nil || j.Status.Succeeded != 1 {
			return fmt.Errorf("it is %+v", j.Status)
		}
		return nil
	})

	f.restart(true)
	f.rests(b, "oak")
	f.place(b, "oak", "elm")
	f.run(b, "elm", inPhase(workv1alpha2.RunSkipped))
	f.rests(b, "elm")
	f.noJob(elm, ns, "once")
	f.wereCreated(inOak, "once", ran.CopyUID)

	request := f.askAgain(b, "1")
	again := f.run(b, "oak", func(r workv1alpha2.Run) bool { return r.Rerun == request && inPhase(workv1alpha2.RunBegan)(r) })
	f.run(b, "elm", func(r workv1alpha2.Run) bool { return r.Rerun == request && inPhase(workv1alpha2.RunBegan)(r) })
	f.completes(oak, ns, "once")
	f.completes(elm, ns, "once")
	f.run(b, "oak", inPhase(workv1alpha2.RunComplete))
	f.run(b, "elm", inPhase(workv1alpha2.RunComplete))

	request = f.askAgain(b, "2") // while the copies exist
	third := f.run(b, "oak", func(r workv1alpha2.Run) bool { return r.Rerun == request && inPhase(workv1alpha2.RunBegan)(r) })
	f.completes(oak, ns, "once")
	f.run(b, "oak", inPhase(workv1alpha2.RunComplete))
	made := []types.UID{ran.CopyUID, again.CopyUID, third.CopyUID}
	// The hub deletes these copies for another run. Such a deletion does not make a copy
	// contested.
	for _, n := range []string{"3", "4"} {
		request = f.askAgain(b, n)
		made = append(made, f.run(b, "oak", func(r workv1alpha2.Run) bool { return r.Rerun == request && inPhase(workv1alpha2.RunBegan)(r) }).CopyUID)
		f.completes(oak, ns, "once")
		f.run(b, "oak", inPhase(workv1alpha2.RunComplete))
	}
	if c := f.applier.Contest(b.UID, "oak"); c != (apply.Contest{}) {
		f.t.Errorf("it is contested: %+v", c)
	}
	f.deleteJob(oak, ns, "once")
	f.restart(true)
	f.rests(b, "oak")
	f.wereCreated(inOak, "once", made...)
}

// A Job that has not ended is created again after its copy is deleted, and after it moves away
// and back.
func (f *fleet) unfinishedWorkGoesOn(oak client.Client) {
	ns := testenv.Namespace(f.t, testenv.Config(0))

	b := f.job(ns, "works", nil, "oak")
	first := f.run(b, "oak", inPhase(workv1alpha2.RunBegan))
	f.deleteJob(oak, ns, "works")
	second := f.run(b, "oak", func(r workv1alpha2.Run) bool { return inPhase(workv1alpha2.RunBegan)(r) && r.CopyUID != first.CopyUID })
	if second.ReplacedUID != first.CopyUID {
		f.t.Errorf("it replaces %q, want %q", second.ReplacedUID, first.CopyUID)
	}

	f.place(b, "elm")
	f.run(b, "oak", func(r workv1alpha2.Run) bool { return r.Removed })
	f.eventually("it has left oak", func() error {
		if err := oak.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: "works"}, &batchv1.Job{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it has not: %w", err)
		}
		return nil
	})
	f.restart(true)
	f.place(b, "elm", "oak")
	f.run(b, "oak", func(r workv1alpha2.Run) bool {
		return inPhase(workv1alpha2.RunBegan)(r) && !r.Removed && r.CopyUID != second.CopyUID
	})
}

// A Job lost our mark and was deleted while no hub process ran. The hub finds that it is gone,
// and creates it again instead of asking the cluster without end.
func (f *fleet) workThatLostItsMark(oak client.Client) {
	ns := testenv.Namespace(f.t, testenv.Config(0))
	b := f.job(ns, "unmarked", nil, "oak")
	first := f.run(b, "oak", func(r workv1alpha2.Run) bool { return inPhase(workv1alpha2.RunBegan)(r) && r.CopyUID != "" })
	f.stop()
	j := newJob(ns, "unmarked")
	f.must(oak.Patch(f.t.Context(), j, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, workv1alpha2.BindingLabel))))
	f.deleteJob(oak, ns, "unmarked")
	f.restart(true)
	second := f.run(b, "oak", func(r workv1alpha2.Run) bool {
		return inPhase(workv1alpha2.RunBegan)(r) && r.CopyUID != first.CopyUID && r.CopyUID != ""
	})
	if second.ReplacedUID != first.CopyUID {
		f.t.Errorf("it replaces %q, want %q", second.ReplacedUID, first.CopyUID)
	}
}

// A process died after it recorded that work begins. The next process finds out whether the
// work ran: nothing runs twice, and work that did not run does.
func (f *fleet) workThatAnotherProcessBegan(oak client.Client) {
	ns := testenv.Namespace(f.t, testenv.Config(0))
	// Creates the namespace.
	f.run(f.job(ns, "first", nil, "oak"), "oak", inPhase(workv1alpha2.RunBegan))
	inOak := f.creations(testenv.Config(1), ns)
	f.stop()

	since := func() string {
		jobs := &batchv1.JobList{}
		f.must(oak.List(f.t.Context(), jobs, client.InNamespace(ns)))
		return jobs.ResourceVersion
	}
	begun := func(since string) func(*workv1alpha2.ResourceBinding) {
		return func(b *workv1alpha2.ResourceBinding) {
			b.Status.Runs = []workv1alpha2.Run{{ClusterName: "oak", Phase: workv1alpha2.RunBegan, Since: since, Time: metav1.NewTime(time.Now().Truncate(time.Second))}}
		}
	}
	never := f.job(ns, "never-made", begun(since()), "oak")
	ended := f.job(ns, "made-and-ended", begun(since()), "oak")
	forgotten := f.job(ns, "forgotten", begun(""), "oak")
	j := newJob(ns, "made-and-ended")
	j.Labels = map[string]string{workv1alpha2.BindingLabel: string(ended.UID)}
	f.must(oak.Create(f.t.Context(), j))
	f.completes(oak, ns, "made-and-ended")
	f.deleteJob(oak, ns, "made-and-ended")

	f.restart(true)
	f.run(never, "oak", inPhase(workv1alpha2.RunBegan))
	if r := f.run(ended, "oak", inPhase(workv1alpha2.RunComplete)); r.CopyUID != j.UID {
		f.t.Errorf("%q ended, want %q", r.CopyUID, j.UID)
	}
	f.rests(ended, "oak")
	f.condition(forgotten, workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonRunUnknown)
	f.eventually("what was created in oak is seen", func() error {
		got := map[string]int{}
		for _, name := range []string{"never-made", "made-and-ended", "forgotten"} {
			got[name] = len(inOak.of(name))
		}
		if diff := cmp.Diff(map[string]int{"never-made": 1, "made-and-ended": 1, "forgotten": 0}, got); diff != "" {
			return fmt.Errorf("created (-want +got):\n%s", diff)
		}
		return nil
	})
	f.askAgain(forgotten, "1")
	f.run(forgotten, "oak", inPhase(workv1alpha2.RunBegan))
}

// A Job that a cluster refuses causes no write at each start of the hub. It runs once the
// cluster accepts it.
func (f *fleet) refusedWork(oak client.Client) {
	ns := testenv.Namespace(f.t, testenv.Config(0))
	// Creates the namespace.
	f.run(f.job(ns, "first", nil, "oak"), "oak", inPhase(workv1alpha2.RunBegan))
	none := corev1.ResourceList{"count/jobs.batch": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	f.must(oak.Create(f.t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	f.must(oak.Status().Update(f.t.Context(), quota))
	f.eventually("the quota holds", func() error {
		err := oak.Create(f.t.Context(), newJob(ns, "probe"), client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("a Job is let in: %w", err)
		}
		return nil
	})

	b := f.job(ns, "refused", nil, "oak")
	f.run(b, "oak", inPhase(workv1alpha2.RunRefused))
	f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonRejected)
	version := b.ResourceVersion
	f.restart(false)
	f.eventually("it is refused again", func() error {
		if r, ok := f.applier.Result(b.UID, "oak"); !ok || r.Reason != workv1alpha2.ReasonRejected {
			return fmt.Errorf("the result is %+v", r)
		}
		return nil
	})
	f.must(f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b))
	if b.ResourceVersion != version {
		f.t.Errorf("the binding was written to, from %s to %s: %+v", version, b.ResourceVersion, b.Status)
	}
	f.must(oak.Delete(context.Background(), quota))
	f.run(b, "oak", inPhase(workv1alpha2.RunBegan))
}

// A Job is adopted while it runs. Its end is recorded, so that it does not run again when it is
// deleted.
func (f *fleet) adoptedWork(oak client.Client) {
	ns := testenv.Namespace(f.t, testenv.Config(0))
	// Creates the namespace.
	f.run(f.job(ns, "first", nil, "oak"), "oak", inPhase(workv1alpha2.RunBegan))
	j := newJob(ns, "there")
	f.must(oak.Create(f.t.Context(), j))
	b := f.job(ns, "there", func(b *workv1alpha2.ResourceBinding) { b.Spec.ConflictResolution = policyv1alpha1.ConflictOverwrite }, "oak")
	r := f.run(b, "oak", inPhase(workv1alpha2.RunBegan))
	if r.CopyUID != j.UID {
		f.t.Errorf("%q runs, want %q", r.CopyUID, j.UID)
	}
	f.completes(oak, ns, "there")
	f.run(b, "oak", inPhase(workv1alpha2.RunComplete))
	f.deleteJob(oak, ns, "there")
	f.rests(b, "oak")
	f.noJob(oak, ns, "there")
}
