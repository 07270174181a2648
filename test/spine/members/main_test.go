// Package members has members leave, come back, be rebuilt and be in all kinds of trouble.
package members

import (
	"testing"

	"orrery.dev/orrery/test/spine"
)

func TestMain(m *testing.M) { spine.Main(m) }
