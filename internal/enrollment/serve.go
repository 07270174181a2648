package enrollment

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/gateway"
)

const (
	// lookInterval is the interval between checks of the certificate authority for agents, and of the
	// records of clusters that have left (tombstones).
	lookInterval = time.Hour
	// retryInterval is the delay before a failed check of agents or of their certificate authority is
	// repeated.
	retryInterval = time.Second
	// recheckTime bounds one check of the agents of a cluster. After a revocation their connections
	// must end within 5 seconds. recheckers is the number of clusters that are checked at once.
	recheckTime = 3 * time.Second
	recheckers  = 4
)

// Options of Enrollment.
type Options struct {
	// URL of the hub's listener for agents; "": unknown. Published then returns an error.
	URL string
	// Authorities returns the authorities of the listener's certificate in PEM. An empty result means
	// that agents use the system's authorities. It is called at least every hour.
	Authorities func() ([]byte, error)
	// Offer receives the credentials with which the hub reaches the agent's cluster. redeemed is true
	// if the agent has shown the token of its join, or has used it. An error is sent to the agent. In
	// a redemption, the agent gets its certificate only after Offer has returned nil.
	Offer func(ctx context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error
	// Changed is called when agents of a cluster connected, disconnected or changed. It must not
	// block, and several goroutines call it. It may be nil.
	Changed func(cluster string)
	// Timing of the tunnel; the zero value: tunnel.DefaultTiming.
	Timing tunnel.Timing

	now      func() time.Time
	bodyTime time.Duration // for reading the body of a redemption
	retries  clock.WithTicker
}

// Enrollment admits the agents of clusters, issues their certificates, and has the gateway for
// their connections. Add makes it. Several goroutines may use it.
type Enrollment struct {
	options Options
	hub     client.Client
	reader  client.Reader // without cache
	log     logr.Logger
	now     func() time.Time
	gateway *gateway.Gateway
	limits  *limits
	keeper  atomic.Pointer[keeper] // nil until it is loaded
	queue   workqueue.TypedDelayingInterface[string]
	ensured reconciler.Attempt
}

// Prepared returns a channel that is closed after the first attempt to write the objects of the
// enrollment on the hub, successful or not. That attempt begins when the manager has started.
func (e *Enrollment) Prepared() <-chan struct{} { return e.ensured.Ended() }

// everybody is an element of Enrollment.queue that means all clusters with agents, and the
// certificate authority for agents. Other elements are names of clusters.
const everybody = ""

// Add adds the enrollment of agents to a manager. Until the manager has started and the certificate
// authority for agents was read, agents are refused. The manager's caches of Clusters and of the
// metadata of Secrets show which agents lost their right to connect.
func Add(mgr manager.Manager, o Options) (*Enrollment, error) {
	if o.Timing == (tunnel.Timing{}) {
		o.Timing = tunnel.DefaultTiming()
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.bodyTime == 0 {
		o.bodyTime = bodyTime
	}
	if o.retries == nil {
		o.retries = clock.RealClock{}
	}
	e := &Enrollment{
		options: o, hub: mgr.GetClient(), reader: mgr.GetAPIReader(), log: mgr.GetLogger().WithName("enrollment"), now: o.now,
		limits: newLimits(), queue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: o.retries}),
	}
	e.gateway = gateway.New(gateway.Options{Admit: e.Admit, Changed: o.Changed, Timing: o.Timing, Log: mgr.GetLogger().WithName("tunnel")})
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	for object, changed := range map[client.Object]func(was, is metav1.Object){&clusterv1alpha1.Cluster{}: e.clusterChanged, secrets: e.secretChanged} {
		informer, err := mgr.GetCache().GetInformer(context.Background(), object)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", object, err)
		}
		if _, err := informer.AddEventHandler(handler(changed)); err != nil {
			return nil, fmt.Errorf("watch %T: %w", object, err)
		}
	}
	if err := mgr.Add(manager.RunnableFunc(e.run)); err != nil {
		return nil, fmt.Errorf("add the enrollment of agents: %w", err)
	}
	return e, nil
}

// Gateway returns the gateway, which dials clusters through their agents. Every call returns the
// same Gateway. It is closed when the manager stops.
func (e *Enrollment) Gateway() *gateway.Gateway { return e.gateway }

