// Package server assembles `orrery server`: options, start order and shutdown. It is the only
// package that imports all components.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/console"
	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/enrollment"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/fleetapi"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/listener"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/provision"
	"orrery.dev/orrery/internal/rebalance"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/revision"
	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/status"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/website"
)

// Options of the server. The zero value of each nested struct is its default.
type Options struct {
	Hub hub.Options
	// Public configures the listener for agents of clusters and for the console. The public
	// address in Hub is set from it.
	Public listener.Options
	// Probes configures the health checks of clusters.
	Probes member.Probes
	// Lifecycle configures how clusters are built.
	Lifecycle provision.Settings
	// MirrorResources are the types that are mirrored from Clusters without a selection in
	// spec.mirror; empty: every type except those that change all the time.
	MirrorResources []string
	// MirrorDSNFile is a file with the DSN of the database of the mirror; empty: SQLite in the
	// data directory.
	MirrorDSNFile string
	// MirrorKeyFile is a file with the keys that encrypt mirrored data of Secrets in the
	// database of the mirror; empty: mirror-encryption.key in the data directory, which is
	// created if missing.
	MirrorKeyFile string
	// MirrorHistory is how much history of mirrored objects is kept; nil: store.DefaultHistory.
	MirrorHistory *MirrorHistory
	// DefaultClusterAccess is which clusters a namespace may use that no ClusterAccess selects.
	DefaultClusterAccess access.Default
	// ProfilingAddress is the address that serves Go's profiles, without authentication. Empty:
	// none.
	ProfilingAddress string
	// PodSecurity is the level for a namespace of the hub without a Pod Security label.
	PodSecurity podsecurity.Level
	// Namespaces is in which members the namespaces of the hub are created.
	Namespaces apply.Spread
	// Version is the version of the program.
	Version string
}

// MirrorHistory is how long and how much history is kept, and the types without history.
type MirrorHistory struct {
	Time   time.Duration
	Size   resource.QuantityValue
	Except []string
}

// history returns the options for the store. 0 for Time or Size means no history.
func (o *MirrorHistory) history() (store.History, error) {
	if o == nil {
		return store.DefaultHistory, nil
	}
	out := store.History{Time: o.Time, Bytes: o.Size.Value()}
	if out.Time < 0 {
		return out, fmt.Errorf("--mirror-history-time: %s is negative; 0 keeps no history", out.Time)
	}
	if out.Bytes < 0 {
		return out, fmt.Errorf("--mirror-history-size: %s is negative; 0 keeps no history", o.Size.String())
	}
	for _, name := range o.Except {
		gr, err := mirror.ParseType(name)
		if err != nil {
			return out, fmt.Errorf("--mirror-history-except: %w", err)
		}
		out.Except = append(out.Except, gr)
	}
	return out, nil
}

// AddFlags adds the server's flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Hub.AddFlags(fs)
	o.Public.AddFlags(fs)
	o.Probes.AddFlags(fs)
	o.Lifecycle.AddFlags(fs)
	fs.StringSliceVar(&o.MirrorResources, "mirror-resources", nil,
		"types, such as deployments.apps and pods, that are mirrored of clusters of which neither spec.mirror nor a MirrorPolicy selects any; placed kinds, nodes, pods and what else the hub needs always are (default: every type but leases and their like)")
	fs.StringVar(&o.MirrorDSNFile, "mirror-dsn-file", "",
		"file of mode 0600 with the DSN, postgres://... or mysql://..., of the database that the mirror is kept in (default: SQLite in the data directory)")
	fs.StringVar(&o.MirrorKeyFile, "mirror-encryption-key-file", "",
		"file of mode 0600 with the keys that encrypt the data of Secrets in the mirror, where it is mirrored: 32 bytes in base64 a line, the newest first (default: mirror-encryption.key in the data directory, made if there is none)")
	h := &MirrorHistory{Time: store.DefaultHistory.Time, Size: resource.QuantityValue{Quantity: *resource.NewQuantity(store.DefaultHistory.Bytes, resource.BinarySI)}}
	o.MirrorHistory = h
	fs.DurationVar(&h.Time, "mirror-history-time", h.Time, "how long former states and deleted objects of the mirror are kept; 0: none")
	fs.Var(&h.Size, "mirror-history-size", "how much room these may take, about; the oldest go first; 0: none")
	fs.StringSliceVar(&h.Except, "mirror-history-except", nil, "types, such as replicasets.apps, of which none are kept, besides leases and events")
	fs.Var(&o.DefaultClusterAccess, "default-cluster-access",
		"which clusters the hub's namespaces may use that no ClusterAccess selects: all of them, or none")
	fs.Var(&o.PodSecurity, "default-pod-security",
		"which Pod Security Standard pods are held to in namespaces of the hub that do not say so by label: privileged, baseline or restricted")
	fs.Var(&o.Namespaces, "namespaces",
		"in which members the hub's namespaces are made: Needed, where something is placed in them, or All, in every member that they may use")
	fs.StringVar(&o.ProfilingAddress, "profiling-address", "", "serve Go's profiles at this address, such as 127.0.0.1:6060, to everyone who can reach it")
}

