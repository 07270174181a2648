// Package hub runs the API server of the control plane: etcd, kube-apiserver and
// kube-controller-manager as supervised child processes. It can also use an existing API server
// given by a kubeconfig. In both cases it installs Orrery's kinds, roles and aggregated API, and
// provides the credentials for it.
//
// No scheduler and no workload controllers run on the hub: the objects of users there are
// templates, and never become pods.
package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/process"
)

// startTimeout limits the start of a hub, without the wait for the Lease. It is long, because a
// big etcd may have to be read from a slow disk.
const startTimeout = 3 * time.Minute

// userAgent is the User-Agent header of this server's requests to the hub's API server.
const userAgent = "orrery"

// Hub is a running hub, which is the API server with Orrery's kinds. Start returns it. Several
// goroutines may use its exported methods.
type Hub struct {
	options Options
	dir     dataDir
	ports   ports // reserved until the hub has stopped
	keys    keyring
	config  *rest.Config
	outage  *outage // nil until the API server has answered
	fence   *fence  // nil for an embedded hub
	id      string
	times   *stopwatch

	kubeconfigMu sync.Mutex // protects the file and members
	members      []string

	stopped chan struct{}
	err     error // why it stopped; valid once stopped is closed
}

// Serving is the address, HOST:PORT, and the certificate of a listener. CertFile and KeyFile are
// paths of the same file. The file is replaced before the certificate expires, so the listener must
// read it again when it changes. CAFile is the path of the certificate's authority.
type Serving struct{ Address, CertFile, KeyFile, CAFile string }

// Start starts the hub: etcd, the API server and kube-controller-manager. With o.Kubeconfig it
// instead connects to an existing API server. It then first waits, without a time limit, until no
// other server holds the Lease. Start returns when the API server answers and Orrery's kinds are
// installed.
//
// The hub runs until ctx ends or a part of it fails; see Stopped and Wait. Start locks the data
// directory, so that a second Start with the same directory is an error. After an error everything
// has stopped.
func Start(ctx context.Context, o Options, log logr.Logger) (*Hub, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	d := dataDir(o.DataDir)
	lock, err := d.open()
	if err != nil {
		return nil, err
	}
	h := &Hub{options: o, dir: d, times: newStopwatch(), stopped: make(chan struct{})}
	ctx, stop := context.WithCancel(ctx)
	// Background functions end when ctx ends. If one fails, ctx ends.
	background, running := errgroup.WithContext(ctx)
	err = h.start(running, background, log)
	if err != nil {
		stop()
	}
	go func() {
		defer stop()
		h.err = errors.Join(background.Wait(), h.ports.release())
		disk.Unlock(lock)
		close(h.stopped)
	}()
	if err != nil {
		<-h.stopped
		return nil, err
	}
	return h, nil
}

// start does the work of Start, and sets the fields of h. ctx ends when the hub stops. start adds
// functions that run until then to background.
func (h *Hub) start(ctx context.Context, background *errgroup.Group, log logr.Logger) error {
	o, d := &h.options, h.dir
	chosen, err := choosePorts(o, d)
	if err != nil {
		return err
	}
	h.ports = chosen
	if err := chosen.keep(d); err != nil {
		return err
	}
	h.keys = keyring{dir: d, leaves: leaves(*o), now: o.now}
	if _, err := h.keys.ensure(); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = errors.Join(
		checkPort(starting, o.fleetAddress(), o.FleetPort, "--fleet-port"),
		checkPort(starting, o.PublicAddress, o.PublicPort, "--public-address"),
	)
	if err != nil {
		return err
	}
	h.ports.reserveKept(o)
	if o.external() {
		if err := h.connect(starting); err != nil {
			return err
		}
		if err := checkSchema(starting, h.config); err != nil {
			return err
		}
		// The wait for the Lease has no time limit, since another server may work on this hub.
		h.times.ended("connectSeconds", time.Now())
		if err := h.takeLease(ctx, background, log); err != nil {
			return err
		}
		h.times.ended("leaseSeconds", time.Now())
		cancel()
		starting, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	} else if err := h.startProcesses(ctx, starting, background, log); err != nil {
		return err
	}
	if h.id, err = install(starting, h.Config(), *o, d, log); err != nil {
		return err
	}
	h.times.ended("installSeconds", time.Now())
	h.outage = &outage{ctx: ctx, config: rest.CopyConfig(h.config), log: log}
	old, err := readKubeconfig(d.kubeconfig())
	if err != nil {
		return err
	}
	if err := h.WriteKubeconfig(knownMembers(old)); err != nil {
		return err
	}
	if !o.external() {
		background.Go(func() error { return h.finalizeNamespaces(ctx, log) })
	}
	background.Go(func() error {
		h.renewCertificates(ctx, log)
		return nil
	})
	return nil
}

