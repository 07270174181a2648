package node

import (
	"context"
	"fmt"

	"orrery.dev/orrery/internal/disk"
)

// lock waits until it holds the lock on the file at path, which it creates if it is missing. If ctx
// ends first, it returns an error. The lock is held until unlock is called or the process ends.
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
