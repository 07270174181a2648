// Package placement tests where a hub places templates: adoption, moves, namespaces, policies,
// rights and access. Tests that affect neither the hub nor the health of a member run in
// parallel.
package placement

import (
	"testing"

	"orrery.dev/orrery/test/spine"
)

func TestMain(m *testing.M) { spine.Main(m) }