// startProcesses starts etcd, the API server and kube-controller-manager in background. It returns
// when they are ready and every Secret is encrypted. It sets h.config. The processes run until ctx
// ends; the end of starting only ends the wait.
func (h *Hub) startProcesses(ctx, starting context.Context, background *errgroup.Group, log logr.Logger) error {
	o, d := h.options, h.dir
	err := errors.Join(
		checkPort(starting, o.BindAddress, o.SecurePort, "--secure-port"),
		d.checkSpace(),
	)
	if err != nil {
		return err
	}
	err = errors.Join(
		os.MkdirAll(d.etcd(), 0o700),
		d.ensureServiceAccountKey(),
		d.writeControllerManagerKubeconfig(o.serverURL()),
	)
	if err != nil {
		return fmt.Errorf("prepare data directory: %w", err)
	}
	var trouble trouble
	rewrite := false
	s, err := process.New(plan(o), process.Options{
		Dir: d.processes(), Log: log,
		OnEvent: func(e process.Event) {
			trouble.note(e)
			h.times.note(e)
		},
		OnFirstReady: func(_ context.Context, name string) (err error) {
			if name == etcdProcess {
				rewrite, err = h.prepareEncryption(starting, log)
			}
			return err
		},
	})
	if err != nil {
		return fmt.Errorf("plan the hub's processes: %w", err)
	}
	failed := make(chan error, 1)
	background.Go(func() error {
		err := s.Run(ctx)
		failed <- err
		return err
	})
	h.config = h.access()
	select {
	case <-s.Ready():
		if rewrite {
			return h.encryptSecrets(starting, log)
		}
		return nil
	case err := <-failed:
		if err == nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("start the hub's processes: %w", err)
	case <-starting.Done():
		return fmt.Errorf("wait until the hub's processes are ready (their logs are in %s): %w%s", d.processes(), context.Cause(starting), trouble.last())
	}
}

// access returns the configuration with which this server connects to the API server that it has
// started.
func (h *Hub) access() *rest.Config {
	return &rest.Config{
		Host: h.options.serverURL(),
		TLSClientConfig: rest.TLSClientConfig{
			// As paths, because clients then read changed files again.
			CAFile: h.dir.authority(serverCA), CertFile: h.dir.leaf(orreryCert), KeyFile: h.dir.leaf(orreryCert),
		},
	}
}

// trouble records the last problem of the hub's processes, for the error if they do not become
// ready in time.
type trouble struct {
	mu   sync.Mutex
	text string
}

// note records an event of a process if the process ended or is slow. It ignores other events.
func (t *trouble) note(e process.Event) {
	if e.Type == process.EventSlow || e.Type == process.EventExited {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.text = fmt.Sprintf("; %s: %s", e.Process, e.Message)
	}
}

// last returns the last problem, with a semicolon before it, as the end of an error message. It is
// "" if there was none.
func (t *trouble) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text
}

// renewCertificates replaces certificates that expire soon, until ctx ends, and then writes the
// kubeconfig again. Errors are logged. Certificates that could not be renewed, and a kubeconfig
// that could not be written, are tried again after renewalInterval. All users of a certificate read
// its file again, so that nothing must be restarted.
func (h *Hub) renewCertificates(ctx context.Context, log logr.Logger) {
	tick := time.NewTicker(h.options.renewalInterval)
	defer tick.Stop()
	stale := false // the kubeconfig may have an earlier certificate
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		names, err := h.keys.ensure()
		if err != nil {
			log.Error(err, "Certificates not renewed")
		}
		if len(names) > 0 {
			log.Info("Renewed certificates", "names", names)
			stale = true
		}
		if !stale {
			continue
		}
		h.kubeconfigMu.Lock()
		err = h.writeKubeconfig()
		h.kubeconfigMu.Unlock()
		if stale = err != nil; stale {
			log.Error(err, "Kubeconfig keeps the old certificate until it can be written, which is tried again", "after", h.options.renewalInterval)
		}
	}
}

// Config returns a new client configuration for the hub's API server, with the rights of an
// administrator and without client-side rate limit. It has no timeout, because that would also end
// watches. While the API server does not answer, requests wait until their context ends. If several
// servers may share the hub (Kubeconfig), requests that may write fail while this server does not
// hold the Lease.
func (h *Hub) Config() *rest.Config {
	c := rest.CopyConfig(h.config)
	c.QPS = -1
	c.UserAgent = userAgent
	c.Wrap(h.fence.wrap)
	if h.outage != nil {
		c.Wrap(h.outage.wrap)
	}
	return c
}

// Fence wraps a transport to a member. If several servers may share the hub (Kubeconfig), requests
// that may write fail while this server does not hold the Lease. For a hub that this server has
// started, Fence returns rt itself.
func (h *Hub) Fence(rt http.RoundTripper) http.RoundTripper { return h.fence.wrap(rt) }

// ID returns the ID of the hub: the UID of its namespace kube-system.
func (h *Hub) ID() string { return h.id }

// DataDir returns the directory of everything that the hub stores, as an absolute path.
func (h *Hub) DataDir() string { return string(h.dir) }

// KubeconfigPath returns the path of the kubeconfig for the user, which WriteKubeconfig writes.
func (h *Hub) KubeconfigPath() string { return h.dir.kubeconfig() }

// FleetServing returns the address and the certificate with which the aggregated fleet API must be
// served.
func (h *Hub) FleetServing() Serving {
	return h.serving(h.options.fleetAddress(), h.options.FleetPort, fleetCert)
}

// PublicServing returns the address and the certificate of the public listener, for agents and
// browsers. The options of the listener may name another certificate, which is then used instead.
func (h *Hub) PublicServing() Serving {
	return h.serving(h.options.PublicAddress, h.options.PublicPort, publicCert)
}

// serving returns the Serving for an address and a port, with the certificate named leaf.
func (h *Hub) serving(address string, port int, leaf string) Serving {
	return Serving{
		Address: net.JoinHostPort(address, strconv.Itoa(port)), CertFile: h.dir.leaf(leaf), KeyFile: h.dir.leaf(leaf), CAFile: h.dir.authority(serverCA),
	}
}

// Stopped returns a channel that is closed when all parts of the hub have stopped, after the end of
// Start's ctx or after an error. Wait then returns the error.
func (h *Hub) Stopped() <-chan struct{} { return h.stopped }

// Wait waits until all parts of the hub have stopped, and returns the error that stopped it. It is
// nil if Start's ctx has ended and everything could be stopped.
func (h *Hub) Wait() error {
	<-h.stopped
	return h.err
}
