package lifecycle

import (
	"context"
	"io"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// State is what is known of a cluster beside what its hosts remember themselves. It holds keys and is to be kept as a
// secret.
type State struct {
	// Cluster is its name.
	Cluster string `json:"cluster"`
	// Keys of the cluster, as its hosts have them.
	Keys pki.Bundle `json:"keys"`
	// Renewed are the successors of leaves in Keys, until the hosts have them.
	Renewed pki.Bundle `json:"renewed,omitempty"`
	// Digests of release files, by catalog.File.Key: a file that changes under its name is refused.
	Digests map[string]string `json:"digests"`
	// EtcdBootstrap says, by host, how its etcd first started.
	EtcdBootstrap map[string]plan.EtcdBootstrap `json:"etcdBootstrap"`
	// Wanted is the spec that the last run was to bring about, and Applied the last one that was.
	Wanted  *clusterv1alpha1.Provision `json:"wanted,omitempty"`
	Applied *clusterv1alpha1.Provision `json:"applied,omitempty"`
	// Leaving are the hosts that a run takes out, until it has.
	Leaving []clusterv1alpha1.Host `json:"leaving,omitempty"`
	// Begun are the hosts that a run has begun to add and that are not part of Applied yet.
	Begun []clusterv1alpha1.Host `json:"begun,omitempty"`
	// WantedBy is the name of the Operation that Wanted is of.
	WantedBy string `json:"wantedBy,omitempty"`
}

func newState(cluster string) *State {
	return &State{Cluster: cluster, Keys: pki.Bundle{}, Digests: map[string]string{}, EtcdBootstrap: map[string]plan.EtcdBootstrap{}}
}

// Store keeps the state of clusters and the records of the runs.
type Store interface {
	// Load returns the state of a cluster, or nil if nothing is known of it.
	Load(ctx context.Context, cluster string) (*State, error)
	// Save keeps the state of a cluster.
	Save(ctx context.Context, s *State) error
	// Remove forgets the state of a cluster. The records of its runs stay.
	Remove(ctx context.Context, cluster string) error
	// Lock waits until no other process works on the cluster with this Store, or says who does.
	Lock(ctx context.Context, cluster string) (unlock func(), err error)

	// Create keeps a new Operation and names it. It is refused while another of the cluster is unfinished.
	Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error
	// Operation returns one by name, and Operations those of a cluster, or of all, oldest first.
	Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error)
	Operations(ctx context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error)
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
