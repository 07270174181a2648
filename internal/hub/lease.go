package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// leaseName is the Lease of the one server that works on an existing API server. An embedded hub
// needs no Lease: the lock of its data directory excludes a second server, and no renewals need
// be written.
const leaseName = "orrery-server"

// LeaseTimes are the times of the Lease that excludes a second server of an existing API server.
// The zero value is DefaultLeaseTimes.
type LeaseTimes struct {
	// Duration is how long a Lease is valid that its server does not renew. Another server takes
	// the Lease at most two retry periods and their jitter later.
	Duration time.Duration
	// RenewDeadline is how long the holder tries to renew the Lease before it logs that it
	// cannot.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two attempts to renew or to take the Lease.
	RetryPeriod time.Duration
}

// DefaultLeaseTimes are the defaults of the flags.
var DefaultLeaseTimes = LeaseTimes{Duration: 12 * time.Second, RenewDeadline: 8 * time.Second, RetryPeriod: 2 * time.Second} //nolint:gochecknoglobals // a constant

// Limits of validate.
const (
	minLeaseDuration = 2 * time.Second
	maxLeaseDuration = 10 * time.Minute
	minRenewDeadline = time.Second // a request to renew the Lease has half of it
	minRetryPeriod   = 200 * time.Millisecond
)

func (l *LeaseTimes) addFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&l.Duration, "lease-duration", DefaultLeaseTimes.Duration,
		"with --kubeconfig, how long the Lease of a server that does not renew it stays its own, in whole seconds; shorter: another server takes over sooner, for more writes to the API server")
	fs.DurationVar(&l.RenewDeadline, "lease-renew-deadline", DefaultLeaseTimes.RenewDeadline,
		"with --kubeconfig, how long a server tries to renew its Lease before it says that it cannot; at least one --lease-retry-period shorter than --lease-duration")
	fs.DurationVar(&l.RetryPeriod, "lease-retry-period", DefaultLeaseTimes.RetryPeriod,
		"with --kubeconfig, time between two tries to renew or to take the Lease; each is a request to the API server")
}

func (l *LeaseTimes) config(lock resourcelock.Interface, callbacks leaderelection.LeaderCallbacks) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: lock, Callbacks: callbacks, ReleaseOnCancel: true, Name: leaseName,
		LeaseDuration: l.Duration, RenewDeadline: l.RenewDeadline, RetryPeriod: l.RetryPeriod,
	}
}

func (l *LeaseTimes) orDefault() LeaseTimes { return cmp.Or(*l, DefaultLeaseTimes) }

