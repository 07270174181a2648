package member

import (
	"context"
	"fmt"
	"slices"
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
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

const (
	// workers is the number of concurrent reconciles. They read only memory and Secrets.
	workers = 8
	// summaryInterval is the least time between two writes of a resource summary.
	summaryInterval = 30 * time.Second
	// mirrorGrace is how long after a restart a cluster that was mirrored still counts as
	// mirrored, while the mirror lists it again.
	mirrorGrace = 5 * time.Minute
	// leaveRetry is the time between two attempts to clean up in a cluster that leaves.
	leaveRetry = 2 * time.Second
	// staleLook is the delay before a stale cache is read again.
	staleLook = 50 * time.Millisecond
)

// clusters reconciles Clusters. Each cluster has its own goroutines for probes and discovery. The
// controller only reads their results, so a slow cluster delays no other.
type clusters struct {
	registry   *Registry
	admission  sync.Mutex
	departures *departures
	loop       *reconciler.Loop[*clusterv1alpha1.Cluster]
	recorder   events.EventRecorder
}

// Add adds the controller of Clusters to mgr and returns its registry.
func Add(mgr ctrl.Manager, o Options) (*Registry, error) {
	r := &Registry{
		options: o.withDefaults(), client: mgr.GetClient(), reader: mgr.GetAPIReader(),
		members: map[string]*Member{}, trials: map[string]*trial{}, counted: map[string]time.Time{}, began: time.Now(),
	}
	r.options.Departures = append(slices.Clone(r.options.Departures), Departure{
		Name: "the hub's administrators have no rights in it any more", Reason: clusterv1alpha1.ReasonUnjoining, Inside: dismissAdmins,
	})
	r.events = mgr.GetEventRecorder("orrery")
	c := &clusters{registry: r, departures: newDepartures(r), recorder: r.events}
	c.loop = &reconciler.Loop[*clusterv1alpha1.Cluster]{
		Client:     mgr.GetClient(),
		Ready:      clusterv1alpha1.ConditionReady,
		Finalizer:  clusterv1alpha1.Finalizer,
		Finalize:   c.leave,
		Conditions: func(o *clusterv1alpha1.Cluster) *[]metav1.Condition { return &o.Status.Conditions },
		Steps: []reconciler.Step[*clusterv1alpha1.Cluster]{
			{
				Condition: clusterv1alpha1.ConditionProvisioned, Warnings: []string{clusterv1alpha1.ConditionCertificatesExpiring},
				Run: r.options.Provision, Applies: provisioned, NonBlocking: true,
			},
			{Condition: clusterv1alpha1.ConditionReachable, Warnings: []string{clusterv1alpha1.ConditionCredentialsExpiring}, Run: c.reach},
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
		WithOptions(reconciler.Options[reconcile.Request](workers)).
		Complete(c)
	if err != nil {
		return nil, fmt.Errorf("add cluster controller: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.bindStoredOnStart)); err != nil {
		return nil, fmt.Errorf("bind stored credentials: %w", err)
	}
	return r, nil
}

// Reconcile implements reconcile.Reconciler.
func (c *clusters) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := c.registry.bindStored(ctx); err != nil {
		return ctrl.Result{}, err
	}
	cluster := &clusterv1alpha1.Cluster{}
	err := c.registry.client.Get(ctx, req.NamespacedName, cluster)
	if apierrors.IsNotFound(err) {
		c.registry.remove(req.Name)
		c.registry.tried(req.Name)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get cluster %s: %w", req.Name, err)
	}
	if absent(cluster) {
		c.registry.remove(req.Name)
		if awaitsAgent(cluster) {
			if err := c.registry.tryOffered(ctx, cluster); err != nil {
				return ctrl.Result{}, err
			}
		}
		return c.loop.Reconcile(ctx, req)
	}
	if m, ok := c.registry.Member(req.Name); ok && m.Cluster().UID == cluster.UID && m.Cluster().Generation > cluster.Generation {
		// The cache is older than an update by this process, and has the old address.
		return ctrl.Result{RequeueAfter: staleLook}, nil
	}
	m := c.registry.ensure(cluster)
	if err := c.registry.connect(ctx, m, cluster); err != nil {
		return ctrl.Result{}, err
	}
	if !m.settled() {
		// Nothing is known yet, so the status stays: after a restart it is the last known one.
		// The probes enqueue the Cluster again.
		return ctrl.Result{}, nil
	}
	return c.loop.Reconcile(ctx, req)
}

// provisioned reports whether Orrery builds the cluster.
func provisioned(o *clusterv1alpha1.Cluster) bool { return o.Spec.Provision != nil }

// Built reports whether the Cluster has an API server, and so is a member.
func Built(o *clusterv1alpha1.Cluster) bool { return !absent(o) }

// absent reports whether the Cluster has no API server to connect to. It is not built yet, its
// agent has not come yet, or it was cleaned up and its hosts are being reset.
func absent(o *clusterv1alpha1.Cluster) bool {
	return awaitsAgent(o) || provisioned(o) && (o.Spec.APIEndpoint == "" || !o.DeletionTimestamp.IsZero() && (o.Status.ID == "" || emptied(o)))
}

// settled reports whether enough is known about the cluster to write its status.
func (m *Member) settled() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.contact.settled(m.discovered)
}

// settled reports whether the contact is conclusive. discovered means that the API list was
// requested.
func (c contact) settled(discovered bool) bool {
	switch c.state {
	case silent:
		return true
	case answering:
		return c.refused || c.proxied || len(c.missing) > 0 || (c.id != "" && discovered)
	case undecided:
	}
	return false
}

// member returns the member of a Cluster that is being reconciled, and its contact.
func (c *clusters) member(o *clusterv1alpha1.Cluster) (*Member, contact, error) {
	m, ok := c.registry.Member(o.Name)
	if !ok || m.Cluster().UID != o.UID {
		// It was deleted and created again between two reads of the cache.
		return nil, contact{}, fmt.Errorf("cluster %s is not in the registry", o.Name)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m, m.contact, nil
}

func (c *clusters) reach(_ context.Context, o *clusterv1alpha1.Cluster) error {
	c.showAgents(o)
	switch {
	case !absent(o):
	case provisioned(o) && o.Spec.APIEndpoint == "" && !pulls(o):
		return reconciler.Unknown(clusterv1alpha1.ReasonProvisioning, 0, "the cluster is not built yet")
	case awaitsAgent(o):
		if c.registry.options.Tunnel == nil {
			return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForAgent, 0, "%v", errNoTunnel)
		}
		if t := c.registry.trialOf(o.Name); t.why != "" {
			return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForAgent, 0, "what the agent offered does not work yet, and is tried again: %s", t.why)
		}
		return reconciler.Unknown(clusterv1alpha1.ReasonWaitingForAgent, 0, "%s", waitsForAgent(o.Name))
	default:
		return reconciler.Unknown(clusterv1alpha1.ReasonProvisioning, 0, "the cluster is not built any more")
	}
	m, found, err := c.member(o)
	if err != nil {
		return err
	}
	c.credentialsExpiring(o, m)
	if problem := m.current().problem; problem != nil {
		return reconciler.Unknown(reasonOf(problem), 0, "%v", problem)
	}
	said := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionReachable)
	if found.state != answering {
		if said != nil && said.Status == metav1.ConditionTrue {
			c.recorder.Eventf(o, nil, corev1.EventTypeWarning, clusterv1alpha1.ReasonUnreachable, "Probe", "%s", found.problem)
		}
		return reconciler.Unknown(clusterv1alpha1.ReasonUnreachable, 0, "%s", found.problem)
	}
	if said != nil && said.Reason == clusterv1alpha1.ReasonUnreachable {
		c.recorder.Eventf(o, nil, corev1.EventTypeNormal, "Recovered", "Probe", "the API server answers again")
	}
	return reconciler.Done(clusterv1alpha1.ReasonAPIServerReady, "")
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
		return reconciler.Done(clusterv1alpha1.ReasonMirrored, "%s", seen.Notice)
	case seen.NotStored:
		if said == nil || said.Reason != clusterv1alpha1.ReasonNotStored {
			c.recorder.Eventf(o, nil, corev1.EventTypeWarning, clusterv1alpha1.ReasonNotStored, "Mirror", "%s; placement goes on", seen.Message)
		}
		return reconciler.Waiting(clusterv1alpha1.ReasonNotStored, 0, "%s", seen.Message)
	case again && said != nil && said.Status == metav1.ConditionTrue:
		// After a restart, the first lists of this process mean nothing about the cluster yet.
		c.registry.enqueue(o.Name, grace)
		return reconciler.Done(said.Reason, "%s", said.Message)
	default:
		return reconciler.Waiting(clusterv1alpha1.ReasonMirroring, 0, "%s", seen.Message)
	}
}

// summarise updates the resource summary at most every summaryInterval, because it changes with
// every pod.
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
	// A Cluster that is no member yet has its offered credentials in the Secret that it will use.
	if name := secret.GetName(); secret.GetNamespace() == clusterv1alpha1.SecretNamespace && secret.GetAnnotations()[clusterv1alpha1.AnnotationForCluster] == name {
		if _, ok := r.Member(name); !ok {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
		}
	}
	return requests
}
