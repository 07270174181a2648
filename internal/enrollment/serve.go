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
	// lookInterval is the time between two looks at what ends: authorities, and tombstones.
	lookInterval = time.Hour
	// retryInterval is the time until what failed is tried again.
	retryInterval = time.Second
	// recheckTime bounds one look at the agents of a cluster, whose connections are to end within 5 seconds of a revocation.
	recheckTime = 3 * time.Second
	recheckers  = 4
)

// Options of Enrollment.
type Options struct {
	// URL by which agents reach the hub's listener; empty: it is not known.
	URL string
	// Authorities of the listener's certificate in PEM; none: the system's know it.
	Authorities func() ([]byte, error)
	// Offer is given what an agent says how the hub reaches its cluster. redeemed is true of who has the token of the join. An error is
	// shown to the agent. The hub cannot reach the cluster by the agent before Offer of its redemption has returned.
	Offer func(ctx context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error
	// Changed is told when the agents of a cluster came, went or changed; see gateway.Options.
	Changed func(cluster string)
	// Timing of the tunnel; the zero value: tunnel.DefaultTiming.
	Timing tunnel.Timing

	now      func() time.Time
	bodyTime time.Duration // for the body of a redemption to arrive
	retries  clock.WithTicker
}

// Enrollment lets agents in.
type Enrollment struct {
	options Options
	hub     client.Client
	reader  client.Reader // past the caches
	log     logr.Logger
	now     func() time.Time
	gateway *gateway.Gateway
	limits  *limits
	keeper  atomic.Pointer[keeper] // nil until there is one
	queue   workqueue.TypedDelayingInterface[string]
	ensured reconciler.Attempt
}

// Prepared returns a channel that is closed once the enrollment has written what a start writes on the hub, or has failed to once.
func (e *Enrollment) Prepared() <-chan struct{} { return e.ensured.Ended() }

// everybody in the queue is all clusters, and the authority.
const everybody = ""

// Add adds the enrollment of agents to a manager. Who is revoked is looked for in its caches of Clusters and of the metadata of Secrets.
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

// Gateway is what dials clusters through the agents that came in.
func (e *Enrollment) Gateway() *gateway.Gateway { return e.gateway }

// Routes are what the listener is to serve, by path.
func (e *Enrollment) Routes() map[string]http.Handler {
	return map[string]http.Handler{
		tunnel.Path: e.gateway, tunnel.ReportPath: e.gateway.Reports(e.report), tunnel.RedeemPath: http.HandlerFunc(e.redeem),
	}
}

// handler tells of objects that come, change and go; what there was not, or is not any more, is nil.
func handler(changed func(was, is metav1.Object)) toolscache.ResourceEventHandler {
	object := func(o any) metav1.Object {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil // it is none, as informers have nothing else
		}
		return m
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changed(nil, object(o)) },
		UpdateFunc: func(was, is any) { changed(object(was), object(is)) },
		DeleteFunc: func(o any) { changed(object(o), nil) },
	}
}

// clusterChanged has the agents of a Cluster judged anew when that may matter.
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

// secretChanged has those judged anew whose key, or whose authority, changed.
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

// run looks after all of it until ctx ends.
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

// look judges the agents of a cluster anew, and says whether that is done.
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
