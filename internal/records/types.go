package records

import (
	"context"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Policy names a policy at a generation.
type Policy struct {
	Kind, Namespace, Name string
	Generation            int64
}

// Target is a cluster with its replicas. Replicas is nil for a kind without.
type Target struct {
	Cluster  string
	Replicas *int32
}

// Verdict is the reason of one filter for not placing the template in some clusters.
type Verdict struct {
	Reason, Message string
	Clusters        []string
}

// Template is the object of the decision.
type Template struct {
	APIVersion, Kind, Namespace, Name string
	UID                               types.UID
	Generation                        int64
}

// Decision records where a template is placed, and why. Times have a precision of a millisecond.
type Decision struct {
	Binding         types.UID
	Template        Template
	Time            time.Time
	Snapshot        uint64 // version of the fleet's snapshot
	Claimed         Policy
	PlacementHash   string
	Lost            []Policy // claims that lost, in order
	Overrides       []Policy // override policies that select the template, in order
	Reason, Message string   // of the condition Scheduled
	Replicas        *int32
	Divided         bool
	Targets         []Target // by cluster
	Evictions       []Target // by cluster
	Verdicts        []Verdict
}

// Result is the outcome of the last operation in a cluster for a binding.
type Result struct {
	Binding         types.UID
	Cluster         string
	ClusterUID      types.UID
	Applied         bool
	Reason, Message string
	Generation      int64  // of the binding
	Template        string // version of the template
	Digest          string // of the manifest
	Fields          uint64 // hash of the fields that the hub's server-side apply owned then
	Time            time.Time
}

// Revision is one state of a workload's pod template.
type Revision struct {
	Template types.UID
	Number   int64
	Hash     string // of the pod template
	Content  []byte // the stored state as JSON
	Cause    string
	Created  time.Time
}

// Recorder stores decisions and results. Its methods neither block nor fail: records that cannot
// be stored are lost, and dropped decisions are counted. Readers see a record after a moment.
type Recorder interface {
	// Decided stores a decision if its outcome or a verdict differs from the last stored decision
	// on the template. Neither side may change the decision afterwards.
	Decided(d Decision)
	// Applied replaces the results of the same bindings in the same clusters.
	Applied(results ...Result)
	// ForgetBinding deletes the results of a binding. Its decisions stay until they are pruned.
	ForgetBinding(binding types.UID)
	// ForgetCluster deletes the results of a cluster. Decisions that name it stay until they are
	// pruned.
	ForgetCluster(cluster string)
}

// Reader returns stored records. An error means that the records cannot be read now, never that
// there are none.
type Reader interface {
	// Decisions returns the last decisions on a template, newest first; all of them if limit
	// is not positive.
	Decisions(ctx context.Context, template types.UID, limit int) ([]Decision, error)
	// Results returns the results of one binding, by cluster.
	Results(ctx context.Context, binding types.UID) ([]Result, error)
	// AllResults iterates over all results. It ends at the first error.
	AllResults(ctx context.Context) iter.Seq2[Result, error]
}

// RevisionKeeper stores revisions. Unlike those of a Recorder, its writes are complete, or have
// failed, when they return.
type RevisionKeeper interface {
	// PutRevision stores a revision. It replaces one with the same number.
	PutRevision(ctx context.Context, revision Revision) error
	// Revisions returns the revisions of a template, by number.
	Revisions(ctx context.Context, template types.UID) ([]Revision, error)
	// DeleteRevisions deletes the revisions with these numbers, or all revisions of the template if
	// there are no numbers.
	DeleteRevisions(ctx context.Context, template types.UID, numbers ...int64) error
}

// Store is the whole interface to the records.
type Store interface {
	Recorder
	Reader
	RevisionKeeper
}