// validate returns all errors in the values of the flags. external is true if there is a Lease.
// With all accepted values, a server stops writing before another takes its Lease: the fence
// counts from the time when a renewal was sent, and other servers count the seconds of the Lease
// from the time when they have seen the renewal.
func (l *LeaseTimes) validate(external bool) error {
	set := l.orDefault()
	var errs []error
	if !external {
		for _, f := range []struct {
			name           string
			value, initial time.Duration
		}{
			{"--lease-duration", set.Duration, DefaultLeaseTimes.Duration},
			{"--lease-renew-deadline", set.RenewDeadline, DefaultLeaseTimes.RenewDeadline},
			{"--lease-retry-period", set.RetryPeriod, DefaultLeaseTimes.RetryPeriod},
		} {
			if f.value != f.initial {
				errs = append(errs, fmt.Errorf("%s %s: works only with --kubeconfig; the hub's own API server has no Lease, because the lock of the data directory keeps a second server away; leave the flag out", f.name, f.value))
			}
		}
		return errors.Join(errs...)
	}
	if set.RetryPeriod < minRetryPeriod {
		errs = append(errs, fmt.Errorf("--lease-retry-period %s: is less than %s; each try is a request, and the holder's is a write, to the API server; set it to %s or more",
			set.RetryPeriod, minRetryPeriod, minRetryPeriod))
	}
	// client-go requires a deadline longer than a period with its jitter.
	if set.RenewDeadline < minRenewDeadline {
		errs = append(errs, fmt.Errorf("--lease-renew-deadline %s: is less than %s; a request to renew the Lease has half of that time, and would often end before the API server answers; set it to %s or more",
			set.RenewDeadline, minRenewDeadline, minRenewDeadline))
	} else if jittered := time.Duration(leaderelection.JitterFactor * float64(set.RetryPeriod)); set.RenewDeadline <= jittered {
		errs = append(errs, fmt.Errorf("--lease-renew-deadline %s: is not more than %s, which is --lease-retry-period %s times %.1f; the server would give up before its second try; "+
			"raise --lease-renew-deadline or lower --lease-retry-period", set.RenewDeadline, jittered, set.RetryPeriod, leaderelection.JitterFactor))
	}
	switch {
	case set.Duration < minLeaseDuration || set.Duration > maxLeaseDuration:
		errs = append(errs, fmt.Errorf("--lease-duration %s: want %s to %s; a shorter Lease ends whenever the server or the API server pauses, and after a longer one of a server that died no server works for long",
			set.Duration, minLeaseDuration, maxLeaseDuration))
	case set.Duration%time.Second != 0:
		// Another server would take the Lease at the end of the whole second, and this one would
		// write until the end of the fraction.
		errs = append(errs, fmt.Errorf("--lease-duration %s: is not in whole seconds, which is what a Lease has; another server would take the Lease while this one still writes; set it to %s or %s",
			set.Duration, set.Duration.Truncate(time.Second), set.Duration.Truncate(time.Second)+time.Second))
	}
	if least := set.RenewDeadline + set.RetryPeriod; set.Duration < least {
		errs = append(errs, fmt.Errorf("--lease-duration %s: is less than %s, the sum of --lease-renew-deadline %s and --lease-retry-period %s; the Lease would end, and with it all writes, before the server tries again; "+
			"raise --lease-duration or lower --lease-renew-deadline", set.Duration, least, set.RenewDeadline, set.RetryPeriod))
	}
	return errors.Join(errs...)
}

var (
	errLeaseLost     = fmt.Errorf("lost Lease %s/%s: another server works on this hub now; start this one again, and it waits for its turn", clusterv1alpha1.SecretNamespace, leaseName)
	errLeaseNotHeld  = fmt.Errorf("not sent: this server does not hold Lease %s/%s any more, so another may write", clusterv1alpha1.SecretNamespace, leaseName)
	errLeaseNotClean = errors.New("the Lease runs out by itself: writes of this server may still be on their way")
)

// fence allows writes only while this server holds the Lease. A nil fence allows all writes.
type fence struct {
	// now is a clock that cannot be set and that continues while the machine sleeps.
	now   func() time.Duration
	lasts time.Duration // how long a renewed Lease is valid

	mu    sync.Mutex
	until time.Duration
}

func newFence(lasts time.Duration) *fence { return &fence{now: sinceBoot, lasts: lasts} }

func sinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(now.Nano())
}

// renewed records that the Lease was renewed by a request that was sent at that time: other
// servers count from a later time.
func (f *fence) renewed(sent time.Duration) { f.set(sent + f.lasts) }

// close stops all writes.
func (f *fence) close() { f.set(0) }

func (f *fence) set(until time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = until
}

func (f *fence) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now() >= f.until {
		return errLeaseNotHeld
	}
	return nil
}

// wrap is a transport.WrapperFunc. It must be next to the connection: a request that waits in a
// later wrapper would be sent after the check.
func (f *fence) wrap(next http.RoundTripper) http.RoundTripper {
	if f == nil {
		return next
	}
	return &fenced{fence: f, next: next}
}

