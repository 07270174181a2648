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
	// lookInterval is the interval between checks for expired authorities and tombstones.
	lookInterval = time.Hour
	// retryInterval is the delay before a failed check is repeated.
	retryInterval = time.Second
	// recheckTime bounds one check of the agents of a cluster: their connections must end within 5
	// seconds of a revocation.
	recheckTime = 3 * time.Second
	recheckers  = 4
)

// Options of Enrollment.
type Options struct {
	// URL of the hub's listener for agents; "": unknown.
	URL string
	// Authorities returns the authorities of the listener's certificate in PEM; none: the system's.
	Authorities func() ([]byte, error)
	// Offer receives the credentials with which the hub reaches the agent's cluster. redeemed is
	// true if the agent holds the token of the join. An error is sent to the agent. Until Offer of
	// the redemption has returned, the hub cannot reach the cluster through the agent.
	Offer func(ctx context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error
	// Changed is called when agents of a cluster connected, disconnected or changed; see
	// gateway.Options.
	Changed func(cluster string)
	// Timing of the tunnel; the zero value: tunnel.DefaultTiming.
	Timing tunnel.Timing

	now      func() time.Time
	bodyTime time.Duration // for reading the body of a redemption
	retries  clock.WithTicker
}

// Enrollment admits agents.
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

// Prepared returns a channel that is closed once the enrollment has written its objects at the
// start on the hub, or has failed once to write them.
func (e *Enrollment) Prepared() <-chan struct{} { return e.ensured.Ended() }

// everybody in the queue is all clusters, and the authority.
const everybody = ""

// Add adds the enrollment of agents to a manager. It detects revocations in the manager's caches of
// Clusters and of the metadata of Secrets.
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

// Gateway dials clusters through their agents.
func (e *Enrollment) Gateway() *gateway.Gateway { return e.gateway }

// Routes returns the handlers for the listener, by path.
func (e *Enrollment) Routes() map[string]http.Handler {
	return map[string]http.Handler{
		tunnel.Path: e.gateway, tunnel.ReportPath: e.gateway.Reports(e.report), tunnel.RedeemPath: http.HandlerFunc(e.redeem),
	}
}

// handler calls changed when an object is added, updated or deleted. was is nil for a new object,
// is for a deleted one.
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

// clusterChanged queues the agents of a Cluster for a new check if the change can matter.
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

// secretChanged queues the agents for a new check whose key or authority changed.
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

// run works until ctx ends, and then closes the gateway.
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

// look checks the agents of a cluster again, and reports whether the check is complete.
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
