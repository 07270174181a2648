package lifecycle

import (
	"context"
	"crypto/rand"
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

// State has the data about a cluster that the records on its hosts lack. It contains keys and
// is stored as a secret, see LoadState.
type State struct {
	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// ID identifies the cluster on its hosts. It does not depend on keys, so that keys can be
	// replaced.
	ID string `json:"id,omitempty"`
	// Generation counts the writes of the state.
	Generation int64 `json:"generation,omitempty"`
	// Authorities of the cluster, and its keys without certificates.
	Authorities pki.Authorities `json:"authorities,omitempty"`
	// Keys are the leaf certificates that hosts use. Those of a host are named HOST/LEAF.
	Keys pki.Bundle `json:"-"`
	// Renewed are the successors of leaves in Keys, until the hosts use them.
	Renewed pki.Bundle `json:"-"`
	// Digests of release files, by catalog.File.Key. A file with another digest is refused.
	Digests map[string]string `json:"digests"`
	// EtcdBootstrap has, by host, how its etcd first started.
	EtcdBootstrap map[string]plan.EtcdBootstrap `json:"etcdBootstrap"`
	// KubeSystemUID is the UID of namespace kube-system, which identifies the data of etcd. It is
	// empty until an API server has shown it.
	KubeSystemUID types.UID `json:"kubeSystemUID,omitempty"`
	// Specs are the applied, previous and wanted specs.
	intent.Specs

	stored stored
}

// Intent returns the specs of the cluster. It returns an empty value for a nil state.
func (s *State) Intent() *intent.Specs {
	if s == nil {
		return &intent.Specs{}
	}
	return &s.Specs
}

// complete sets an ID and empty maps where they are missing.
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

// Mint mints the keys that a spec needs and the cluster lacks. It also mints successors of leaves
// that do not fit or will expire soon. The newest key of each authority signs.
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

// InUse returns all keys that the hosts use, with the authorities and all certificates to trust.
func (s *State) InUse() pki.Bundle { return s.Authorities.Pairs().With(s.Keys) }

// Planned returns the keys for a plan: those in use, with renewed leaves in the place of old ones.
func (s *State) Planned() pki.Bundle { return s.InUse().With(s.Renewed) }

// Store keeps the state of clusters and the records of runs.
type Store interface {
	Records

	// Load returns the state of a cluster, or nil without an error if there is none.
	Load(ctx context.Context, cluster string) (*State, error)
	// Save stores the state of a cluster. It returns ErrStale if another one was saved since it was
	// loaded.
	Save(ctx context.Context, s *State) error
	// Remove deletes the state of a cluster, but not the records of its runs. It returns ErrStale if
	// another one was saved since it was loaded.
	Remove(ctx context.Context, s *State) error
	// Lock locks a cluster for this process. If another process holds the lock, it waits, or returns
	// an error that names that process.
	Lock(ctx context.Context, cluster string) (unlock func(), err error)
}

// Records keeps the records of runs.
type Records interface {
	// Create stores a new Operation and sets its name. It returns an error while another Operation of
	// the cluster is unfinished.
	Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Operation returns an Operation by name. Operations returns those of a cluster, the oldest first;
	// with an empty name, those of all clusters.
	Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error)
	Operations(ctx context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error)
	// Steps returns all recorded steps of op; its status may have only some of them. A run calls Steps
	// once, before its first Record. From then on the status of op has all steps.
	Steps(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.StepRecord, error)
	// Record stores the status of op, and sets Paused and Canceled of its spec to the stored values.
	Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Control changes the spec of an Operation.
	Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error
	// Log opens the log of a run on a host for appending.
	Log(operation, host string) (io.WriteCloser, error)
}

// Unfinished reports whether a run may still continue: it is pending, running or paused.
func Unfinished(op *lifecyclev1alpha1.Operation) bool {
	switch op.Status.Phase {
	case lifecyclev1alpha1.PhaseSucceeded, lifecyclev1alpha1.PhaseFailed, lifecyclev1alpha1.PhaseCanceled:
		return false
	case lifecyclev1alpha1.PhasePending, lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.PhasePaused:
	}
	return true
}

// MaxEnded is how many Operations of a cluster are kept after they have ended.
const MaxEnded = 10

// Outdated returns the Operations that are not kept any more, of the Operations of a cluster, the
// oldest first: all that have ended, except the newest MaxEnded.
func Outdated(ops []lifecyclev1alpha1.Operation) []lifecyclev1alpha1.Operation {
	ended := slices.DeleteFunc(slices.Clone(ops), func(op lifecyclev1alpha1.Operation) bool { return Unfinished(&op) })
	return ended[:max(len(ended)-MaxEnded, 0)]
}
