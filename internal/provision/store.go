package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

const (
	// maxRecord is the maximum size of a record as JSON that the API server's store accepts.
	// maxSummary is that of a record whose steps are in slices. It has space for 1,000 hosts that all
	// failed.
	maxRecord  = 1 << 20
	maxSummary = 1 << 19
	// recordEvery is the minimum time between two records during a run. Skipped changes are in the
	// next.
	recordEvery = time.Second
)

// Store is a lifecycle.Store on a hub. The state of a cluster is in Secrets. Operations are
// objects, with their steps in slices. Logs are files.
type Store struct {
	// Client reads and writes without a cache.
	Client client.Client
	// Cached lists Operations, without their steps.
	Cached client.Reader
	// Logs is the directory of the logs.
	Logs string
	// Holder names this server in Leases.
	Holder string
	// Lost is called when another server has taken over a cluster.
	Lost func(cluster string)

	mu       sync.Mutex
	locked   map[string]bool
	recorded map[string]time.Time
	trails   map[types.UID]*trail // of Operations that run here
	limiter  flowcontrol.RateLimiter
	clock    clock.PassiveClock // nil means the clock of the machine
}

var _ lifecycle.Store = (*Store)(nil)

// objectName returns the name of a cluster's state and Lease. The dot distinguishes them from
// credentials, which have the name of the cluster.
func objectName(cluster string) string { return cluster + ".lifecycle" }

// Load implements lifecycle.Store.
func (s *Store) Load(ctx context.Context, cluster string) (*lifecycle.State, error) {
	return lifecycle.LoadState(ctx, shelf{s.Client, cluster}, cluster)
}

// Save implements lifecycle.Store.
func (s *Store) Save(ctx context.Context, state *lifecycle.State) error {
	return lifecycle.SaveState(ctx, shelf{s.Client, state.Cluster}, state)
}

// Remove implements lifecycle.Store.
func (s *Store) Remove(ctx context.Context, state *lifecycle.State) error {
	return lifecycle.RemoveState(ctx, shelf{s.Client, state.Cluster}, state)
}

// Create implements lifecycle.Store. The Operations of a cluster are numbered.
func (s *Store) Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	cluster := op.Spec.Cluster
	before, err := s.Operations(ctx, cluster)
	if err != nil {
		return err
	}
	next := 1
	for _, o := range before {
		if lifecycle.Unfinished(&o) {
			return fmt.Errorf("operation %s (%s of cluster %s) is unfinished: wait for it, or set its spec.canceled", o.Name, o.Spec.Action, cluster)
		}
		number, ok := strings.CutPrefix(o.Name, cluster+"-")
		if n, err := strconv.Atoi(number); ok && err == nil {
			next = max(next, n+1)
		}
	}
	for ; ; next++ {
		op.Name, op.ResourceVersion = fmt.Sprintf("%s-%d", cluster, next), ""
		err := s.Client.Create(ctx, op)
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create operation %s: %w", op.Name, err)
		}
		// The cache is behind, or the Operation of another cluster has this name.
		other, e := s.Operation(ctx, op.Name)
		if e != nil || other.Spec.Cluster == cluster {
			return fmt.Errorf("create operation %s: %w", op.Name, err)
		}
	}
}

// Operation implements lifecycle.Store. Its status has a summary of the steps, or all steps of an
// earlier version.
func (s *Store) Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error) {
	op := &lifecyclev1alpha1.Operation{}
	if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, op); err != nil {
		return nil, fmt.Errorf("get operation %s: %w", name, err)
	}
	return op, nil
}

// Operations implements lifecycle.Store. The steps are left out.
func (s *Store) Operations(ctx context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error) {
	var opts []client.ListOption
	if cluster != "" {
		opts = append(opts, client.MatchingFields{byCluster: cluster})
	}
	list := &lifecyclev1alpha1.OperationList{}
	if err := s.Cached.List(ctx, list, opts...); err != nil {
		return nil, fmt.Errorf("list the operations of cluster %s: %w", cluster, err)
	}
	slices.SortFunc(list.Items, inOrder)
	return list.Items, nil
}

// inOrder compares Operations by their creation. For the same second, ended ones come first, and
// oak-9 comes before oak-10.
func inOrder(a, b lifecyclev1alpha1.Operation) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		ended(a).Compare(ended(b)),
		cmp.Compare(len(a.Name), len(b.Name)),
		cmp.Compare(a.Name, b.Name),
	)
}

// ended returns when an Operation ended, or a time far in the future.
func ended(op lifecyclev1alpha1.Operation) time.Time {
	if op.Status.Finished == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return op.Status.Finished.Time
}

