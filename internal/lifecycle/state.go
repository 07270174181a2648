package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// State has what Orrery stores about a cluster: its keys, its specs, and other data that the
// records on the hosts lack. It is stored as a secret, see LoadState and SaveState. It is not safe
// for use by several goroutines. It also remembers what the Store has, so a State must be saved to
// the Store that loaded it.
type State struct {
	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// ID identifies the cluster on its hosts. It does not depend on keys, so that keys can be
	// replaced.
	ID string `json:"id,omitempty"`
	// Generation counts the writes of the state.
	Generation int64 `json:"generation,omitempty"`
	// Authorities has the certificate authorities of the cluster, and its keys without certificates.
	Authorities pki.Authorities `json:"authorities,omitempty"`
	// Keys has the leaf certificates in use, with their keys. Those of a host are named HOST/LEAF.
	Keys pki.Bundle `json:"-"`
	// Renewed has the successors of leaf certificates in Keys, until the hosts use them.
	Renewed pki.Bundle `json:"-"`
	// Digests has the digests of release files (sha256:HEX), by catalog.File.Key. A downloaded file
	// with another digest is refused.
	Digests map[string]string `json:"digests"`
	// EtcdBootstrap has, by host, how the etcd of the host first starts or has started.
	EtcdBootstrap map[string]plan.EtcdBootstrap `json:"etcdBootstrap"`
	// KubeSystemUID is the UID of namespace kube-system, which identifies the data of etcd. It is
	// empty until an API server has shown it.
	KubeSystemUID types.UID `json:"kubeSystemUID,omitempty"`
	// Specs are the applied, previous and wanted specs.
	intent.Specs

	stored stored
}

// Intent returns the applied, previous and wanted specs of the cluster, which are part of s. For a
// nil state it returns a new, empty value.
func (s *State) Intent() *intent.Specs {
	if s == nil {
		return &intent.Specs{}
	}
	return &s.Specs
}

// complete sets a random ID if s has none, and replaces nil maps by empty ones.
func (s *State) complete() {
	if s.ID == "" {
		s.ID = strings.ToLower(rand.Text())
	}
	if s.Authorities == nil {
		s.Authorities = pki.Authorities{}
	}
	if s.Keys == nil {
		s.Keys = pki.Bundle{}
	}
	if s.Renewed == nil {
		s.Renewed = pki.Bundle{}
	}
	if s.Digests == nil {
		s.Digests = map[string]string{}
	}
	if s.EtcdBootstrap == nil {
		s.EtcdBootstrap = map[string]plan.EtcdBootstrap{}
	}
}

// Mint makes the keys and leaf certificates that a spec needs and the cluster lacks. For a
// certificate that expires soon or does not match the spec, it puts a successor into Renewed. A
// successor that still matches stays, so a second call changes nothing. The newest key of each
// authority signs. now is the present time. Mint changes s and saves nothing. An invalid authority
// is an error.
func (s *State) Mint(now time.Time, spec *clusterv1alpha1.Provision) error {
	s.complete()
	all := s.InUse()
	if _, err := all.Ensure(s.Renewed, now, plan.Authorities(), plan.Keys(), plan.Leaves(s.Cluster, spec)); err != nil {
		return fmt.Errorf("mint the keys of cluster %s: %w", s.Cluster, err)
	}
	for _, name := range slices.Concat(plan.Authorities(), plan.Keys()) {
		if _, ok := s.Authorities[name]; !ok {
			s.Authorities[name] = pki.Authority{all[name]}
		}
	}
	maps.DeleteFunc(all, func(name string, _ pki.KeyPair) bool { _, ok := s.Authorities[name]; return ok })
	s.Keys = all
	return nil
}

// InUse returns, in a new Bundle, all keys and certificates that the hosts use. Each authority has
// the key that signs, and all certificates to trust.
func (s *State) InUse() pki.Bundle { return s.Authorities.Pairs().With(s.Keys) }

// Planned returns, in a new Bundle, the keys and certificates with which a plan is made: those in
// use, with renewed leaf certificates in place of the old ones.
func (s *State) Planned() pki.Bundle { return s.InUse().With(s.Renewed) }

// ErrLocked means that another process holds the lock of a cluster. The run of that process works
// on the cluster.
var ErrLocked = errors.New("another orrery works on it")

// Store keeps the state of clusters and the records of runs. It is safe for use by several
// goroutines and processes.
type Store interface {
	Records

	// Load returns the state of a cluster, or nil without an error if there is none.
	Load(ctx context.Context, cluster string) (*State, error)
	// Save stores the state of a cluster, and increases its generation. It returns ErrStale if another
	// process has saved a state since s was loaded.
	Save(ctx context.Context, s *State) error
	// Remove deletes the state of a cluster, but not the records of its runs. It returns ErrStale if
	// another process has saved a state since s was loaded. If no state is stored, it does nothing.
	Remove(ctx context.Context, s *State) error
	// Lock locks a cluster for a run. If another process holds the lock, Lock waits or returns an
	// error that wraps ErrLocked, depending on the Store. It returns an error if this process already
	// holds the lock. unlock is called once.
	Lock(ctx context.Context, cluster string) (unlock func(), err error)
}

// Records stores the Operations, which are the records of runs, and the logs of hosts.
type Records interface {
	// Create stores a new Operation and sets its name, CLUSTER-N. It returns an error while
	// another Operation of the cluster is unfinished.
	Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Operation returns an Operation by name, and an error if there is none. Operations returns the
	// Operations of a cluster, the oldest first. If cluster is "", it returns those of all clusters.
	// The steps in their status may be missing.
	Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error)
	Operations(ctx context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error)
	// Steps returns all recorded steps of op, because the status of op may have only some of them. A
	// run calls Steps once, before its first Record. From then on the status of op has all steps.
	Steps(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.StepRecord, error)
	// Record stores the status of op, and sets Paused and Canceled in the spec of op to the stored
	// values. If calls for a running Operation follow each other quickly, a store may skip some. A
	// skipped call changes nothing in op and returns nil.
	Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Control changes the stored spec of an Operation, for example to pause the run: it calls change
	// with the spec and stores the result. It may call change again after a conflict.
	Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error
	// Log opens the log of an Operation on a host for appending, and creates the log if needed. The
	// caller closes it.
	Log(operation, host string) (io.WriteCloser, error)
}

// Unfinished reports whether an Operation may still run: it is pending, running or paused, or has
// no phase yet. It is false for one that has succeeded, failed or was canceled.
func Unfinished(op *lifecyclev1alpha1.Operation) bool {
	switch op.Status.Phase {
	case lifecyclev1alpha1.PhaseSucceeded, lifecyclev1alpha1.PhaseFailed, lifecyclev1alpha1.PhaseCanceled:
		return false
	case lifecyclev1alpha1.PhasePending, lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.PhasePaused:
	}
	return true
}

// MaxEnded is how many ended Operations of a cluster a Store keeps. Older ones are deleted, see
// Outdated.
const MaxEnded = 10

// Outdated returns the Operations of a cluster that a Store must delete: all that have ended,
// except the newest MaxEnded. ops are all Operations of the cluster, the oldest first. Outdated
// deletes nothing.
func Outdated(ops []lifecyclev1alpha1.Operation) []lifecyclev1alpha1.Operation {
	ended := slices.DeleteFunc(slices.Clone(ops), func(op lifecyclev1alpha1.Operation) bool { return Unfinished(&op) })
	return ended[:max(len(ended)-MaxEnded, 0)]
}
