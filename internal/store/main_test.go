package store

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := testenv.StopDatabases(); err != nil {
		fmt.Fprintln(os.Stderr, "stop databases:", err)
		code = 1
	}
	os.Exit(code)
}

// onEach runs a test in an empty database of each kind, in parallel. Its caller must do nothing
// after it. openStore opens the path or DSN that the test gets.
func onEach(t *testing.T, test func(t *testing.T, at string)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, t.TempDir())
	})
	onServers(t, func(t *testing.T, _ *testenv.Database, at string) { test(t, at) })
}

// onServers is onEach for the database servers alone.
func onServers(t *testing.T, test func(t *testing.T, d *testenv.Database, at string)) {
	for _, d := range []*testenv.Database{testenv.PostgreSQL, testenv.MariaDB} {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			test(t, d, d.Create(t))
		})
	}
}

// open opens a store that never renews its claim and has one reader, unless an option changes
// that. With one reader, a request that holds a connection and waits for another one never
// ends. Without renewals, only the test's own calls write.
func open(t testing.TB, at string, options ...Option) (*Store, error) {
	options = append([]Option{withReaders(1), ticking(nil)}, options...)
	if strings.Contains(at, "://") {
		return OpenDSN(t.Context(), at, options...)
	}
	return Open(t.Context(), at, options...)
}
