package records

import (
	"context"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Policy names a policy of some kind at a generation.
type Policy struct {
	Kind, Namespace, Name string
	Generation            int64
}

// Target is a cluster's share. Replicas is nil for a kind without.
type Target struct {
	Cluster  string
	Replicas *int32
}

// Verdict is what one filter said of some clusters: why they did not pass.
type Verdict struct {
	Reason, Message string
	Clusters        []string
}

// Template is the object that was decided on.
type Template struct {
	APIVersion, Kind, Namespace, Name string
	UID                               types.UID
	Generation                        int64
}

// Decision is where a template belongs, and why. Times are kept to the millisecond.
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

// Result is how the last act in a cluster for a binding ended, and what it was about.
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
	Content  []byte // JSON of what the revision holds
	Cause    string
	Created  time.Time
}

// Recorder takes in what was decided and done. It neither blocks nor fails: what cannot be kept is lost, and counted.
// What was said is read back after a moment.
type Recorder interface {
	// Decided keeps a decision if its outcome or a verdict differs from the last that was kept of the same template.
	// The decision is not changed afterwards by either side.
	Decided(d Decision)
	// Applied replaces the results of the same bindings in the same clusters.
	Applied(results ...Result)
	// ForgetBinding drops the results of a binding. Its decisions stay for their life.
	ForgetBinding(binding types.UID)
	// ForgetCluster drops the results of a cluster. Decisions that name it stay for their life.
	ForgetCluster(cluster string)
}

// Reader returns what was kept. An error says that the records cannot be read now, never that there are none.
type Reader interface {
	// Decisions returns the last decisions on a template, newest first; all of them if limit is not positive.
	Decisions(ctx context.Context, template types.UID, limit int) ([]Decision, error)
	// Results returns the results of one binding, by cluster.
	Results(ctx context.Context, binding types.UID) ([]Result, error)
	// AllResults walks over all results. It ends at the first error.
	AllResults(ctx context.Context) iter.Seq2[Result, error]
}

// RevisionKeeper keeps revisions. Unlike those of a Recorder its writes are done, or have failed, when they return.
type RevisionKeeper interface {
	// PutRevision keeps a revision, in place of one of the same number.
	PutRevision(ctx context.Context, revision Revision) error
	// Revisions returns the revisions of a template, by number.
	Revisions(ctx context.Context, template types.UID) ([]Revision, error)
	// DeleteRevisions deletes the revisions of these numbers, or all of the template if no number is given.
	DeleteRevisions(ctx context.Context, template types.UID, numbers ...int64) error
}

// Store is all of the records.
type Store interface {
	Recorder
	Reader
	RevisionKeeper
}