// Run starts the hub and every controller, calls ready when all of them are ready, and returns
// when ctx has ended and everything has stopped.
func Run(ctx context.Context, o Options, log logr.Logger, ready func(*hub.Hub) error) (err error) {
	if _, err := mirror.Select(o.MirrorResources); err != nil { // before anything is started
		return fmt.Errorf("--mirror-resources: %w", err)
	}
	if _, err := o.MirrorHistory.history(); err != nil {
		return err
	}
	if o.MirrorDSNFile != "" {
		if _, err := readDSN(o.MirrorDSNFile); err != nil {
			return err
		}
	}
	if o.MirrorKeyFile != "" {
		if _, err := readKeys(o.MirrorKeyFile); err != nil {
			return err
		}
	}
	if err := errors.Join(o.Public.Validate(), o.Probes.Validate()); err != nil {
		return err
	}
	o.Hub = withPublic(o.Hub, o.Public)
	ctrl.SetLogger(log)
	ctx = logr.NewContext(ctx, log)

	// The hub must stop after the controllers: it has its own context, which ends after theirs.
	hubCtx, stopHub := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHub()
	starting := context.AfterFunc(ctx, stopHub)
	h, err := hub.Start(hubCtx, o.Hub, log.WithName("hub"))
	starting()
	if err != nil && ctx.Err() != nil {
		log.Info("Stopped before the hub was ready", "reason", err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("start hub: %w", err)
	}
	defer func() {
		stopHub()
		err = errors.Join(err, h.Wait())
	}()
	if err := run(ctx, o, h, log, ready); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// withPublic makes the hub choose a port for the public listener, and create a certificate for
// it.
func withPublic(h hub.Options, o listener.Options) hub.Options {
	h.PublicHost = o.Host()
	// if unset, the hub chooses both
	if host, port, err := net.SplitHostPort(o.Address); err == nil {
		h.PublicAddress = host
		h.PublicPort, _ = strconv.Atoi(port) // Validate has checked it
	}
	return h
}

func run(ctx context.Context, o Options, h *hub.Hub, log logr.Logger, ready func(*hub.Hub) error) error {
	installed := time.Now()
	history, err := o.MirrorHistory.history()
	if err != nil {
		return err
	}
	keys, err := mirrorKeys(o.MirrorKeyFile, h.DataDir(), log)
	if err != nil {
		return err
	}
	db, err := openStore(ctx, o.MirrorDSNFile, h.DataDir(), store.Sealed(keys), store.ForHub(h.ID()))
	if err != nil {
		return err
	}
	db.KeepHistory(history)
	defer db.Close() //nolint:errcheck // every write was committed when it returned

	recordsDir := filepath.Join(h.DataDir(), "records")
	if err := os.MkdirAll(recordsDir, 0o700); err != nil {
		return fmt.Errorf("make the records' directory: %w", err)
	}
	kept, err := records.Open(ctx, recordsDir, log.WithName("records"))
	if err != nil {
		return fmt.Errorf("open records: %w", err)
	}
	defer kept.Close() //nolint:errcheck,contextcheck // it has logged what it could not write, and writes to the end

	mgr, err := ctrl.NewManager(h.Config(), ctrl.Options{
		Scheme:  hub.Scheme(),
		Logger:  log,
		Metrics: metricsserver.Options{BindAddress: "0"}, // the fleet server serves the metrics
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer:      hub.NewInformer,
			ByObject: map[client.Object]cache.ByObject{
				&lifecyclev1alpha1.Operation{}: {Transform: provision.Trim},
				// The only ConfigMap that the server watches.
				&corev1.ConfigMap{}: {
					Namespaces: map[string]cache.Config{clusterv1alpha1.SecretNamespace: {}},
					Field:      fields.OneTermEqualSelector("metadata.name", apply.RestoreConfigMap),
				},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		// The hub excludes a second server before the manager exists: by the lock of the data
		// directory, or by a Lease.
		LeaderElection:          false,
		PprofBindAddress:        o.ProfilingAddress,
		GracefulShutdownTimeout: new(5 * time.Second),
	})
	if err != nil {
		return fmt.Errorf("create manager: %w", err)
	}

	if err := mgr.Add(kept); err != nil {
		return fmt.Errorf("add records to the manager: %w", err)
	}

	rooms, err := wire(mgr, o, h, db, kept, log) //nolint:contextcheck // what has left is dropped to the end
	if err != nil {
		return err
	}
	came := make(chan struct{}, 1) // signals that a cluster joined or left
	rooms.registry.Subscribe(func(e member.Event) {
		if e.Type == member.Changed {
			return
		}
		select {
		case came <- struct{}{}:
		default: // an update of the kubeconfig is pending already
		}
	})

	g, ctx := errgroup.WithContext(ctx)
	wired := time.Now()
	g.Go(func() error { return mgr.Start(ctx) })
	g.Go(func() error { keepKubeconfig(ctx, h, mgr.GetClient(), came, log); return nil })
	g.Go(func() error { return rooms.fleet.Run(ctx) })
	g.Go(func() error { return rooms.public.Run(ctx) })
	g.Go(func() error { return rooms.console.Run(ctx) })
	g.Go(func() error {
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return ctx.Err()
		}
		if err := rooms.prepare(ctx); err != nil {
			return err
		}
		log.Info("Started", append(h.StartTimes(), "wireSeconds", wired.Sub(installed).Seconds(), "cachesSeconds", time.Since(wired).Seconds())...)
		return ready(h)
	})
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-h.Stopped():
			return errors.New("the hub has stopped")
		}
	})
	return g.Wait()
}

