package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/console"
	"orrery.dev/orrery/internal/enrollment"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/fleetapi"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/listener"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/provision"
	"orrery.dev/orrery/internal/rebalance"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/revision"
	"orrery.dev/orrery/internal/status"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/website"
)

// server has what its components create. The start of a component sets the field of its name, and
// no later code sets that field. start reads the fields only of components that it requires. run,
// stop and functions that start passes on may also read those of components that it calls.
// TestComponentsNameWhatTheyUse checks that.
type server struct {
	options  Options
	mirrored *clusterv1alpha1.Mirror // from options.MirrorResources
	history  store.History           // from options.MirrorHistory
	log      logr.Logger
	onReady  func(*hub.Hub) error

	hub        *hub.Hub
	store      *store.Store
	records    *records.Records
	manager    manager.Manager
	listener   *listener.Listener
	enrollment *enrollment.Enrollment
	member     *member.Registry
	provision  *provision.Provisioner
	mirror     *mirror.Mirror
	template   *template.Cache
	binding    *binding.Cache
	fleet      *fleet.Cache
	failover   *failover.Keeper
	placement  *placement.Controller
	apply      *apply.Applier
	console    *console.Console
	fleetapi   *fleetapi.Server

	endHub    context.CancelFunc
	installed time.Time     // when the hub was ready
	came      chan struct{} // has a value when a cluster joined or left
}

// components lists everything that runs. The controllers follow the two data flows: from templates
// on the hub to the members (template, placement, apply), and from the members to the hub (mirror,
// status). They run in the manager. Each component that writes to the hub or to members requires
// the hub, directly or not, whose fence refuses the writes of a server without the Lease.
func (s *server) components() []component {
	return []component{
		{name: "hub", start: s.startHub, run: s.watchHub, stop: s.stopHub},
		{name: "store", requires: []string{"hub"}, start: s.startStore, stop: s.stopStore},
		{name: "records", requires: []string{"hub"}, start: s.startRecords, stop: s.stopRecords},
		{name: "manager", requires: []string{"hub", "records"}, start: atOnce(s.startManager), run: s.runManager},
		{name: "listener", requires: []string{"hub"}, start: atOnce(s.startListener), run: s.runListener},
		{name: "enrollment", requires: []string{"manager", "listener"}, calls: []string{"member"}, start: atOnce(s.startEnrollment)},
		{name: "member", requires: []string{"hub", "manager", "enrollment"}, calls: []string{"provision", "mirror", "apply"}, start: atOnce(s.startMember)},
		{name: "provision", requires: []string{"hub", "manager", "member"}, start: atOnce(s.startProvision)},
		{name: "mirror", requires: []string{"store", "manager", "member"}, start: s.startMirror},
		{name: "template", requires: []string{"manager"}, start: atOnce(s.startTemplate)},
		{name: "binding", requires: []string{"manager"}, start: s.startBinding},
		{name: "fleet", requires: []string{"manager", "member", "mirror"}, start: s.startFleet},
		{name: "failover", requires: []string{"manager", "fleet"}, start: atOnce(s.startFailover)},
		{name: "placement", requires: []string{"records", "manager", "member", "mirror", "template", "binding", "fleet", "failover"}, calls: []string{"apply"}, start: atOnce(s.startPlacement)},
		{name: "apply", requires: []string{"hub", "records", "manager", "member", "mirror", "template", "binding", "fleet", "placement"}, start: atOnce(s.startApply)},
		{name: "status", requires: []string{"manager", "member", "mirror", "template", "binding", "placement", "apply"}, start: atOnce(s.startStatus)},
		{name: "revision", requires: []string{"records", "manager", "template", "binding"}, start: atOnce(s.startRevision)},
		{name: "rebalance", requires: []string{"manager", "binding"}, start: atOnce(s.startRebalance)},
		{name: "website", requires: []string{"manager"}, start: atOnce(s.startWebsite)},
		{name: "console", requires: []string{"hub", "listener"}, calls: []string{"fleetapi"}, start: atOnce(s.startConsole), run: s.runConsole},
		{name: "fleetapi", requires: []string{"hub", "store", "records", "manager", "member", "mirror", "binding", "fleet", "placement", "apply", "console"}, start: atOnce(s.startFleetAPI), run: s.runFleetAPI},
		{name: "kubeconfig", requires: []string{"hub", "manager", "member"}, start: atOnce(s.startKubeconfig), run: s.runKubeconfig},
		{name: "ready", requires: []string{"hub", "manager", "enrollment", "member", "failover", "apply"}, run: s.runReady},
	}
}

