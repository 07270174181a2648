package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// A taint with the effect NoExecute evicts templates from its cluster: see
// docs/design/0030-failover.md. This file decides which templates have to leave which clusters, and
// why some wait. A decision then chooses other clusters as if the taint closed that one, and an
// eviction task keeps the old copy as long as the policy says.

// longestMessage is the length, in bytes, at which the message of an eviction task is cut. The API
// allows a few more.
const longestMessage = 1000

// quiet is how long an eviction waits for the rate, or for its cluster to settle, before the
// condition of the binding says so.
const quiet = time.Minute

// leaving says which clusters taints require a template to leave.
type leaving struct {
	due   map[string][]scheduler.Due // by cluster: what is due there, the earliest first
	now   map[string]scheduler.Due   // by cluster: the template leaves it with this decision
	wants []failover.Want            // what may begin, for the queue of evictions
	waits []string                   // sentences about what is due and waits
	runs  []string                   // clusters that it would leave and in which it may still run
	next  time.Time                  // when a taint is due next; zero: never
	stuck bool                       // no other cluster fits for some eviction
}

// leave returns which of the clusters in which the binding's own policy places a template it would
// have to leave by the snapshot s. fence says which taints the namespace may tolerate; nil: all.
func leave(s *fleet.Snapshot, t Template, current CurrentState, fence scheduler.Fence) leaving {
	var l leaving
	if current.Binding == nil || current.Evict == nil {
		return l
	}
	for _, target := range own(&current.Binding.Spec) {
		c, ok := s.Cluster(target.Name)
		if !ok || c.Leaving || len(c.Taints) == 0 {
			continue
		}
		dues := t.Placement.Dues(c, fence)
		if current.Supposed != c.Name {
			for i := range dues {
				if dues[i].At.After(current.Now) {
					l.again(dues[i].At)
					dues = dues[:i]
					break
				}
			}
		}
		switch {
		case len(dues) == 0:
		case mayRun(t, current.Binding, c, current.Copies):
			l.runs = append(l.runs, c.Name)
			l.wait(c.Name, dues[0], failover.HoldJobMayRun, t.Object.GetKind()+" runs once: it leaves when its work has ended")
		default:
			if l.due == nil {
				l.due = map[string][]scheduler.Due{}
			}
			l.due[c.Name] = dues
		}
	}
	return l
}

// place schedules a template that is not to stay in the clusters of l.due, and returns the result.
// It decides which of them the template leaves now (l.now), and which evictions wait. Only where
// another cluster fits, and with the purge mode Directly, the queue is asked. So what cannot leave
// takes nothing of the rate.
func (l *leaving) place(s *fleet.Snapshot, t Template, current CurrentState, r scheduler.Request) scheduler.Result {
	r.Now = current.Now
	if len(l.due) == 0 {
		return scheduler.Schedule(s.Clusters(), r)
	}
	mode := purgeMode(t)
	directly := func(cluster string) bool {
		c, ok := s.Cluster(cluster)
		return ok && c.Reachable && mode == policyv1alpha1.PurgeDirectly
	}
	trial := without(s, r, sets.KeySet(l.due))
	nothing := trial.Reason == workv1alpha2.ReasonInsufficient && replicas(trial.Clusters, nil) <= replicas(r.Previous, l.due)
	for _, name := range slices.Sorted(maps.Keys(l.due)) {
		dues := l.due[name]
		if (nothing || placedIn(trial.Clusters, name)) && !directly(name) {
			l.wait(name, dues[0], failover.HoldNoReplacement, "no other cluster fits")
			continue
		}
		l.ask(s, t, current, name, dues)
	}
	if len(l.now) == 0 {
		return scheduler.Schedule(s.Clusters(), r)
	}
	result := trial
	if len(l.now) < len(l.due) {
		result = without(s, r, sets.KeySet(l.now))
	}
	result.Clusters = slices.DeleteFunc(slices.Clone(result.Clusters), func(c workv1alpha2.TargetCluster) bool {
		due, leaves := l.now[c.Name]
		if !leaves || directly(c.Name) {
			return leaves
		}
		// It fits elsewhere only if it leaves the other clusters, too.
		delete(l.now, c.Name)
		l.wait(c.Name, due, failover.HoldNoReplacement, "no other cluster fits")
		return false
	})
	return result
}

