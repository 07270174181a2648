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

// leaseName is the Lease that the one server holds that works on an existing API server. A hub that
// starts its own API server needs no Lease, because the lock of its data directory excludes a
// second server.
const leaseName = "orrery-server"

// LeaseTimes are the times of the Lease that excludes a second server of an existing API server.
// The zero value means DefaultLeaseTimes. If any field is set, all must be.
type LeaseTimes struct {
	// Duration is how long a Lease is valid after its last renewal. After that, another server takes
	// the Lease within two retry periods and their jitter.
	Duration time.Duration
	// RenewDeadline is how long the holder tries to renew the Lease before it logs that it
	// cannot.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two attempts to renew or to take the Lease.
	RetryPeriod time.Duration
}

// DefaultLeaseTimes are the defaults of the flags --lease-duration, --lease-renew-deadline and
// --lease-retry-period.
var DefaultLeaseTimes = LeaseTimes{Duration: 12 * time.Second, RenewDeadline: 8 * time.Second, RetryPeriod: 2 * time.Second} //nolint:gochecknoglobals // a constant

// Limits of the values that validate accepts.
const (
	minLeaseDuration = 2 * time.Second
	maxLeaseDuration = 10 * time.Minute
	minRenewDeadline = time.Second // a request to renew the Lease may take half of the deadline
	minRetryPeriod   = 200 * time.Millisecond
)

// addFlags adds the flags --lease-duration, --lease-renew-deadline and --lease-retry-period, and
// sets l to their defaults.
func (l *LeaseTimes) addFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&l.Duration, "lease-duration", DefaultLeaseTimes.Duration,
		"with --kubeconfig, how long the Lease of a server that does not renew it stays its own, in whole seconds; shorter: another server takes over sooner, for more writes to the API server")
	fs.DurationVar(&l.RenewDeadline, "lease-renew-deadline", DefaultLeaseTimes.RenewDeadline,
		"with --kubeconfig, how long a server tries to renew its Lease before it says that it cannot; at least one --lease-retry-period shorter than --lease-duration")
	fs.DurationVar(&l.RetryPeriod, "lease-retry-period", DefaultLeaseTimes.RetryPeriod,
		"with --kubeconfig, time between two tries to renew or to take the Lease; each is a request to the API server")
}

// config returns the configuration of client-go's leader election with these times.
func (l *LeaseTimes) config(lock resourcelock.Interface, callbacks leaderelection.LeaderCallbacks) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: lock, Callbacks: callbacks, ReleaseOnCancel: true, Name: leaseName,
		LeaseDuration: l.Duration, RenewDeadline: l.RenewDeadline, RetryPeriod: l.RetryPeriod,
	}
}

// orDefault returns l, or DefaultLeaseTimes if no field of l is set.
func (l *LeaseTimes) orDefault() LeaseTimes { return cmp.Or(*l, DefaultLeaseTimes) }

// validate returns an error with every flag whose value is out of range, or nil. external is true
// if the server uses an existing API server. Without it there is no Lease, and every value other
// than the default is an error.
//
// With all accepted values, a server stops writing before another takes its Lease: the fence counts
// from the time when the first renewal of a second was sent, and other servers count the seconds of
// the Lease from the time when they have seen that renewal; see fencedLock.write.
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
	// client-go requires that the deadline is longer than a retry period with its jitter.
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
	// Errors of the Lease. errLeaseLost stops the hub. errLeaseNotHeld is the error of a request that
	// may write. errLeaseNotClean prevents the release of the Lease while writers run.
	errLeaseLost     = fmt.Errorf("lost Lease %s/%s: another server works on this hub now; start this one again, and it waits for its turn", clusterv1alpha1.SecretNamespace, leaseName)
	errLeaseNotHeld  = fmt.Errorf("not sent: this server does not hold Lease %s/%s any more, so another may write", clusterv1alpha1.SecretNamespace, leaseName)
	errLeaseNotClean = errors.New("the Lease runs out by itself: writes of this server may still be on their way")
)

// fence allows writes only while this server holds the Lease. A new fence allows no writes. A nil
// *fence, for a hub without a Lease, allows all. Several goroutines may use it.
type fence struct {
	// now is a clock that cannot be set and that continues while the machine sleeps.
	now   func() time.Duration
	lasts time.Duration // how long a renewed Lease is valid

	mu    sync.Mutex
	until time.Duration // end of the allowed writes, by now; 0: none are allowed
}

