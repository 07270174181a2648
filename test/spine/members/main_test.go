// Package members tests members that leave, rejoin, are rebuilt, and have any kind of fault.
package members

import (
	"testing"

	"orrery.dev/orrery/test/spine"
)

func TestMain(m *testing.M) { spine.Main(m) }
