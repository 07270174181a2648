// Package hub kills, damages and restores a hub, and attacks the fleet at random.
package hub

import (
	"testing"

	"orrery.dev/orrery/test/spine"
)

func TestMain(m *testing.M) { spine.Main(m) }