// openStore opens the database of the mirror.
func openStore(ctx context.Context, dsnFile, dataDir string, options ...store.Option) (*store.Store, error) {
	if dsnFile != "" {
		dsn, err := readDSN(dsnFile)
		if err != nil {
			return nil, err
		}
		db, err := store.OpenDSN(ctx, dsn, options...)
		if err != nil {
			return nil, fmt.Errorf("--mirror-dsn-file %s: %w", dsnFile, err)
		}
		return db, nil
	}
	dir := filepath.Join(dataDir, "mirror")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the mirror's directory: %w", err)
	}
	db, err := store.Open(ctx, dir, options...)
	if err != nil {
		return nil, fmt.Errorf("open mirror store: %w", err)
	}
	return db, nil
}

// mirrorKeys returns the keys for the data of Secrets in the mirror. If no file is given, it
// uses the one in the data directory, and creates it if missing.
func mirrorKeys(file, dataDir string, log logr.Logger) (*seal.Keys, error) {
	if file != "" {
		return readKeys(file)
	}
	file = filepath.Join(dataDir, "mirror-encryption.key")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := disk.WriteFile(file, 0o600, []byte(seal.New()+"\n")); err != nil {
			return nil, fmt.Errorf("make the key of the mirror's Secrets: %w", err)
		}
		log.Info("Made the key that encrypts data of Secrets in the mirror, where it is mirrored. Without it the data is read again from the clusters", "file", file)
	}
	return readKeys(file)
}

// readKeys reads keys from a file that only its owner may read.
func readKeys(file string) (*seal.Keys, error) {
	text, err := readPrivate("--mirror-encryption-key-file", file, "keys")
	if err != nil {
		return nil, err
	}
	keys, err := seal.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--mirror-encryption-key-file %s: %w", file, err)
	}
	return keys, nil
}

// readPrivate reads a file that a flag names. It returns an error if others than the owner may
// read it.
func readPrivate(flag, file, what string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s %s: it has %s, and its mode is %s: it must be a file that only its owner can read; run: chmod 600 %s",
			flag, file, what, info.Mode(), file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return text, nil
}

// readDSN reads a DSN, which contains a password, from a file that only its owner may read.
func readDSN(file string) (string, error) {
	dsn, err := readPrivate("--mirror-dsn-file", file, "a password")
	if err != nil {
		return "", err
	}
	if err := store.CheckDSN(string(dsn)); err != nil {
		return "", fmt.Errorf("--mirror-dsn-file %s: %w", file, err)
	}
	return string(dsn), nil
}

// rooms are the components that run needs after wire.
type rooms struct {
	registry *member.Registry
	fleet    *fleetapi.Server
	public   *listener.Listener
	console  *console.Console
	prepared []<-chan struct{} // closed by each component that writes on the hub at its start
}

