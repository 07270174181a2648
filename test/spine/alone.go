package spine

import "testing"

// AloneWith is Alone with a hub that has additional flags.
func AloneWith(t *testing.T, ns string, more ...string) *World {
	t.Helper()
	return alone(t, ns, append(probes(), more...)...)
}
