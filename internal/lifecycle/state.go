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

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// State is what is known of a cluster beside what its hosts remember themselves. It holds keys and is to be kept as a
// secret: see Shelf.
type State struct {
	// Cluster is its name.
	Cluster string `json:"cluster"`
	// ID is what its hosts know it by. It has nothing to do with its keys, so that these can be replaced.
	ID string `json:"id,omitempty"`
	// Generation counts how often the state was changed.
	Generation int64 `json:"generation,omitempty"`
	// Authorities of the cluster, and its keys without certificates.
	Authorities pki.Authorities `json:"authorities,omitempty"`
	// Keys are the leaves, as hosts have them: those of a host are named HOST/LEAF.
	Keys pki.Bundle `json:"-"`
	// Renewed are the successors of leaves in Keys, until the hosts have them.
	Renewed pki.Bundle `json:"-"`
	// Digests of release files, by catalog.File.Key: a file that changes under its name is refused.
	Digests map[string]string `json:"digests"`
	// EtcdBootstrap says, by host, how its etcd first started.
	EtcdBootstrap map[string]plan.EtcdBootstrap `json:"etcdBootstrap"`
	// Specs are what the cluster was, is and is to be.
	intent.Specs

	stored stored
}

// Intent is what the cluster was, is and is to be: nothing, if nothing is known of it.
func (s *State) Intent() *intent.Specs {
	if s == nil {
		return &intent.Specs{}
	}
	return &s.Specs
}

// complete fills in what a state that was just begun lacks, its ID too.
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

// Mint mints the keys that a spec needs and the cluster lacks, and successors of the leaves that do not fit or are due: the
// newest of each authority signs.
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

// InUse is all that the hosts have: the leaves, with the authorities and what is trusted of them.
func (s *State) InUse() pki.Bundle { return s.Authorities.Pairs().With(s.Keys) }

// Planned is all that a plan is made with: leaves that were renewed are in the place of their predecessors.
func (s *State) Planned() pki.Bundle { return s.InUse().With(s.Renewed) }

// Store keeps the state of clusters and the records of the runs.
type Store interface {
	Records

	// Load returns the state of a cluster, or nil if nothing is known of it.
	Load(ctx context.Context, cluster string) (*State, error)
	// Save keeps the state of a cluster, unless another was saved since it was loaded: that is ErrStale.
	Save(ctx context.Context, s *State) error
	// Remove forgets the state of a cluster, unless another was saved since it was loaded: that is ErrStale. The records of its
	// runs stay.
	Remove(ctx context.Context, s *State) error
	// Lock waits until no other process works on the cluster with this Store, or says who does.
	Lock(ctx context.Context, cluster string) (unlock func(), err error)
}

// Records keeps the records of the runs.
type Records interface {
	// Create keeps a new Operation and names it. It is refused while another of the cluster is unfinished.
	Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Operation returns one by name, and Operations those of a cluster, or of all, oldest first.
	Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error)
	Operations(ctx context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error)
	// Steps returns all that is recorded of the steps of op, of which its status may have a part. A run asks once, before its first
	// Record; from then on the status of op has them all.
	Steps(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.StepRecord, error)
	// Record keeps the status of op, and brings back what its spec says of pausing and canceling now.
	Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Control changes the spec of an Operation.
	Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error
	// Log opens the log of a run on a host for appending.
	Log(operation, host string) (io.WriteCloser, error)
}

// Unfinished reports whether a run may still go on.
func Unfinished(op *lifecyclev1alpha1.Operation) bool {
	switch op.Status.Phase {
	case lifecyclev1alpha1.PhaseSucceeded, lifecyclev1alpha1.PhaseFailed, lifecyclev1alpha1.PhaseCanceled:
		return false
	case lifecyclev1alpha1.PhasePending, lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.PhasePaused:
	}
	return true
}