// prepare waits until the components have written on the hub what they write at their start: a
// ready server without work writes nothing. A component whose writes fail retries them, and does
// not delay the others.
func (r *rooms) prepare(ctx context.Context) error {
	for _, done := range r.prepared {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// wire creates the components of the two data flows: intent to the members (template, placement,
// apply), and observation from them (mirror, status). The order is that of the flows. All cycles
// between components are closed here, by callbacks.
func wire(mgr manager.Manager, o Options, h *hub.Hub, db *store.Store, kept *records.Records, log logr.Logger) (*rooms, error) {
	var (
		m        *mirror.Mirror
		applier  *apply.Applier
		builder  *provision.Provisioner
		registry *member.Registry
	)
	public, err := listener.New(o.Public, listener.Serving(h.PublicServing()), log.WithName("public"))
	if err != nil {
		return nil, fmt.Errorf("create the public listener: %w", err)
	}
	agents, err := enrollment.Add(mgr, enrollment.Options{
		URL: public.URL(), Authorities: public.Authorities,
		Offer: func(ctx context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error {
			return registry.Offer(ctx, cluster, uid, c, redeemed)
		},
		Changed: func(cluster string) { registry.AgentsChanged(cluster) },
	})
	if err != nil {
		return nil, fmt.Errorf("add enrollment: %w", err)
	}
	for path, handler := range agents.Routes() {
		public.Handle(path, handler)
	}
	registry, err = member.Add(mgr, member.Options{
		HubID:            h.ID(),
		ProbeInterval:    o.Probes.Interval,
		ProbeTimeout:     o.Probes.Timeout,
		FailureThreshold: o.Probes.Failures,

		Tunnel:    agents.Gateway(),
		Fence:     h.Fence,
		Observe:   func(cluster string) member.Observation { return m.Observation(cluster) },
		Provision: func(ctx context.Context, c *clusterv1alpha1.Cluster) error { return builder.Provision(ctx, c) },
		// The order in which a cluster leaves.
		Departures: []member.Departure{
			{
				Name: "its workloads are left or deleted", Reason: clusterv1alpha1.ReasonLeavingWorkloads,
				Inside: func(ctx context.Context, c *member.Member) error { return applier.Leave(ctx, c) },
			},
			{
				Name: "its agents are told to go", Reason: clusterv1alpha1.ReasonForgetting,
				Outside: func(ctx context.Context, c *clusterv1alpha1.Cluster) error { return agents.Leave(ctx, c) },
			},
			{
				Name: "its hosts are undone, if the hub built it", Reason: clusterv1alpha1.ReasonUndoingHosts,
				Outside: func(ctx context.Context, c *clusterv1alpha1.Cluster) error { return builder.Dismantle(ctx, c) },
			},
			{
				Name: "its mirror is dropped", Reason: clusterv1alpha1.ReasonForgetting,
				Outside: func(_ context.Context, c *clusterv1alpha1.Cluster) error { return m.Drop(c.Name) }, //nolint:contextcheck // begun, it is finished
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("add member: %w", err)
	}
	builder, err = provision.Add(mgr, provision.Options{
		Settings: o.Lifecycle, DataDir: h.DataDir(), HubID: h.ID(), Refresh: registry.Refresh,
	})
	if err != nil {
		return nil, fmt.Errorf("add provision: %w", err)
	}
	mirrored, err := mirror.Select(o.MirrorResources)
	if err != nil {
		return nil, fmt.Errorf("--mirror-resources: %w", err)
	}
	m = mirror.New(db, registry, mirrored, log.WithName("mirror"))
	if err := m.Follow(context.Background(), mgr.GetCache()); err != nil {
		return nil, fmt.Errorf("add mirror: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(m.Start)); err != nil {
		return nil, fmt.Errorf("add mirror: %w", err)
	}
	templates, err := template.New(mgr)
	if err != nil {
		return nil, fmt.Errorf("add template: %w", err)
	}
	bindings, err := binding.NewCache(context.Background(), mgr.GetCache())
	if err != nil {
		return nil, fmt.Errorf("add bindings: %w", err)
	}
	clusters, err := fleet.NewCache(
		logr.NewContext(context.Background(), log), mgr.GetCache(), fleet.Members{Registry: registry, Mirror: m}, o.DefaultClusterAccess,
	)
	if err != nil {
		return nil, fmt.Errorf("add fleet: %w", err)
	}
	placer, err := placement.Add(mgr, placement.Options{
		Bindings: bindings, Templates: templates, Fleet: clusters, Registry: registry, Mirror: m,
		Hub:     interpreter.Hub{Embedded: o.Hub.Kubeconfig == "", Webhooks: o.Hub.AdmissionWebhooks},
		Records: kept, Overrides: func(o *unstructured.Unstructured) []records.Policy { return applier.Overrides(o) },
		Refused: func(b types.UID, cluster string) int64 { return applier.Refused(b, cluster) },
	})
	if err != nil {
		return nil, fmt.Errorf("add placement: %w", err)
	}
	applier, err = apply.Add(mgr, apply.Options{
		Bindings: bindings, Registry: registry, Mirror: m, Templates: templates,
		Decisions: placer, Records: kept, HubID: h.ID(), PodSecurity: o.PodSecurity,
		Namespaces: o.Namespaces, Fences: fleet.Fences{Cache: clusters},
	})
	if err != nil {
		return nil, fmt.Errorf("add apply: %w", err)
	}
	applier.Subscribe(placer.Answered)
	if err := status.Add(mgr, status.Options{
		Bindings: bindings, Placement: placer, Applier: applier, Mirror: m, Registry: registry, Templates: templates,
		Recorded: applier.Recorded,
	}); err != nil {
		return nil, fmt.Errorf("add status: %w", err)
	}
	// An existing API server may run workload controllers, which keep revisions themselves.
	if o.Hub.Kubeconfig == "" {
		if err := revision.Add(mgr, revision.Options{Bindings: bindings, Templates: templates, Records: kept}); err != nil {
			return nil, fmt.Errorf("add revision: %w", err)
		}
	}
	if err := rebalance.Add(mgr, bindings); err != nil {
		return nil, fmt.Errorf("add rebalance: %w", err)
	}
	if err := website.Add(mgr); err != nil {
		return nil, fmt.Errorf("add website: %w", err)
	}
	reader, err := client.New(h.Config(), client.Options{Scheme: hub.Scheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("create client of the hub: %w", err)
	}
	var server *fleetapi.Server
	page, err := console.New(console.Options{
		Hub: h.Config(), URL: public.URL(), Version: o.Version, Log: log.WithName("console"),
		SessionsFile: filepath.Join(h.DataDir(), "console-sessions.json"), HubID: h.ID(),
		Authorize: func(ctx context.Context, what authorizationv1.ResourceAttributes) error {
			return server.Authorize(ctx, what)
		},
		Live: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { server.Live().ServeHTTP(w, r) }),
	})
	if err != nil {
		return nil, fmt.Errorf("create the console: %w", err)
	}
	public.Handle(console.Path, page)
	public.Handle("/{$}", http.RedirectHandler(console.Path, http.StatusFound))
	serving := h.FleetServing()
	server, err = fleetapi.New(fleetapi.Options{
		Hub: h.Config(), Address: serving.Address, CertFile: serving.CertFile, KeyFile: serving.KeyFile,
		Registry: registry, Mirror: m, Store: db, Fleet: clusters, Informers: mgr.GetCache(), RBACOnly: o.Hub.Kubeconfig == "",
		Explainer: explanation.New(explanation.Options{
			Placement: placer, Applier: applier, Bindings: bindings, Fleet: clusters, Registry: registry, Mirror: m, Store: db, Records: kept,
			Hub: reader, Mapper: mgr.GetRESTMapper(),
		}),
		ConsoleLink: page.Link,
	})
	if err != nil {
		return nil, fmt.Errorf("create fleet API server: %w", err)
	}
	return &rooms{
		registry: registry, fleet: server, public: public, console: page,
		prepared: []<-chan struct{}{agents.Prepared(), registry.Prepared(), applier.Prepared()},
	}, nil
}

// addressed returns the names, sorted, of the clusters that have an address and are not being
// deleted.
func addressed(ctx context.Context, hubClient client.Reader) ([]string, error) {
	var clusters clusterv1alpha1.ClusterList
	// the objects are only read
	if err := hubClient.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(clusters.Items))
	for i := range clusters.Items {
		if c := &clusters.Items[i]; c.DeletionTimestamp.IsZero() && c.Spec.APIEndpoint != "" {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// keepKubeconfig keeps a context for each member in the hub's kubeconfig. It lists the members
// on the hub, because the registry learns of them one by one after a start. After each update it
// waits for ten times the duration of the update, so that a thousand clusters that join do not
// cause constant updates.
func keepKubeconfig(ctx context.Context, h *hub.Hub, hubClient client.Reader, came <-chan struct{}, log logr.Logger) {
	var written []string
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-came:
		}
		start := time.Now()
		if names, err := addressed(ctx, hubClient); err != nil {
			if ctx.Err() == nil {
				log.Error(err, "list clusters for the kubeconfig")
			}
		} else if written == nil || !slices.Equal(names, written) {
			written = names
			if err := h.WriteKubeconfig(names); err != nil {
				log.Error(err, "write kubeconfig")
				written = nil // the next event retries it
			}
		}
		rest.Reset(10 * time.Since(start))
	}
}
