package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDatabaseUnavailable: tests of a database are skipped only for users who cannot install
// it.
func TestDatabaseUnavailable(t *testing.T) {
	missing, broken := fmt.Errorf("none: %w", exec.ErrNotFound), errors.New("no space left")
	for name, tc := range map[string]struct {
		root   bool
		failed error
		want   string
	}{
		"MissingForRoot":         {true, missing, "failed: X is not installed: run make databases, or set X_DSN to an administrator's DSN of a server"},
		"MissingForOrdinaryUser": {false, missing, "skipped: X is not installed: run make databases as root, or set X_DSN to an administrator's DSN of a server"},
		"BrokenForRoot":          {true, broken, "failed: start X: no space left"},
		"BrokenForOrdinaryUser":  {false, broken, "failed: start X: no space left"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Database{Name: "X", Variable: "X_DSN", failed: tc.failed}
			if diff := cmp.Diff(tc.want, verdictOf(t, func(t testing.TB) { d.unavailable(t, tc.root) })); diff != "" {
				t.Error(diff)
			}
		})
	}
	d := &Database{Name: "X", Variable: "ORRERY_TEST_NO_DSN", program: "no-such-program"}
	want := "skipped"
	if os.Getuid() == 0 {
		want = "failed"
	}
	if got := verdictOf(t, func(t testing.TB) { d.Create(t) }); !strings.HasPrefix(got, want+": X is not installed") {
		t.Errorf("Create: %q, want it %s", got, want)
	}
}

// verdict is a testing.TB that records how the test was ended.
type verdict struct {
	testing.TB
	ended string
}

func (v *verdict) Helper() {}

func (v *verdict) Fatalf(format string, args ...any) {
	v.ended = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (v *verdict) Skipf(format string, args ...any) {
	v.ended = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// verdictOf returns how f ends the test that is passed to it, or "".
func verdictOf(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	v, ended := &verdict{TB: t}, make(chan struct{})
	go func() {
		defer close(ended)
		f(v)
	}()
	<-ended
	return v.ended
}
