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
	// maxRecord is the maximum size, as JSON, of an Operation that the API server accepts.
	maxRecord = 1 << 20
	// maxSummary is the maximum size of an Operation whose steps are in slices. It has space for 1,000
	// hosts that all failed.
	maxSummary = 1 << 19
	// recordEvery is the minimum time between two writes of an Operation's status during a run. A
	// change in between is written with the next one.
	recordEvery = time.Second
)

// Store is a lifecycle.Store on a hub. It keeps the state of a cluster in Secrets, Operations as
// objects with their steps in OperationSlices, and logs as files. All exported fields must be set
// before use.
type Store struct {
	// Client reads and writes all objects without a cache.
	Client client.Client
	// Cached lists Operations from a cache, without their steps.
	Cached client.Reader
	// Logs is the directory of the logs of hosts.
	Logs string
	// Holder is the name of this server in Leases.
	Holder string
	// Lost is called when another server has, or may have, taken the Lease of a cluster that this
	// server has locked. The run of that cluster must then be interrupted. Lost must not block.
	Lost func(cluster string)

	mu       sync.Mutex
	locked   map[string]bool      // clusters that this process has locked
	recorded map[string]time.Time // last write of a running Operation, by name
	trails   map[types.UID]*trail // of Operations that run here, by UID
	limiter  flowcontrol.RateLimiter
	clock    clock.PassiveClock // nil means the clock of the machine
}

var _ lifecycle.Store = (*Store)(nil)

// objectName returns the name of the Secret with the state of a cluster, and of the Lease of a
// cluster. The dot distinguishes the Secret from that with the cluster's credentials, which is
// named as the cluster.
func objectName(cluster string) string { return cluster + ".lifecycle" }

// Load implements lifecycle.Store. It returns the state of a cluster; nil, without an error, if
// none is stored.
func (s *Store) Load(ctx context.Context, cluster string) (*lifecycle.State, error) {
	return lifecycle.LoadState(ctx, secretPieceStore{s.Client, cluster}, cluster)
}

// Save implements lifecycle.Store. It stores the state of state.Cluster.
func (s *Store) Save(ctx context.Context, state *lifecycle.State) error {
	return lifecycle.SaveState(ctx, secretPieceStore{s.Client, state.Cluster}, state)
}

// Remove implements lifecycle.Store. It deletes the stored state of state.Cluster.
func (s *Store) Remove(ctx context.Context, state *lifecycle.State) error {
	return lifecycle.RemoveState(ctx, secretPieceStore{s.Client, state.Cluster}, state)
}

// Create implements lifecycle.Store. It stores a new Operation and names it CLUSTER-N, with the
// next free number. It returns an error if the cluster has an unfinished Operation.
//
// It reads the other Operations from the cache. If the cache lacks the Operation of the cluster
// that has this number already, the error wraps AlreadyExists.
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

// Operation implements lifecycle.Store. It reads an Operation without the cache. The status has a
// summary of the steps, or all steps if an earlier version of Orrery stored them there.
func (s *Store) Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error) {
	op := &lifecyclev1alpha1.Operation{}
	if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, op); err != nil {
		return nil, fmt.Errorf("get operation %s: %w", name, err)
	}
	return op, nil
}

// Operations implements lifecycle.Store. It returns the Operations of a cluster from the cache, the
// oldest first; "" means those of all clusters. Their status has no steps.
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

// inOrder compares two Operations, for sorting them by the time of creation. In the same second,
// the one that ended earlier comes first, and an unfinished one last. Then oak-9 comes before
// oak-10.
func inOrder(a, b lifecyclev1alpha1.Operation) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		ended(a).Compare(ended(b)),
		cmp.Compare(len(a.Name), len(b.Name)),
		cmp.Compare(a.Name, b.Name),
	)
}

// ended returns when an Operation ended. For an unfinished one it is a time far in the future.
func ended(op lifecyclev1alpha1.Operation) time.Time {
	if op.Status.Finished == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return op.Status.Finished.Time
}

// Record implements lifecycle.Store. It stores the status of op. During a run it skips a call
// within recordEvery after the last write.
//
// If Steps was called for op, Record stores the steps in slices and a summary of them in the
// status. It writes all slices before the status with a final phase. It shortens a status that is
// too large, see fit, but op keeps its steps. If another server has taken over the run, Record
// stores nothing and returns an error.
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

// due reports whether Record must write the status of op now. If so, it stores the present time for
// the next call. The first status of a run, and each status with another phase than Running, must
// always be written. It takes s.mu.
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

// now returns the present time of s.clock.
func (s *Store) now() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return s.clock.Now()
}

// throttle returns the rate limiter for writing slices, which all Operations share. It takes s.mu.
func (s *Store) throttle() flowcontrol.RateLimiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limiter == nil {
		s.limiter = flowcontrol.NewTokenBucketRateLimiter(sliceRate, sliceRate)
	}
	return s.limiter
}

// fit shortens a status, in place, to about limit bytes of JSON, because the API server would
// refuse a larger one forever. It first drops steps that have not failed, the oldest of them first.
// Then it shortens the messages of hosts, clears the messages of steps, and drops failed steps. It
// keeps the plan and all hosts.
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

// fixedSize is the approximate size, in bytes, of the field names and times of a step as JSON.
// fixedHost is that of a host. shortMessage is the maximum length of a message of a host that fit
// shortens.
const fixedSize, fixedHost, shortMessage = 200, 120, 256

// recordSize returns the approximate size, in bytes, of a step as JSON.
func recordSize(r lifecyclev1alpha1.StepRecord) int {
	return fixedSize + len(r.Host) + len(r.ID) + len(r.InputHash) + len(r.Message)
}

// Control implements lifecycle.Store. It reads the Operation without the cache, calls change with
// its spec, and stores the result. After a conflict it repeats this.
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