// without schedules a template that leaves clusters. Other objects of its affinity group there,
// which leave, too, do not keep it.
func without(s *fleet.Snapshot, r scheduler.Request, leaves sets.Set[string]) scheduler.Result {
	r.Leaves, r.Together = leaves, r.Together.Difference(leaves)
	return scheduler.Schedule(s.Clusters(), r)
}

// placedIn reports whether a placement has a cluster.
func placedIn(clusters []workv1alpha2.TargetCluster, name string) bool {
	return slices.ContainsFunc(clusters, func(c workv1alpha2.TargetCluster) bool { return c.Name == name })
}

// replicas returns the sum of the replicas of a placement, without those in the clusters of except.
func replicas(clusters []workv1alpha2.TargetCluster, except map[string][]scheduler.Due) (n int64) {
	for _, c := range clusters {
		if _, left := except[c.Name]; !left {
			n += number(c.Replicas)
		}
	}
	return n
}

// ask asks the queue of evictions for that of a template from a cluster, in which dues are due. Of
// several taints, the first one counts that a user has confirmed.
func (l *leaving) ask(s *fleet.Snapshot, t Template, current CurrentState, name string, dues []scheduler.Due) {
	c, ok := s.Cluster(name)
	if !ok {
		return
	}
	due, wait := dues[0], failover.Wait{}
	for i, d := range dues {
		if w := current.Evict(c, d); i == 0 || w.Hold != failover.HoldUnconfirmed {
			if due, wait = d, w; w.Hold != failover.HoldUnconfirmed {
				break
			}
		}
	}
	if current.Supposed == name && wait.Hold != failover.HoldOff {
		l.leaves(name, due)
		return
	}
	l.wants = append(l.wants, failover.Want{Cluster: name, UID: c.UID, Taint: *due.Taint, Due: due.At, Priority: priorityOf(t)})
	soon := due.At.Add(quiet)
	switch {
	case wait.Hold == "":
		l.leaves(name, due)
	case (wait.Hold == failover.HoldRate || wait.Hold == failover.HoldSettling) && current.Now.Before(soon):
		l.again(soon) // most do not wait that long, and saying so would be one more write for each
	default:
		l.wait(name, due, wait.Hold, wait.Message)
	}
}

// leaves records that the template leaves a cluster with this decision.
func (l *leaving) leaves(cluster string, due scheduler.Due) {
	if l.now == nil {
		l.now = map[string]scheduler.Due{}
	}
	l.now[cluster] = due
}

// again records that a template is to be decided again at a time.
func (l *leaving) again(at time.Time) {
	if l.next.IsZero() || at.Before(l.next) {
		l.next = at
	}
}

// wait adds the sentence that a template has to leave a cluster and waits. Users of its namespace
// read it, so it names no other cluster, and not who paused failover. It is one clause of a
// message.
func (l *leaving) wait(cluster string, due scheduler.Due, hold failover.Hold, message string) {
	l.stuck = l.stuck || hold == failover.HoldNoReplacement
	if hold == failover.HoldStarting {
		message = "a cluster was not probed yet since the server started"
	}
	if hold == failover.HoldPaused {
		message = "failover is paused"
	}
	message = strings.ReplaceAll(message, ";", ",")
	l.waits = append(l.waits, fmt.Sprintf("to leave %s because of taint %s, waits: %s (%s)", cluster, due.Taint.ToString(), hold, message))
}

// priorityOf returns the priority by which a template leaves a cluster before others; 0 if its
// policy gives none.
func priorityOf(t Template) int32 {
	if t.Priority == nil {
		return 0
	}
	return t.Priority.Priority
}

