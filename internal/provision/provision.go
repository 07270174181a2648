// Package provision builds clusters on hosts for a hub. It compares a Cluster with spec.provision
// with what was applied to the hosts before, and creates an Operation where they differ. The engine
// of package lifecycle runs every Operation, also those that users create.
//
// The package has three parts. Provision returns the result for the condition Provisioned of a
// Cluster and decides the next Operation. The controller of Operations runs them, one for each
// cluster at a time. It resumes Operations of a server that was killed, and deletes old ones. The
// deletion of a Cluster calls Dismantle and waits for it.
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

// Settings are the settings for building clusters that the operator of a hub gives as flags.
type Settings struct {
	// Catalogs are the paths of catalog files with more versions, which are merged over the built-in
	// catalog.
	Catalogs []string
	// Cache is the directory of downloaded release files. "" means lifecycle/files in the data
	// directory.
	Cache string
}

// AddFlags adds the flags --lifecycle-catalog and --lifecycle-cache, which set s, to fs.
func (s *Settings) AddFlags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&s.Catalogs, "lifecycle-catalog", nil, "file of further versions that clusters can be built with, merged over the built-in catalogue; can be given more than once")
	fs.StringVar(&s.Cache, "lifecycle-cache", "", "where downloaded release files are kept (default: lifecycle/files in the data directory)")
}

// Options for Add. DataDir, HubID and Refresh are required.
type Options struct {
	Settings

	// DataDir is the hub's data directory.
	DataDir string
	// HubID is the UID of the hub's kube-system namespace.
	HubID string
	// Refresh makes the hub reconcile a Cluster soon. It is called with the name of a Cluster when its
	// Operations have changed, and every hour because of its certificates. It must not block.
	Refresh func(cluster string)
	// Clock decides when certificates are due; nil means the clock of the machine.
	Clock clock.WithTicker
	// Engine returns the Runner for the Operations of a cluster; nil means the engine of package
	// lifecycle over SSH. Tests replace it.
	Engine func(cluster string, env lifecycle.Environment) Runner
}

// Runner runs an Operation with the spec to apply or undo. It records the progress and the end of
// the Operation, as lifecycle.Engine.Run does.
type Runner interface {
	Run(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error
}

// Provisioner builds clusters and runs their Operations. Add makes it. Its methods may be called
// from several goroutines.
type Provisioner struct {
	options  Options
	client   client.Client // reads Clusters and Operations from the cache
	store    *Store
	catalog  *catalog.Catalog
	recorder events.EventRecorder
	runs     *runs

	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // set before the first Reconcile

	mu sync.Mutex
	// settled has, by name, the clusters whose hosts are known to match the spec.
	settled map[string]settled
}

// byCluster is the index of Operations by their cluster.
const byCluster = "spec.cluster"

// Add creates the Provisioner and adds it to the manager, with a controller and an index of
// Operations. It creates the identity of this server in the data directory if there is none.
// Nothing runs before the manager starts.
func Add(mgr ctrl.Manager, o Options) (*Provisioner, error) {
	// Secrets, Leases and whole Operations are read without a cache. Operations are too large to cache
	// whole.
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
	// A request names a cluster and not an Operation, because the Operations of a cluster depend on
	// each other.
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

// Trim is a transform for the cache of the manager. It removes the steps, which can be a megabyte,
// and the managed fields of an Operation, in place. Other objects stay as they are. It never fails.
func Trim(o any) (any, error) {
	if op, ok := o.(*lifecyclev1alpha1.Operation); ok {
		op.ManagedFields, op.Status.Steps = nil, nil
	}
	return o, nil
}

// clusterOf returns the request with which the controller reconciles all Operations of an
// Operation's cluster.
func clusterOf(_ context.Context, o client.Object) []reconcile.Request {
	op, ok := o.(*lifecyclev1alpha1.Operation)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(op.Spec.Cluster)}
}

// request returns the request of the controller of Operations for a cluster.
func request(cluster string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: cluster}}
}

// matters returns a predicate that drops updates of Operations which change neither the spec nor
// the phase, such as each step of a run.
func matters() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*lifecyclev1alpha1.Operation)
		now, ok2 := e.ObjectNew.(*lifecyclev1alpha1.Operation)
		return !ok || !ok2 || before.Generation != now.Generation || before.Status.Phase != now.Status.Phase
	}}
}

// Start implements manager.Runnable. It removes logs of missing Operations, checks certificates
// in intervals, and returns nil when ctx has ended and all runs have recorded their progress.
func (p *Provisioner) Start(ctx context.Context) error {
	if err := p.sweepLogs(ctx); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "remove the logs of Operations that are gone")
	}
	p.lookAtCertificates(ctx)
	p.runs.wait()
	return nil
}

// sweepLogs removes the logs of Operations that do not exist any more. It continues after an error
// and joins the errors. A missing directory of logs is no error.
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

// identity returns the name of this server in Leases: the name that is stored in the data
// directory, which one process uses at a time. If none is stored, it stores a new one. A server
// that restarts after it was killed therefore recognizes its own Leases.
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

// newIdentity returns a new name for this server: HOSTNAME_RANDOM.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the name of this machine: %w", err)
	}
	return host + "_" + rand.Text(), nil
}