// newFence returns a fence that allows writes for the duration lasts after each renewal of the
// Lease was sent.
func newFence(lasts time.Duration) *fence { return &fence{now: sinceBoot, lasts: lasts} }

// sinceBoot returns the time since the start of the machine, including the time that it slept.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(now.Nano())
}

// renewed records that the Lease was renewed by a request that was sent at the time sent of the
// clock f.now. Writes are then allowed for f.lasts after sent. Other servers count from a later
// time.
func (f *fence) renewed(sent time.Duration) { f.set(sent + f.lasts) }

// close stops all writes of this server, until the next call of renewed.
func (f *fence) close() { f.set(0) }

// set allows writes until the given time of the clock f.now.
func (f *fence) set(until time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = until
}

// check returns errLeaseNotHeld if this server may not write now, because the Lease is not held or
// was not renewed in time. Otherwise it returns nil.
func (f *fence) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now() >= f.until {
		return errLeaseNotHeld
	}
	return nil
}

// wrap returns a transport that checks the fence before requests that may write. It is a
// transport.WrapperFunc. It returns next if f is nil. It must be the wrapper next to the
// connection: a request that waits in a wrapper below would be sent after the check.
func (f *fence) wrap(next http.RoundTripper) http.RoundTripper {
	if f == nil {
		return next
	}
	return &fenced{fence: f, next: next}
}

// fenced sends requests only while the fence allows writes. GET, HEAD and OPTIONS are always sent.
// For other requests the error is errLeaseNotHeld if the fence does not allow writes.
type fenced struct {
	fence *fence
	next  http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport.
func (f *fenced) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper. It checks the fence before a request that may write is
// sent, and again while its body is read.
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
		// A transport reads the body when there is a connection, which may take long to establish. So the
		// body is checked again. An API server does not execute a request without its complete body.
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

// fencedBody is the body of a request that may write. Reading fails with errLeaseNotHeld when the
// fence allows no writes.
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

// fencedLock is the Lease as client-go's leader election uses it. It opens the fence after each
// renewal, and closes the fence when another server has taken the Lease or this server releases it.
// The Lease is not released while clean returns false.
type fencedLock struct {
	resourcelock.Interface

	fence *fence
	taken func()      // called when another server has taken the Lease of this one
	clean func() bool // reports whether all writers of this server have stopped
	held  bool        // no lock is needed: the elector calls one method at a time

	// The time in the record of the last renewal, in whole seconds, and when the first renewal with
	// that time was sent.
	second int64
	first  time.Duration
}

// Get implements resourcelock.Interface. If another server has taken the Lease of this server, it
// closes the fence and calls l.taken.
func (l *fencedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.held && record.HolderIdentity != l.Identity() {
		l.fence.close()
		l.taken()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface. It opens the fence when the Lease is created; see
// write.
func (l *fencedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface. It opens the fence when the Lease is renewed, and
// closes the fence before the Lease is released; see write.
func (l *fencedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

// write stores the record of the Lease with the function write, and opens the fence. If the record
// releases the Lease, it first closes the fence, and returns errLeaseNotClean while writers run.
func (l *fencedLock) write(record resourcelock.LeaderElectionRecord, write func() error) error {
	if record.HolderIdentity != l.Identity() { // the Lease is being released
		if !l.clean() {
			return errLeaseNotClean
		}
		l.fence.close()
		return write()
	}
	// Other servers compare Leases with the time in whole seconds. Of several renewals in one second
	// they see only the first, and count from that one, also if its answer was lost.
	if second := record.RenewTime.Unix(); second != l.second {
		l.second, l.first = second, l.fence.now()
	}
	sent := l.first
	if err := write(); err != nil {
		return err
	}
	l.held = true
	l.fence.renewed(sent)
	return nil
}

// takeLease waits until this server holds the Lease of an existing API server, so that no other
// server writes. It is an error if ctx ends first. It creates the namespace of the Lease, and sets
// h.fence.
//
// A function in background renews the Lease until ctx ends, and then releases it; all writers must
// have stopped by then. If another server takes the Lease earlier, the hub stops with errLeaseLost.
// While the Lease cannot be renewed, nothing is written. The hub continues when it can be renewed
// again, because no server can take the Lease from an API server that is unreachable.
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
