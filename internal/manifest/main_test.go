package manifest_test

import (
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }
