package node

import (
	"context"
	"fmt"

	"orrery.dev/orrery/internal/disk"
)

// lock waits for a lock file until ctx ends. The lock is held until unlock or the end of the
// process.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := disk.Lock(ctx, path)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("wait for another agent that is at work on this host: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, full(path, err)
	}
	return func() { disk.Unlock(f) }, nil
}
