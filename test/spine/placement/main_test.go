// Package placement tests where a hub places templates: adoption, moves, namespaces, policies,
// rights and access. Tests that affect neither the hub nor the health of a member run in
// parallel.
package placement

import (
	"testing"

	"orrery.dev/orrery/test/spine"
)

// The tests of evictions wait neither for a cluster that has just begun or ceased to answer to
// settle, nor for the rate of evictions.
func TestMain(m *testing.M) {
	spine.Main(m, "--failover-settling-time=1s", "--resource-eviction-rate=100")
}
