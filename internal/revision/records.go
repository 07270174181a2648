package revision

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Revision is a revision as the records keep it.
type Revision struct {
	Template types.UID
	Number   int64
	Hash     string
	Content  []byte
	Cause    string
	Created  time.Time
}

// Records is the part of the records that is needed here.
type Records interface {
	PutRevision(ctx context.Context, r Revision) error
	Revisions(ctx context.Context, template types.UID) ([]Revision, error)
	DeleteRevisions(ctx context.Context, template types.UID, numbers ...int64) error
}
