// Package provision builds clusters on hosts for a hub. It compares a Cluster with
// spec.provision with what was applied before, and creates an Operation where they differ. The
// engine of package lifecycle runs every Operation, also those that users create.
//
// The package has three parts. Provision sets the condition Provisioned and decides the next
// Operation. The controller of Operations runs them, one for each cluster at a time. It resumes
// those of a server that was killed, and keeps the last few. The deletion of a Cluster waits
// for Dismantle.
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

// Settings are the settings of a hub's operator for building clusters.
type Settings struct {
	// Catalogs are files with more versions, which are merged over the built-in catalog.
	Catalogs []string
	// Cache is the directory of downloaded release files. The default is in the data directory.
	Cache string
}

// AddFlags adds the flags for the settings.
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
	// Refresh reconciles a Cluster soon, because its Operations have changed.
	Refresh func(cluster string)
	// Clock decides when certificates are due. The default is the clock of the machine.
	Clock clock.WithTicker
	// Engine returns the Runner for the Operations of a cluster. The default is the engine of package
	// lifecycle over SSH.
	Engine func(cluster string, env lifecycle.Environment) Runner
}

// Runner runs an Operation and records its progress, as lifecycle.Engine does.
type Runner interface {
	Run(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error
}

// Provisioner builds clusters and runs their Operations.
type Provisioner struct {
	options  Options
	client   client.Client // reads Clusters and Operations from the cache
	store    *Store
	catalog  *catalog.Catalog
	recorder events.EventRecorder
	runs     *runs

	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // set before the first Reconcile

	mu sync.Mutex
	// settled has, by name, the clusters whose hosts match the spec.
	settled map[string]settled
}

// byCluster is the index of Operations by their cluster.
const byCluster = "spec.cluster"

// Add adds the controller of Operations to the manager.
func Add(mgr ctrl.Manager, o Options) (*Provisioner, error) {
	// Secrets and Leases are read without a cache. Records are too large to cache.
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
	// Requests are by cluster, because an Operation depends on the others of its cluster.
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

// Trim removes the steps of a cached Operation, which can be a megabyte. It is a transform of the
// cache.
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

// matters filters out updates that do not change the spec or the phase, such as each step of a run.
func matters() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*lifecyclev1alpha1.Operation)
		now, ok2 := e.ObjectNew.(*lifecyclev1alpha1.Operation)
		return !ok || !ok2 || before.Generation != now.Generation || before.Status.Phase != now.Status.Phase
	}}
}

// Start implements manager.Runnable. It returns when ctx has ended and all runs have recorded their
// progress.
func (p *Provisioner) Start(ctx context.Context) error {
	if err := p.sweepLogs(ctx); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "remove the logs of Operations that are gone")
	}
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

// identity returns the name of this server in Leases. It is stored in the data directory, which one
// process uses at a time. A server that restarts after it was killed therefore finds its own
// Leases.
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