// startHub starts the hub with a context of its own, because the hub stops after all other
// components. If ctx ends first, it logs that, and the error.
func (s *server) startHub(ctx context.Context) (err error) {
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, end)
	s.hub, err = hub.Start(own, s.options.Hub, s.log.WithName("hub"))
	starting()
	if err != nil {
		end()
		if ctx.Err() != nil {
			s.log.Info("Stopped before the hub was ready", "reason", err.Error())
		}
		return err
	}
	s.endHub, s.installed = end, time.Now()
	return nil
}

// watchHub ends all runs when the hub has stopped by itself, such as after the loss of the Lease.
func (s *server) watchHub(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.hub.Stopped():
		return errors.New("the hub has stopped")
	}
}

func (s *server) stopHub() error {
	s.endHub()
	return s.hub.Wait()
}

func (s *server) startStore(ctx context.Context) error {
	keys, err := mirrorKeys(s.options.MirrorKeyFile, s.hub.DataDir(), s.log)
	if err != nil {
		return err
	}
	s.store, err = openStore(ctx, s.options.MirrorDSNFile, s.hub.DataDir(), store.Sealed(keys), store.ForHub(s.hub.ID()))
	if err != nil {
		return err
	}
	s.store.KeepHistory(s.history)
	return nil
}

func (s *server) stopStore() error {
	_ = s.store.Close() // every write was committed when it returned
	return nil
}

func (s *server) startRecords(ctx context.Context) (err error) {
	dir := filepath.Join(s.hub.DataDir(), "records")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the records' directory: %w", err)
	}
	s.records, err = records.Open(ctx, dir, s.log.WithName("records"))
	return err
}

func (s *server) stopRecords() error {
	_ = s.records.Close() // it has logged what it could not write
	return nil
}

// startManager creates the manager, which runs the controllers, the caches of the hub, the mirror
// and the records.
func (s *server) startManager() (err error) {
	s.manager, err = ctrl.NewManager(s.hub.Config(), ctrl.Options{
		Scheme:  hub.Scheme(),
		Logger:  s.log,
		Metrics: metricsserver.Options{BindAddress: "0"}, // the fleet server serves the metrics
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer:      hub.NewInformer,
			ByObject: map[client.Object]cache.ByObject{
				&lifecyclev1alpha1.Operation{}: {Transform: provision.Trim},
				// The server watches two ConfigMaps: apply.RestoreConfigMap and failover.ConfigMapName. Beside
				// them the namespace has few: that with the authorities of the hub, and those of enrollment.
				&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{clusterv1alpha1.SecretNamespace: {}}},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		// Another server of the hub is excluded before the manager exists: by the lock of the data
		// directory, or by a Lease.
		LeaderElection:          false,
		PprofBindAddress:        s.options.ProfilingAddress,
		GracefulShutdownTimeout: new(5 * time.Second),
	})
	if err != nil {
		return err
	}
	return s.manager.Add(s.records)
}

func (s *server) runManager(ctx context.Context) error { return s.manager.Start(ctx) }

func (s *server) startListener() (err error) {
	s.listener, err = listener.New(s.options.Public, listener.Serving(s.hub.PublicServing()), s.log.WithName("public"))
	return err
}

func (s *server) runListener(ctx context.Context) error { return s.listener.Run(ctx) }

