package member

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

const (
	// workers reconcile Clusters. They read memory only, but for Secrets and leaving.
	workers = 8
	// summaryInterval is the least time between two writes of a resource summary.
	summaryInterval = 30 * time.Second
	// mirrorGrace is how long after a restart a cluster that was mirrored counts as such
	// while the mirror lists it again.
	mirrorGrace = 5 * time.Minute
	// leaveRetry is the time between two tries to clean up in a cluster that leaves.
	leaveRetry = 2 * time.Second
)

// clusters reconciles Clusters. The probes and discovery do the asking, each cluster in
// goroutines of its own; what is here only reads what they found, so that a slow cluster
// holds up no other.
type clusters struct {
	registry  *Registry
	admission sync.Mutex
	loop      *reconciler.Loop[*clusterv1alpha1.Cluster]
	recorder  events.EventRecorder
}

// Add starts the controller of Clusters and returns the registry that it keeps.
func Add(mgr ctrl.Manager, o Options) (*Registry, error) {
	r := &Registry{
		options: o.withDefaults(), client: mgr.GetClient(), reader: mgr.GetAPIReader(),
		members: map[string]*Member{},
	}
	c := &clusters{registry: r, recorder: mgr.GetEventRecorder("orrery")}
	c.loop = &reconciler.Loop[*clusterv1alpha1.Cluster]{
		Client:     mgr.GetClient(),
		Ready:      clusterv1alpha1.ConditionReady,
		Finalizer:  clusterv1alpha1.Finalizer,
		Finalize:   c.leave,
		Conditions: func(o *clusterv1alpha1.Cluster) *[]metav1.Condition { return &o.Status.Conditions },
		Steps: []reconciler.Step[*clusterv1alpha1.Cluster]{
			{Condition: clusterv1alpha1.ConditionProvisioned, Run: r.options.Provision, Applies: provisioned, NonBlocking: true},
			{Condition: clusterv1alpha1.ConditionReachable, Run: c.reach},
			{Condition: clusterv1alpha1.ConditionJoined, Run: c.join},
			{Condition: clusterv1alpha1.ConditionAPIsComplete, Run: c.discover, NonBlocking: true},
			{Condition: clusterv1alpha1.ConditionMirrored, Run: c.mirror},
		},
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("cluster").
		For(&clusterv1alpha1.Cluster{}).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.using)).
		WatchesRawSource(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ctx, r.queue = ctrl.LoggerInto(ctx, mgr.GetLogger().WithName("member")), queue
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(c)
	if err != nil {
		return nil, fmt.Errorf("add cluster controller: %w", err)
	}
	return r, nil
}

// Reconcile implements reconcile.Reconciler.
func (c *clusters) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1alpha1.Cluster{}
	err := c.registry.client.Get(ctx, req.NamespacedName, cluster)
	if apierrors.IsNotFound(err) {
		c.registry.remove(req.Name)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get cluster %s: %w", req.Name, err)
	}
	if absent(cluster) {
		c.registry.remove(req.Name)
		return c.loop.Reconcile(ctx, req)
	}
	m := c.registry.ensure(cluster)
	if err := c.registry.connect(ctx, m, cluster); err != nil {
		return ctrl.Result{}, err
	}
	if !m.settled() {
		// Nothing is known yet, so nothing is said: after a restart, what the status says
		// stays until there is news. The probes come back here.
		return ctrl.Result{}, nil
	}
	return c.loop.Reconcile(ctx, req)
}

// provisioned is true of a Cluster that says what it is to be built of.
func provisioned(o *clusterv1alpha1.Cluster) bool { return o.Spec.Provision != nil }

// absent is true of a Cluster behind which there is no API server to be asked: it is not built yet, or nothing of ours is in
// it any more and its hosts are being undone.
func absent(o *clusterv1alpha1.Cluster) bool {
	return provisioned(o) && (o.Spec.APIEndpoint == "" || !o.DeletionTimestamp.IsZero() && o.Status.ID == "")
}

// settled is true once there is something to say about the cluster.
func (m *Member) settled() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch m.contact.state {
	case silent:
		return true
	case answering:
		return m.contact.refused || len(m.contact.missing) > 0 || (m.contact.id != "" && m.discovered)
	case undecided:
	}
	return false
}