// Routes returns the handlers that the hub's listener serves to agents, by path: the tunnel,
// reports and redemptions.
func (e *Enrollment) Routes() map[string]http.Handler {
	return map[string]http.Handler{
		tunnel.Path: e.gateway, tunnel.ReportPath: e.gateway.Reports(e.report), tunnel.RedeemPath: http.HandlerFunc(e.redeem),
	}
}

// handler returns an event handler that calls changed when an object is added, updated or deleted.
// Its arguments are the object before (nil: it is new) and the object now (nil: it was deleted).
func handler(changed func(was, is metav1.Object)) toolscache.ResourceEventHandler {
	object := func(o any) metav1.Object {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil // informers have only objects
		}
		return m
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changed(nil, object(o)) },
		UpdateFunc: func(was, is any) { changed(object(was), object(is)) },
		DeleteFunc: func(o any) { changed(object(o), nil) },
	}
}

// clusterChanged queues the agents of a Cluster for a new check if the Cluster is new, was deleted,
// was replaced by one with another UID, or began to be deleted. was and is are as in handler.
func (e *Enrollment) clusterChanged(was, is metav1.Object) {
	old, _ := was.(*clusterv1alpha1.Cluster)
	now, _ := is.(*clusterv1alpha1.Cluster)
	switch {
	case old == nil && now != nil:
		e.queue.Add(now.Name)
	case now == nil && old != nil:
		e.queue.Add(old.Name)
	case now != nil && (old.UID != now.UID || old.DeletionTimestamp.IsZero() != now.DeletionTimestamp.IsZero()):
		e.queue.Add(now.Name)
	}
}

// secretChanged queues the agents of a cluster for a new check if their Secret NAME.agent has
// another key. It queues the agents of all clusters if the Secret of the certificate authority
// changed. Other Secrets are ignored. was and is are as in handler.
func (e *Enrollment) secretChanged(was, is metav1.Object) {
	o := is
	if o == nil {
		o = was
	}
	if o == nil || o.GetNamespace() != namespace {
		return
	}
	if o.GetName() == authoritySecret && (was == nil || is == nil || was.GetResourceVersion() != is.GetResourceVersion()) {
		e.queue.Add(everybody)
		return
	}
	cluster, ok := strings.CutSuffix(o.GetName(), agentSuffix)
	if ok && (was == nil || is == nil || was.GetUID() != is.GetUID() || was.GetAnnotations()[annotationKey] != is.GetAnnotations()[annotationKey]) {
		e.queue.Add(cluster)
	}
}

// run does the work of the enrollment while the manager runs, until ctx ends. It checks the
// certificate authority and the tombstones of clusters that have left every lookInterval, and
// agents after changes. Failures are logged and retried. At the end it closes the gateway, waits
// for its goroutines and returns nil.
func (e *Enrollment) run(ctx context.Context) error {
	var working sync.WaitGroup
	for range recheckers {
		working.Go(func() { e.work(ctx) })
	}
	e.queue.Add(everybody)
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := e.forget(ctx); err != nil && ctx.Err() == nil {
			e.log.Info("Clusters that left long ago are remembered still; looking again in an hour", "cause", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			e.queue.Add(everybody)
		}
	}
	e.queue.ShutDown()
	e.gateway.Close()
	working.Wait()
	return nil
}

// work calls look for the elements of the queue until the queue is shut down. A check that is not
// complete is repeated after retryInterval. run starts it in several goroutines.
func (e *Enrollment) work(ctx context.Context) {
	for {
		cluster, end := e.queue.Get()
		if end {
			return
		}
		if !e.look(ctx, cluster) && ctx.Err() == nil {
			e.queue.AddAfter(cluster, retryInterval)
		}
		e.queue.Done(cluster)
	}
}

// look checks the agents of a cluster again, and closes the connections of those that are refused
// now. It returns false if the check is not complete and must be repeated. For everybody it instead
// renews the certificate authority and queues all clusters with agents.
func (e *Enrollment) look(ctx context.Context, cluster string) bool {
	ctx, cancel := context.WithTimeout(ctx, recheckTime)
	defer cancel()
	if cluster != everybody {
		e.gateway.Recheck(ctx, cluster)
		return ctx.Err() == nil
	}
	err := e.ensure(ctx)
	e.ensured.End()
	if err != nil {
		e.log.Info("Agents cannot be vouched for; trying again", "cause", err.Error())
		return false
	}
	for _, name := range e.gateway.Clusters() {
		e.queue.Add(name)
	}
	return true
}