// mayRun reports whether a template is work that runs once and may still run in the cluster c, or
// be about to. Then it must not be started elsewhere. It is false if the template shows that the
// work has ended, and if it was not begun in the cluster and no copy is there. b is the binding.
func mayRun(
	t Template, b *workv1alpha2.ResourceBinding, c *fleet.Cluster, copies func(string) (int32, presence.Presence),
) bool {
	if !interpreter.Ends(t.Object.GroupVersionKind().GroupKind()) || interpreter.RunPhase(t.Object) != "" {
		return false
	}
	if run := binding.RunIn(b.Status.Runs, t.Object.GetUID(), c.Name); run != nil {
		switch run.Phase {
		case workv1alpha2.RunBegan, workv1alpha2.RunComplete, workv1alpha2.RunFailed:
			return true // the template shows the end a moment later
		case workv1alpha2.RunRefused, workv1alpha2.RunSkipped:
		}
	}
	if !c.Reachable || copies == nil {
		return true
	}
	_, known := copies(c.Name)
	return known != presence.Absent
}

// runsAway reports whether a template is work that may run in a cluster that does not answer. A
// decision that makes a new choice of clusters could start it a second time.
func runsAway(s *fleet.Snapshot, t Template, current CurrentState) bool {
	return slices.ContainsFunc(own(&current.Binding.Spec), func(target workv1alpha2.TargetCluster) bool {
		c, ok := s.Cluster(target.Name)
		return ok && !c.Reachable && mayRun(t, current.Binding, c, current.Copies)
	})
}

