package cli

import (
	"context"
	"fmt"
	"os"

	"orrery.dev/orrery/internal/lifecycle"
)

// fetch reads a manifest or an archive of a chart: a URL, or a file of this machine.
func fetch(ctx context.Context, location string) ([]byte, error) {
	if !lifecycle.IsURL(location) {
		return os.ReadFile(location)
	}
	content, err := lifecycle.Fetch(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file of this machine instead, if it has no access to the network", err)
	}
	return content, nil
}