// fenced sends requests that may write only while the fence allows them.
type fenced struct {
	fence *fence
	next  http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport.
func (f *fenced) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper.
func (f *fenced) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return f.next.RoundTrip(req)
	}
	if err := f.fence.check(); err != nil {
		if req.Body != nil {
			err = errors.Join(err, req.Body.Close())
		}
		return nil, err
	}
	if req.Body != nil && req.Body != http.NoBody {
		// A body is read when there is a connection, which may take long to establish. An API
		// server does not execute a request without its complete body.
		body, again := req.Body, req.GetBody
		req = req.Clone(req.Context())
		req.Body = &fencedBody{ReadCloser: body, fence: f.fence}
		if again != nil {
			req.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				return &fencedBody{ReadCloser: body, fence: f.fence}, err
			}
		}
	}
	return f.next.RoundTrip(req)
}

type fencedBody struct {
	io.ReadCloser

	fence *fence
}

// Read implements io.Reader.
func (b *fencedBody) Read(p []byte) (int, error) {
	if err := b.fence.check(); err != nil {
		return 0, err
	}
	return b.ReadCloser.Read(p)
}

// fencedLock is the Lease. It opens and closes the fence.
type fencedLock struct {
	resourcelock.Interface

	fence *fence
	taken func() // called when another server has taken the Lease of this one
	clean func() bool
	held  bool // no lock is needed: the elector calls one method at a time
}

// Get implements resourcelock.Interface.
func (l *fencedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.held && record.HolderIdentity != l.Identity() {
		l.fence.close()
		l.taken()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *fencedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (l *fencedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

func (l *fencedLock) write(record resourcelock.LeaderElectionRecord, write func() error) error {
	if record.HolderIdentity != l.Identity() { // the Lease is being released
		if !l.clean() {
			return errLeaseNotClean
		}
		l.fence.close()
		return write()
	}
	sent := l.fence.now()
	if err := write(); err != nil {
		return err
	}
	l.held = true
	l.fence.renewed(sent)
	return nil
}

// takeLease returns when only this server may write. It keeps the Lease until ctx ends, and then
// releases it; all writers must have stopped by then. If another server takes the Lease earlier,
// the hub ends with an error. While the Lease cannot be renewed, nothing is written. If no other
// server has taken it, the hub continues afterwards: no server can take the Lease from an API
// server that is unreachable.
func (h *Hub) takeLease(ctx context.Context, background *errgroup.Group, log logr.Logger) error {
	times := h.options.Lease
	config := rest.CopyConfig(h.config)
	config.UserAgent, config.Timeout = userAgent+"-lease", times.RenewDeadline/2
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{FieldManager: fieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", namespace.Name, err)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name this server: %w", err)
	}
	identity := host + "_" + string(uuid.NewUUID())
	keeping, stop := context.WithCancel(logr.NewContext(ctx, log))
	h.fence = newFence(times.Duration)
	held := make(chan struct{})
	first := sync.OnceFunc(func() { close(held) })
	log = log.WithValues("lease", clusterv1alpha1.SecretNamespace+"/"+leaseName)
	lock := &fencedLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: leaseName},
			Client:    client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		fence: h.fence, taken: stop, clean: func() bool { return ctx.Err() != nil },
	}
	elector, err := leaderelection.NewLeaderElector(times.config(lock, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { first() },
		OnStoppedLeading: func() {},
		OnNewLeader: func(holder string) {
			if holder != "" && holder != identity {
				log.Info("Another server works on this hub. This one does nothing until that one ends, and is not ready", "holder", holder)
			}
		},
	}))
	if err != nil {
		stop()
		return fmt.Errorf("take Lease %s/%s: %w", clusterv1alpha1.SecretNamespace, leaseName, err)
	}
	background.Go(func() error {
		defer stop()
		for keeping.Err() == nil {
			elector.Run(keeping)
			if keeping.Err() == nil {
				log.Info("The Lease cannot be renewed; nothing is written until it can")
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		return errLeaseLost
	})
	select {
	case <-held:
		log.Info("This server works on the hub", "identity", identity)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for Lease %s/%s: %w", clusterv1alpha1.SecretNamespace, leaseName, context.Cause(ctx))
	}
}