// unprobed reports whether a binding (nil: there is none) places its template in a cluster that has
// a taint with the effect NoExecute and was not probed yet.
func unprobed(s *fleet.Snapshot, b *workv1alpha2.ResourceBinding) bool {
	return b != nil && slices.ContainsFunc(b.Spec.Clusters, func(target workv1alpha2.TargetCluster) bool {
		c, ok := s.Cluster(target.Name)
		return ok && !c.Reachable && !c.Probed && slices.ContainsFunc(c.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
	})
}

// purgeMode returns how the old copies of a template leave clusters that fail, by the policy of the
// first claim.
func purgeMode(t Template) policyv1alpha1.PurgeMode {
	if len(t.Claims) == 0 {
		return policyv1alpha1.PurgeGracefully
	}
	return t.Claims[0].Policy.Spec.Failover.ClusterPurge()
}

// explain sets in the eviction tasks of the decision why the template leaves the clusters, and how
// its old copies go there. A task of an eviction that began before keeps what it says. before is
// the spec of the binding before the decision.
func (d *Decision) explain(s *fleet.Snapshot, t Template, before *workv1alpha2.BindingSpec, current CurrentState) {
	tasks := d.Spec.GracefulEvictionTasks
	for i := range tasks {
		task := &tasks[i]
		if placedIn(d.Spec.Clusters, task.FromCluster) {
			continue // a part of the replicas moves, which is no eviction
		}
		if due, leaves := d.leaves[task.FromCluster]; leaves {
			task.Reason, task.PurgeMode = workv1alpha2.ReasonTaintUntolerated, purgeMode(t)
			message := "taint " + due.Taint.ToString() + ", added at " + due.Taint.TimeAdded.UTC().Format(time.RFC3339)
			if due.Toleration > 0 {
				message += fmt.Sprintf(", was tolerated for %s", due.Toleration)
			}
			task.Message = neutral.Cut(message, longestMessage)
			task.CreationTimestamp = new(metav1.NewTime(current.Now.Truncate(time.Second)))
			continue
		}
		for _, was := range before.GracefulEvictionTasks {
			if was.FromCluster == task.FromCluster {
				task.Reason, task.Message, task.PurgeMode, task.CreationTimestamp = was.Reason, was.Message, was.PurgeMode, was.CreationTimestamp
			}
		}
	}
	for _, was := range before.GracefulEvictionTasks {
		ends := !slices.ContainsFunc(tasks, func(task workv1alpha2.GracefulEvictionTask) bool { return task.FromCluster == was.FromCluster })
		if c, ok := s.Cluster(was.FromCluster); !ok || c.Leaving || !ends || placedIn(d.Spec.Clusters, was.FromCluster) {
			continue
		}
		if was.PurgeMode == policyv1alpha1.PurgeNever && current.Unmarked != nil && current.Unmarked(was.FromCluster) {
			tasks = append(tasks, was)
			d.retry(settledLook)
		}
	}
	slices.SortFunc(tasks, func(a, b workv1alpha2.GracefulEvictionTask) int { return strings.Compare(a.FromCluster, b.FromCluster) })
	d.Spec.GracefulEvictionTasks = tasks
}

// leftBehind returns the clusters in which the copy of a binding stays without Orrery's marks,
// because the purge mode of its eviction is Never. It is sorted.
func leftBehind(spec *workv1alpha2.BindingSpec) []string {
	var names []string
	for _, task := range spec.GracefulEvictionTasks {
		if task.PurgeMode == policyv1alpha1.PurgeNever {
			names = append(names, task.FromCluster)
		}
	}
	return names
}

// unmarked returns the function for CurrentState.Unmarked of a binding b, which may be nil: whether
// a dependency of b is not marked yet to stay in a cluster in which the copy of b is left behind.
func (c *Controller) unmarked(b *workv1alpha2.ResourceBinding) func(cluster string) bool {
	if b == nil || len(leftBehind(&b.Spec)) == 0 {
		return nil
	}
	return func(cluster string) bool {
		for t := range followed(b) {
			f, _ := c.bindings.Of(t)
			if f != nil && f.DeletionTimestamp.IsZero() && slices.Contains(whereabouts(&f.Spec), cluster) && !marked(f, b, cluster) {
				return true
			}
		}
		return false
	}
}

// marked reports whether f, the binding of a dependency, says that its copy in a cluster stays with
// the copy of b that is left behind there.
func marked(f, b *workv1alpha2.ResourceBinding, cluster string) bool {
	return slices.ContainsFunc(f.Spec.RequiredByOrphans, func(o workv1alpha2.OrphaningTemplate) bool {
		return (o.Kind == "" || orphaning(b.Namespace, o) == binding.TemplateOf(b)) && slices.Contains(o.Clusters, cluster)
	})
}

// evict returns the function for CurrentState.Evict of the template k: why its eviction from a
// cluster waits, by the fleet as it is now. It is nil if nothing is evicted at all.
func (c *Controller) evict(k binding.Template) func(*fleet.Cluster, scheduler.Due) failover.Wait {
	if c.evictions == nil {
		return nil
	}
	return func(cluster *fleet.Cluster, due scheduler.Due) failover.Wait {
		return c.evictions.Evict(k, cluster, due.Taint)
	}
}

// wanted reports to the queue of evictions which of them may begin for a template, after a decision
// on it; nil: none, also if the template is gone.
func (c *Controller) wanted(k binding.Template, wants []failover.Want) {
	if c.evictions != nil {
		c.evictions.Set(k, wants)
	}
	if wants == nil {
		c.retryQueue.setDue(k, time.Time{})
	}
}

// behind returns the function that reports whether the copy of a template in a cluster that it
// leaves stays there without Orrery's marks. before is the spec of the binding.
func (d *Decision) behind(t Template, before *workv1alpha2.BindingSpec) func(cluster string) bool {
	return func(cluster string) bool {
		if _, leaves := d.leaves[cluster]; leaves {
			return purgeMode(t) == policyv1alpha1.PurgeNever
		}
		return slices.Contains(leftBehind(before), cluster)
	}
}

// evicted counts the evictions that a write of a binding began, and reports each cluster in an
// Event. before is the binding before the write; nil: it did not exist.
func (c *Controller) evicted(before *workv1alpha2.ResourceBinding, after *workv1alpha2.BindingSpec, s *fleet.Snapshot) {
	if before == nil {
		return
	}
	for _, task := range after.GracefulEvictionTasks {
		if task.Reason == "" || slices.ContainsFunc(before.Spec.GracefulEvictionTasks, func(was workv1alpha2.GracefulEvictionTask) bool {
			return was.FromCluster == task.FromCluster && was.Reason == task.Reason
		}) {
			continue
		}
		begun.WithLabelValues(task.FromCluster, task.Reason).Inc()
		cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: task.FromCluster}}
		if known, ok := s.Cluster(task.FromCluster); ok {
			cluster.UID = known.UID
		}
		c.reporter.recorder.Eventf(cluster, nil, corev1.EventTypeWarning, "Evicting", "Evict", "%s",
			"objects leave the cluster because of a taint that they do not tolerate; orrery failover status counts them")
	}
}
