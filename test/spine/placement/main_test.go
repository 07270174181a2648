// Package placement holds a hub to what it places where: adoption, moves, namespaces, policies, rights and access. Tests that
// touch neither the hub nor the health of a member run in parallel.
package placement

import (
	"testing"

	"orrery.dev/orrery/test/spine"
)

func TestMain(m *testing.M) { spine.Main(m) }
