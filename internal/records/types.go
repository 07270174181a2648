package records

import (
	"context"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Policy names a policy of a decision, and the generation of the policy that was used. Namespace is
// "" for a policy that is cluster-scoped.
type Policy struct {
	Kind, Namespace, Name string
	Generation            int64
}

// Target is a cluster that was chosen for a template, with the number of its replicas. Replicas is
// nil if the template has a kind without replicas.
type Target struct {
	Cluster  string
	Replicas *int32
}

// Verdict is the reason why one filter of the scheduler rejected some clusters for a template.
type Verdict struct {
	Reason, Message string
	Clusters        []string
}

// Template names the object on the hub that a decision places, and the generation of the object
// that was used.
type Template struct {
	APIVersion, Kind, Namespace, Name string
	UID                               types.UID
	Generation                        int64
}

// Decision records where a template is placed, why, and for which reasons other clusters were
// rejected. Times have a precision of a millisecond. Readers return decisions with sorted targets,
// evictions and verdicts, and with nil for empty lists.
type Decision struct {
	Binding         types.UID // of the template's binding, the object that stores the decision
	Template        Template
	Time            time.Time
	Snapshot        uint64   // version of the scheduler's copy of the fleet
	Claimed         Policy   // the policy that places the template
	PlacementHash   string   // hash of the placement in the policy
	Lost            []Policy // competing policies that lost, in order
	Overrides       []Policy // override policies that select the template, in order
	Reason, Message string   // of the condition Scheduled
	Replicas        *int32   // of the template; nil: its kind has none
	Divided         bool     // the clusters share the replicas
	Targets         []Target // by cluster
	Evictions       []Target // unfinished moves out of clusters; by cluster
	Verdicts        []Verdict
}

// Result is the outcome of the last operation of package apply for one binding in one cluster:
// whether the template's copy there is applied, and if not, why.
type Result struct {
	Binding         types.UID
	Cluster         string
	ClusterUID      types.UID
	Applied         bool
	Reason, Message string
	Generation      int64  // of the binding
	Template        string // version of the template, see template.Recorded
	Digest          string // of the manifest
	Fields          uint64 // hash of the fields that the hub's server-side apply owned then
	Time            time.Time
}

// Revision is one stored state of a workload's pod template, with its number, for rollbacks.
type Revision struct {
	Template types.UID
	Number   int64
	Hash     string // of the pod template
	Content  []byte // the stored state as JSON
	Cause    string // reason for the change
	Created  time.Time
}

// Recorder stores decisions and results, for placement and apply. Its methods do not block, and
// return no error: a record that cannot be stored is lost. Lost decisions are counted in a metric.
// A Reader returns a record only after it was written, a moment later. Several goroutines may call
// the methods.
type Recorder interface {
	// Decided stores a decision, unless its outcome and verdicts equal those of the last stored
	// decision on the template. The caller must not change the decision's lists afterwards.
	Decided(d Decision)
	// Applied stores results. Each replaces the result of the same binding in the same cluster.
	Applied(results ...Result)
	// ForgetBinding deletes the results of a binding. Its decisions stay until they are pruned.
	ForgetBinding(binding types.UID)
	// ForgetCluster deletes the results of a cluster. Decisions that name it stay until they are
	// pruned.
	ForgetCluster(cluster string)
}

// Reader returns stored records. If there are no records, the result is empty and the error is nil.
// An error means that the records cannot be read now. It is an ErrUnavailable, or that of ctx.
type Reader interface {
	// Decisions returns the last decisions on a template, newest first; all of them if limit
	// is not positive.
	Decisions(ctx context.Context, template types.UID, limit int) ([]Decision, error)
	// Results returns the results of one binding, by cluster.
	Results(ctx context.Context, binding types.UID) ([]Result, error)
	// AllResults iterates over all results, by binding. After an error it yields an empty
	// result with that error, and ends.
	AllResults(ctx context.Context) iter.Seq2[Result, error]
}

// RevisionKeeper stores revisions of workloads. A write is complete, or has failed, when the method
// returns. An error is an ErrUnavailable, or that of ctx.
type RevisionKeeper interface {
	// PutRevision stores a revision. It replaces one with the same number.
	PutRevision(ctx context.Context, revision Revision) error
	// Revisions returns the revisions of a template, by number.
	Revisions(ctx context.Context, template types.UID) ([]Revision, error)
	// DeleteRevisions deletes the revisions with these numbers, or all revisions of the
	// template if there are no numbers. Missing revisions are no error.
	DeleteRevisions(ctx context.Context, template types.UID, numbers ...int64) error
}

// Store has all methods to write and read records. Records implements it.
type Store interface {
	Recorder
	Reader
	RevisionKeeper
}