// member returns the member of a Cluster that is being reconciled, and its contact.
func (c *clusters) member(o *clusterv1alpha1.Cluster) (*Member, contact, error) {
	m, ok := c.registry.Member(o.Name)
	if !ok {
		return nil, contact{}, fmt.Errorf("cluster %s is not in the registry", o.Name)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m, m.contact, nil
}

func (c *clusters) reach(_ context.Context, o *clusterv1alpha1.Cluster) error {
	if absent(o) {
		return reconciler.Unknown(clusterv1alpha1.ReasonProvisioning, 0, "the cluster is not built yet")
	}
	m, found, err := c.member(o)
	if err != nil {
		return err
	}
	if problem := m.current().problem; problem != nil {
		return reconciler.Unknown(clusterv1alpha1.ReasonSecretInvalid, 0, "%v", problem)
	}
	if found.state != answering {
		return reconciler.Unknown(clusterv1alpha1.ReasonUnreachable, 0, "%s", found.problem)
	}
	return reconciler.Done(clusterv1alpha1.ReasonAPIServerReady, "")
}

func (c *clusters) join(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, found, err := c.member(o)
	if err != nil {
		return err
	}
	// One at a time, or two names of one cluster could both be let in.
	c.admission.Lock()
	defer c.admission.Unlock()
	if err := c.admit(o, found); err != nil {
		m.update(func() { m.accepted = "" })
		return err
	}
	o.Status.ID, o.Status.KubernetesVersion = found.id, found.version
	m.update(func() { m.accepted = found.id })
	return nil
}

// admit says why the cluster that answers is not to be worked with.
func (c *clusters) admit(o *clusterv1alpha1.Cluster, found contact) error {
	switch {
	case found.refused:
		return reconciler.Waiting(clusterv1alpha1.ReasonUnauthorized, 0, "%s; renew the credentials in Secret %s/%s",
			found.message, o.Spec.SecretRef.Namespace, o.Spec.SecretRef.Name)
	case len(found.missing) > 0:
		return reconciler.Waiting(clusterv1alpha1.ReasonForbidden, 0, "%s", forbidden(found.missing))
	case found.id == "":
		return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForReachable, 0, "the cluster is being asked who it is")
	case found.id == c.registry.options.HubID:
		return reconciler.Stalled(clusterv1alpha1.ReasonIsHub, "spec.apiEndpoint %s is the hub itself", o.Spec.APIEndpoint)
	case o.Status.ID != "" && o.Status.ID != found.id:
		return reconciler.Stalled(clusterv1alpha1.ReasonIdentityChanged,
			"another cluster (%s) answers at spec.apiEndpoint than was joined (%s); correct the address, or unjoin this one and join the other",
			found.id, o.Status.ID)
	}
	for _, other := range c.registry.Members() {
		if other.name != o.Name && other.precedes(o, found.id) {
			return reconciler.Stalled(clusterv1alpha1.ReasonAlreadyJoined,
				"the same cluster is joined as %s; unjoin one of the two", other.name)
		}
	}
	return nil
}

// precedes is true if the member is the cluster of that id and has a better claim to be
// than o: it is joined and o is not, or it is the older one.
func (m *Member) precedes(o *clusterv1alpha1.Cluster, id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	mine := cmp.Or(m.cluster.Status.ID, m.accepted, m.contact.id)
	if mine != id {
		return false
	}
	joined := m.accepted != "" || m.cluster.Status.ID != ""
	if wasJoined := o.Status.ID != ""; joined != wasJoined {
		return joined
	}
	created, other := m.cluster.CreationTimestamp, o.CreationTimestamp
	if !created.Equal(&other) {
		return created.Before(&other)
	}
	return m.cluster.UID < o.UID
}

func (c *clusters) discover(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	apis := m.APIs()
	completeness := clusterv1alpha1.APIsComplete
	if !apis.Complete() {
		completeness = clusterv1alpha1.APIsPartial
	}
	o.Status.APIs = &clusterv1alpha1.APISummary{
		Count: int32(len(apis.all)), Hash: apis.hash, Completeness: completeness, //nolint:gosec // a cluster serves hundreds
	}
	if !apis.Complete() {
		return reconciler.Waiting(clusterv1alpha1.ReasonPartial, 0,
			"types that are not listed are unknown, because these do not answer: %s", apis.unanswered())
	}
	return reconciler.Done(clusterv1alpha1.ReasonComplete, "")
}