func (s *server) startEnrollment() (err error) {
	s.enrollment, err = enrollment.Add(s.manager, enrollment.Options{
		URL: s.listener.URL(), Authorities: s.listener.Authorities,
		Offer: func(ctx context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error {
			return s.member.Offer(ctx, cluster, uid, c, redeemed)
		},
		Changed: func(cluster string) { s.member.AgentsChanged(cluster) },
	})
	if err != nil {
		return err
	}
	for path, handler := range s.enrollment.Routes() {
		s.listener.Handle(path, handler)
	}
	return nil
}

func (s *server) startMember() (err error) {
	probes := s.options.Probes
	s.member, err = member.Add(s.manager, member.Options{
		HubID:            s.hub.ID(),
		ProbeInterval:    probes.Interval,
		ProbeTimeout:     probes.Timeout,
		FailureThreshold: probes.Failures,

		Tunnel:    s.enrollment.Gateway(),
		Fence:     s.hub.Fence,
		Observe:   func(cluster string) member.Observation { return s.mirror.Observation(cluster) },
		Provision: func(ctx context.Context, c *clusterv1alpha1.Cluster) error { return s.provision.Provision(ctx, c) },
		// A cluster leaves in the order of these phases.
		Departures: []member.Departure{
			{
				Name: "its workloads are left or deleted", Reason: clusterv1alpha1.ReasonLeavingWorkloads,
				Inside: func(ctx context.Context, c *member.Member) error { return s.apply.Leave(ctx, c) },
			},
			{
				Name: "its agents are told to go", Reason: clusterv1alpha1.ReasonForgetting,
				Outside: func(ctx context.Context, c *clusterv1alpha1.Cluster) error { return s.enrollment.Leave(ctx, c) },
			},
			{
				Name: "its hosts are undone, if the hub built it", Reason: clusterv1alpha1.ReasonUndoingHosts,
				Outside: func(ctx context.Context, c *clusterv1alpha1.Cluster) error { return s.provision.Dismantle(ctx, c) },
			},
			{
				Name: "its mirror is dropped", Reason: clusterv1alpha1.ReasonForgetting,
				Outside: func(_ context.Context, c *clusterv1alpha1.Cluster) error { return s.mirror.Drop(c.Name) }, //nolint:contextcheck // begun, it is finished
			},
		},
	})
	return err
}

func (s *server) startProvision() (err error) {
	s.provision, err = provision.Add(s.manager, provision.Options{
		Settings: s.options.Lifecycle, DataDir: s.hub.DataDir(), HubID: s.hub.ID(), Refresh: s.member.Refresh,
	})
	return err
}

func (s *server) startMirror(ctx context.Context) error {
	s.mirror = mirror.New(s.store, s.member, s.mirrored, s.log.WithName("mirror"))
	if err := s.mirror.Follow(ctx, s.manager.GetCache()); err != nil {
		return err
	}
	return s.manager.Add(manager.RunnableFunc(s.mirror.Start))
}

func (s *server) startTemplate() (err error) {
	s.template, err = template.New(s.manager)
	return err
}

func (s *server) startBinding(ctx context.Context) (err error) {
	s.binding, err = binding.NewCache(ctx, s.manager.GetCache())
	return err
}

func (s *server) startFleet(ctx context.Context) (err error) {
	s.fleet, err = fleet.NewCache(ctx, s.manager.GetCache(), fleet.Members{Registry: s.member, Mirror: s.mirror}, s.options.DefaultClusterAccess)
	return err
}

func (s *server) startFailover() (err error) {
	s.failover, err = failover.Add(s.manager, failover.Options{Fleet: s.fleet, Limits: s.options.Failover.OrDefault()})
	return err
}

func (s *server) startPlacement() (err error) {
	s.placement, err = placement.Add(s.manager, placement.Options{
		Bindings: s.binding, Templates: s.template, Fleet: s.fleet, Registry: s.member, Mirror: s.mirror,
		Hub:     interpreter.Hub{Embedded: s.embedded(), Webhooks: s.options.Hub.AdmissionWebhooks},
		Records: s.records, Overrides: func(o *unstructured.Unstructured) []records.Policy { return s.apply.Overrides(o) },
		Refused:   func(b types.UID, cluster string) int64 { return s.apply.Refused(b, cluster) },
		Evictions: s.failover.Queue(),
	})
	return err
}

func (s *server) startApply() (err error) {
	s.apply, err = apply.Add(s.manager, apply.Options{
		Bindings: s.binding, Registry: s.member, Mirror: s.mirror, Templates: s.template,
		Decisions: s.placement, Records: s.records, HubID: s.hub.ID(), PodSecurity: s.options.PodSecurity,
		Namespaces: s.options.Namespaces, Fences: fleet.Fences{Cache: s.fleet},
	})
	if err != nil {
		return err
	}
	s.apply.Subscribe(s.placement.Answered)
	return nil
}

func (s *server) startStatus() error {
	return status.Add(s.manager, status.Options{
		Bindings: s.binding, Placement: s.placement, Applier: s.apply, Mirror: s.mirror, Registry: s.member, Templates: s.template,
		Recorded: s.apply.Recorded,
	})
}

// startRevision starts nothing with an existing API server. That may run workload controllers,
// which keep revisions themselves.
func (s *server) startRevision() error {
	if !s.embedded() {
		return nil
	}
	return revision.Add(s.manager, revision.Options{Bindings: s.binding, Templates: s.template, Records: s.records})
}

func (s *server) startRebalance() error { return rebalance.Add(s.manager, s.binding) }

func (s *server) startWebsite() error { return website.Add(s.manager) }

func (s *server) startConsole() (err error) {
	s.console, err = console.New(console.Options{
		Hub: s.hub.Config(), URL: s.listener.URL(), Version: s.options.Version, Log: s.log.WithName("console"),
		SessionsFile: filepath.Join(s.hub.DataDir(), "console-sessions.json"), HubID: s.hub.ID(),
		Authorize: func(ctx context.Context, what authorizationv1.ResourceAttributes) error {
			return s.fleetapi.Authorize(ctx, what)
		},
		Live: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fleetapi.Live().ServeHTTP(w, r) }),
	})
	if err != nil {
		return err
	}
	s.listener.Handle(console.Path, s.console)
	s.listener.Handle("/{$}", http.RedirectHandler(console.Path, http.StatusFound))
	return nil
}