// Record implements lifecycle.Store. During a run it skips changes within recordEvery. If Steps was
// called, the steps are stored in slices, and the status has a summary. All slices are written
// before a final phase is.
func (s *Store) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	if !s.due(op) {
		return nil
	}
	running := op.Status.Phase == lifecyclev1alpha1.PhaseRunning
	written := &lifecyclev1alpha1.Operation{ObjectMeta: op.ObjectMeta, Spec: op.Spec, Status: op.Status}
	limit := maxRecord
	var failed error
	t := s.trail(op)
	if t != nil {
		if !running {
			defer s.leave(op)
		}
		left, err := s.keepSteps(ctx, op, t)
		if err != nil && (t.over != nil || !running) {
			return fmt.Errorf("record operation %s: %w", op.Name, err)
		}
		failed = err
		if left == 0 && err == nil {
			t.before = nil
		}
		if written.Status.Steps, limit = summary(op.Status.Steps), maxSummary; t.before != nil {
			written.Status.Steps, limit = t.before, maxRecord
		}
	}
	written = written.DeepCopy()
	fit(&written.Status, limit)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		status := written.Status
		err := s.Client.Status().Update(ctx, written)
		if !apierrors.IsConflict(err) {
			return err
		}
		// Another process may have changed the spec, but must not have started a run.
		if e := s.Client.Get(ctx, client.ObjectKeyFromObject(op), written); e != nil {
			return e
		}
		if e := superseded(op, written.UID, written.Status.Attempt, written.Status.Epoch); e != nil {
			return e
		}
		written.Status = status
		return err
	})
	if err != nil && t != nil {
		err = t.end(err)
	}
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("record operation %s: %w", op.Name, err)
	}
	op.Spec.Paused, op.Spec.Canceled, op.ResourceVersion = written.Spec.Paused, written.Spec.Canceled, written.ResourceVersion
	return nil
}

// due reports whether a record must be written now. The first and last of a run are always due.
func (s *Store) due(op *lifecyclev1alpha1.Operation) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.Status.Phase != lifecyclev1alpha1.PhaseRunning {
		delete(s.recorded, op.Name)
		return true
	}
	if now.Sub(s.recorded[op.Name]) < recordEvery {
		return false
	}
	if s.recorded == nil {
		s.recorded = map[string]time.Time{}
	}
	s.recorded[op.Name] = now
	return true
}

func (s *Store) now() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return s.clock.Now()
}

// throttle returns the rate limiter for writing slices.
func (s *Store) throttle() flowcontrol.RateLimiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limiter == nil {
		s.limiter = flowcontrol.NewTokenBucketRateLimiter(sliceRate, sliceRate)
	}
	return s.limiter
}

// fit shortens a status to limit bytes, because the API server would refuse it forever. It first
// drops steps that have not failed, the oldest of them first. Then it shortens the messages of
// hosts, clears those of steps, and drops failed steps.
func fit(status *lifecyclev1alpha1.OperationStatus, limit int) {
	size := len(status.Message)
	for _, p := range status.Plan {
		size += len(strings.Join(p.Hosts, `","`)) + len(strings.Join(p.Changes, `","`)) + fixedHost
	}
	for _, h := range status.Hosts {
		size += fixedHost + len(h.Name) + len(h.Message)
	}
	for _, r := range status.Steps {
		size += recordSize(r)
	}
	drop := func(which func(lifecyclev1alpha1.StepRecord) bool) {
		status.Steps = slices.DeleteFunc(status.Steps, func(r lifecyclev1alpha1.StepRecord) bool {
			if size <= limit || !which(r) {
				return false
			}
			size -= recordSize(r)
			return true
		})
	}
	drop(func(r lifecyclev1alpha1.StepRecord) bool { return r.State != lifecyclev1alpha1.StepFailed })
	for i := range status.Hosts {
		h := &status.Hosts[i]
		if size <= limit || len(h.Message) <= shortMessage {
			continue
		}
		size -= len(h.Message)
		h.Message = strings.ToValidUTF8(h.Message[:shortMessage-len("…")], "") + "…"
		size += len(h.Message)
	}
	for i := range status.Steps {
		if size <= limit {
			return
		}
		r := &status.Steps[i]
		size -= len(r.Message)
		r.Message = ""
	}
	drop(func(lifecyclev1alpha1.StepRecord) bool { return true })
}

// fixedSize is the approximate size of the field names and times of a step as JSON, and fixedHost
// that of a host. shortMessage is the length of a shortened message.
const fixedSize, fixedHost, shortMessage = 200, 120, 256

// recordSize returns the approximate size of a step as JSON.
func recordSize(r lifecyclev1alpha1.StepRecord) int {
	return fixedSize + len(r.Host) + len(r.ID) + len(r.InputHash) + len(r.Message)
}

// Control implements lifecycle.Store. It changes the stored form of the spec, which may be an older
// one.
func (s *Store) Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		op := &lifecyclev1alpha1.Operation{}
		if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, op); err != nil {
			return err
		}
		change(&op.Spec)
		return s.Client.Update(ctx, op)
	})
	if err != nil {
		return fmt.Errorf("change operation %s: %w", name, err)
	}
	return nil
}
