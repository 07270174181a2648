// Package provision is the hub's side of clusters that are built on hosts. A Cluster with spec.provision is compared with
// what was done for it before; where they differ an Operation is made, and every Operation, whoever made it, is run by the
// engine of package lifecycle.
//
// What happens is in three places. The step of the condition Provisioned (Provision) decides what there is to do and says how
// it goes. The controller of Operations runs them, one of a cluster at a time, resumes those that a killed server left, and
// keeps the last few. Dismantle is what a deleted Cluster waits for.
package provision

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/reconciler"
)

// Settings are what the operator of a hub says about building clusters.
type Settings struct {
	// Catalogs are files of further versions, merged over the built-in catalogue.
	Catalogs []string
	// Cache is where release files are kept. The default is in the data directory.
	Cache string
}

// AddFlags adds the flags of the settings.
func (s *Settings) AddFlags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&s.Catalogs, "lifecycle-catalog", nil, "file of further versions that clusters can be built with, merged over the built-in catalogue; can be given more than once")
	fs.StringVar(&s.Cache, "lifecycle-cache", "", "where downloaded release files are kept (default: lifecycle/files in the data directory)")
}

// Options of the provisioner.
type Options struct {
	Settings

	// DataDir is the hub's data directory.
	DataDir string
	// HubID is the UID of the hub's kube-system namespace.
	HubID string
	// Refresh has a Cluster looked at again soon, because something about its Operations changed.
	Refresh func(cluster string)
	// Clock tells when certificates are due. The default is the machine's.
	Clock clock.WithTicker
	// Engine makes what runs the Operations of a cluster. The default is the engine of package lifecycle, over SSH.
	Engine func(cluster string, env lifecycle.Environment) Runner
}

// Runner runs an Operation and records how it goes, as lifecycle.Engine does.
type Runner interface {
	Run(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error
}

// Provisioner builds clusters.
type Provisioner struct {
	options  Options
	client   client.Client // reads Clusters and Operations from the cache
	store    *Store
	catalog  *catalog.Catalog
	recorder events.EventRecorder
	runs     *runs

	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // set before anything is reconciled

	binding     sync.Mutex
	storedBound bool // guarded by binding
	bound       reconciler.Attempt

	mu sync.Mutex
	// settled has, by name, the clusters whose hosts are known to be as the spec says.
	settled map[string]settled
}

// byCluster indexes Operations by their cluster.
const byCluster = "spec.cluster"

// Add starts the controller of Operations.
func Add(mgr ctrl.Manager, o Options) (*Provisioner, error) {
	// Secrets and leases are read as they are, and records are too large to be kept in memory.
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	holder, err := identity(o.DataDir)
	if err != nil {
		return nil, err
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.Cache = cmp.Or(o.Cache, filepath.Join(o.DataDir, "lifecycle", "files"))
	p := &Provisioner{
		options: o, client: mgr.GetClient(), recorder: mgr.GetEventRecorder("orrery"), runs: newRuns(),
		settled: map[string]settled{},
	}
	p.store = &Store{
		Client: direct, Cached: mgr.GetClient(), Logs: filepath.Join(o.DataDir, "logs", "operations"), Holder: holder,
		Lost: p.runs.cancel,
	}
	if p.options.Engine == nil {
		if p.catalog, err = catalog.Load(o.Catalogs...); err != nil {
			return nil, fmt.Errorf("--lifecycle-catalog: %w", err)
		}
		p.options.Engine = p.engine
	}
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &lifecyclev1alpha1.Operation{}, byCluster, func(o client.Object) []string {
		op, ok := o.(*lifecyclev1alpha1.Operation)
		if !ok {
			return nil
		}
		return []string{op.Spec.Cluster}
	})
	if err != nil {
		return nil, fmt.Errorf("index Operations: %w", err)
	}
	if err := mgr.Add(p); err != nil {
		return nil, fmt.Errorf("add provisioner: %w", err)
	}
	// By cluster: what one Operation may do depends on the others.
	err = ctrl.NewControllerManagedBy(mgr).Named("operation").
		Watches(&lifecyclev1alpha1.Operation{}, handler.EnqueueRequestsFromMapFunc(clusterOf), builder.WithPredicates(matters())).
		WatchesRawSource(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			p.queue = queue
			p.runs.begin(ctrl.LoggerInto(ctx, mgr.GetLogger().WithName("provision")))
			return nil
		})).
		WithOptions(reconciler.Options[reconcile.Request](1)).
		Complete(p)
	if err != nil {
		return nil, fmt.Errorf("add operation controller: %w", err)
	}
	return p, nil
}

// Trim leaves out of a cached Operation what only its record needs: the steps, which can be a megabyte.
func Trim(o any) (any, error) {
	if op, ok := o.(*lifecyclev1alpha1.Operation); ok {
		op.ManagedFields, op.Status.Steps = nil, nil
	}
	return o, nil
}

func clusterOf(_ context.Context, o client.Object) []reconcile.Request {
	op, ok := o.(*lifecyclev1alpha1.Operation)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(op.Spec.Cluster)}
}

func request(cluster string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: cluster}}
}

// matters lets the changes through that change what there is to do: not each step of a run.
func matters() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*lifecyclev1alpha1.Operation)
		now, ok2 := e.ObjectNew.(*lifecyclev1alpha1.Operation)
		return !ok || !ok2 || before.Generation != now.Generation || before.Status.Phase != now.Status.Phase
	}}
}

// Prepared returns a channel that is closed once the provisioner has written what a start writes on the hub, or has failed to once.
func (p *Provisioner) Prepared() <-chan struct{} { return p.bound.Ended() }

// Start implements manager.Runnable: it ends when ctx has and the runs have recorded where they are.
func (p *Provisioner) Start(ctx context.Context) error {
	if err := p.sweepLogs(ctx); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "remove the logs of Operations that are gone")
	}
	if err := p.bindStored(ctx); err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Error(err, "bind the credentials of hosts; the next run tries again")
	}
	p.bound.End()
	p.lookAtCertificates(ctx)
	p.runs.wait()
	return nil
}

// sweepLogs removes the logs of Operations that do not exist any more.
func (p *Provisioner) sweepLogs(ctx context.Context) error {
	entries, err := os.ReadDir(p.store.Logs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the logs of Operations: %w", err)
	}
	ops, err := p.store.Operations(ctx, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !slices.ContainsFunc(ops, func(op lifecyclev1alpha1.Operation) bool { return op.Name == e.Name() }) {
			errs = append(errs, p.store.removeLogs(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// identity of this server among those that share a hub. It belongs to the data directory, which one process holds at a time:
// so a server that comes back after it was killed finds its own leases.
func identity(dataDir string) (string, error) {
	path := filepath.Join(dataDir, "lifecycle", "identity")
	content, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(content))) > 0 {
		return strings.TrimSpace(string(content)), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the identity of this server: %w", err)
	}
	id, err := newIdentity()
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(id+"\n"), 0o600)); err != nil {
		return "", fmt.Errorf("keep the identity of this server: %w", err)
	}
	return id, nil
}

func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the name of this machine: %w", err)
	}
	return host + "_" + rand.Text(), nil
}