func (s *server) runConsole(ctx context.Context) error { return s.console.Run(ctx) }

func (s *server) startFleetAPI() error {
	reader, err := client.New(s.hub.Config(), client.Options{Scheme: hub.Scheme(), Mapper: s.manager.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("create client of the hub: %w", err)
	}
	serving := s.hub.FleetServing()
	s.fleetapi, err = fleetapi.New(fleetapi.Options{
		Hub: s.hub.Config(), Address: serving.Address, CertFile: serving.CertFile, KeyFile: serving.KeyFile,
		Registry: s.member, Mirror: s.mirror, Store: s.store, Fleet: s.fleet, Informers: s.manager.GetCache(), RBACOnly: s.embedded(),
		Explainer: explanation.New(explanation.Options{
			Placement: s.placement, Applier: s.apply, Bindings: s.binding, Fleet: s.fleet, Registry: s.member, Mirror: s.mirror,
			Store: s.store, Records: s.records, Hub: reader, Mapper: s.manager.GetRESTMapper(),
		}),
		ConsoleLink: s.console.Link,
	})
	return err
}

func (s *server) runFleetAPI(ctx context.Context) error { return s.fleetapi.Run(ctx) }

func (s *server) startKubeconfig() error {
	s.came = make(chan struct{}, 1)
	s.member.Subscribe(func(e member.Event) {
		if e.Type == member.Changed {
			return
		}
		select {
		case s.came <- struct{}{}:
		default: // an update of the kubeconfig is pending already
		}
	})
	return nil
}

func (s *server) runKubeconfig(ctx context.Context) error {
	keepKubeconfig(ctx, s.hub.WriteKubeconfig, s.manager.GetClient(), s.came, s.log)
	return nil
}

// runReady reports that the server is ready, when the caches are synced and each component has
// tried to write on the hub what it writes at its start. So a ready server without work writes
// nothing. A component whose writes fail retries them, and does not delay runReady.
func (s *server) runReady(ctx context.Context) error {
	wired := time.Now()
	if !s.manager.GetCache().WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	for _, prepared := range []<-chan struct{}{s.enrollment.Prepared(), s.member.Prepared(), s.failover.Prepared(), s.apply.Prepared()} {
		select {
		case <-prepared:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.log.Info("Started", append(s.hub.StartTimes(), "wireSeconds", wired.Sub(s.installed).Seconds(), "cachesSeconds", time.Since(wired).Seconds())...)
	return s.onReady(s.hub)
}

// atOnce returns a start that calls create. create does not wait, so it gets no context.
func atOnce(create func() error) func(context.Context) error {
	return func(context.Context) error { return create() }
}

// embedded reports whether the server starts the hub's API server. False: it uses an existing one.
func (s *server) embedded() bool { return s.options.Hub.Kubeconfig == "" }