func (c *clusters) mirror(_ context.Context, o *clusterv1alpha1.Cluster) error {
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	seen := c.registry.options.Observe(o.Name)
	if seen.Nodes != nil {
		o.Status.NodeSummary = seen.Nodes
	}
	c.summarise(m, o, seen.Resources)

	m.mu.Lock()
	m.mirrored = m.mirrored || seen.Synced
	grace := mirrorGrace - time.Since(m.since)
	again := !m.mirrored && grace > 0
	m.mu.Unlock()

	said := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionMirrored)
	switch {
	case seen.Synced:
		return reconciler.Done(clusterv1alpha1.ReasonMirrored, "")
	case seen.NotStored:
		return reconciler.Waiting(clusterv1alpha1.ReasonNotStored, 0, "%s", seen.Message)
	case again && said != nil && said.Status == metav1.ConditionTrue:
		// Just restarted: the first lists of this process say nothing about the cluster.
		c.registry.enqueue(o.Name, grace)
		return reconciler.Done(said.Reason, "%s", said.Message)
	default:
		return reconciler.Waiting(clusterv1alpha1.ReasonMirroring, 0, "%s", seen.Message)
	}
}

// summarise updates the resource summary, which changes with every pod, now and then.
func (c *clusters) summarise(m *Member, o *clusterv1alpha1.Cluster, now *clusterv1alpha1.ResourceSummary) {
	if now == nil || equality.Semantic.DeepEqual(now, o.Status.ResourceSummary) {
		return
	}
	m.mu.Lock()
	wait := summaryInterval - time.Since(m.summarised)
	due := wait <= 0 || o.Status.ResourceSummary == nil
	if due {
		m.summarised = time.Now()
	}
	m.mu.Unlock()
	if !due {
		c.registry.enqueue(o.Name, wait)
		return
	}
	o.Status.ResourceSummary = now
}

// leave lets a cluster go: what was placed in it is orphaned or deleted, and what is known
// of it is forgotten.
func (c *clusters) leave(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	// A cluster that never was a member has nothing of ours.
	if o.Status.ID != "" {
		if err := c.cleanUp(ctx, o); err != nil {
			return err
		}
		if provisioned(o) {
			// Written before its hosts are undone: then there is no cluster that could be cleaned up once more.
			o.Status.ID = ""
			return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, leaveRetry, "what was placed in the cluster is left or gone; its hosts are next")
		}
	}
	if provisioned(o) {
		if err := c.registry.options.Dismantle(ctx, o); err != nil {
			return err
		}
	}
	if err := c.registry.options.Left(o.Name); err != nil {
		return fmt.Errorf("forget cluster %s: %w", o.Name, err)
	}
	c.registry.remove(o.Name)
	return nil
}

func (c *clusters) cleanUp(ctx context.Context, o *clusterv1alpha1.Cluster) error {
	m, _, err := c.member(o)
	if err != nil {
		return err
	}
	if !m.settled() {
		return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, leaveRetry, "the cluster is being asked who it is")
	}
	// The steps do not run any more, but whether it is the cluster that was joined matters
	// now more than ever.
	why := c.reach(ctx, o)
	if !reconciler.Succeeded(why) {
		return c.abandon(ctx, o, why)
	}
	if why = c.join(ctx, o); !reconciler.Succeeded(why) {
		return c.abandon(ctx, o, why)
	}
	err = c.registry.options.Leave(ctx, m)
	switch {
	case err == nil, reconciler.IsVerdict(err):
		return err
	default:
		return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, leaveRetry, "clean up in the cluster: %v", err)
	}
}

// abandon gives a cluster up in which nothing can be cleaned up, unless the user wants what
// was placed in it deleted.
func (c *clusters) abandon(ctx context.Context, o *clusterv1alpha1.Cluster, why error) error {
	if provisioned(o) && o.Spec.Provision.DeletionPolicy == clusterv1alpha1.DeletionDelete {
		return nil // it goes with all that is in it
	}
	if o.Spec.DeletionPolicy == clusterv1alpha1.DeletionDelete {
		return reconciler.Waiting(clusterv1alpha1.ReasonUnjoining, 0,
			"waits until what was placed in the cluster can be deleted; to leave at once and keep it, set spec.deletionPolicy to Orphan (%v)", why)
	}
	const note = "left without cleaning up: the workloads keep running, and our labels and annotations stay on them"
	ctrl.LoggerFrom(ctx).Info(note, "cluster", o.Name, "cause", why.Error())
	c.recorder.Eventf(o, nil, corev1.EventTypeWarning, "MarksLeft", "Unjoin", "%s (%v)", note, why)
	return nil
}

// using returns the Clusters that use a Secret.
func (r *Registry) using(_ context.Context, secret client.Object) []reconcile.Request {
	var requests []reconcile.Request
	ref := clusterv1alpha1.SecretReference{Namespace: secret.GetNamespace(), Name: secret.GetName()}
	for _, m := range r.Members() {
		spec := m.Cluster().Spec
		if spec.SecretRef == ref || (spec.ImpersonatorSecretRef != nil && *spec.ImpersonatorSecretRef == ref) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: m.name}})
		}
	}
	return requests
}
