package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/config"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"orrery":                  func() { os.Exit(Run(os.Args[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
		"kubectl-orrery":          func() { os.Exit(Run(os.Args[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
		"kubectl_complete-orrery": func() { os.Exit(Run(os.Args[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// ownBinary returns the path of this test binary under a name that makes it run as orrery. A
// hub that a test starts with it runs the code under test without a build.
func ownBinary(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("orrery")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestScripts runs commands that need no hub as a user types them, and checks output and exit
// code.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "built": built},
		Setup: func(e *testscript.Env) error {
			// Commands find no hub of this machine, and no kubeconfig of this user.
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_DATA_HOME", e.WorkDir+"/data")
			e.Setenv("KUBECONFIG", "")
			return nil
		},
	})
}

// exits runs a command that must end with an exit code: exits 2 orrery bogus.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG ...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// built writes the state of a cluster as if it had been built from a file: built FILE. Negated,
// it writes the state of a build that has begun. With an age, the keys were created that long
// ago: built FILE 8760h.
func built(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: [!] built FILE [AGE]")
	}
	read, err := config.Parse([]byte(ts.ReadFile(args[0])), ts.Getenv("WORK"))
	ts.Check(err)
	spec := read.Cluster.Spec.Provision
	plan.Default(read.Cluster.Name, spec)
	files := lifecycle.Files(filepath.Join(ts.Getenv("XDG_DATA_HOME"), "orrery", "clusters"))
	state := &lifecycle.State{Cluster: read.Cluster.Name, Specs: intent.Specs{Wanted: spec, Applied: spec}}
	state.Digests, state.EtcdBootstrap = map[string]string{}, map[string]plan.EtcdBootstrap{}
	if len(args) == 2 {
		age, err := time.ParseDuration(args[1])
		ts.Check(err)
		ts.Check(state.Mint(time.Now().Add(-age), spec))
	}
	if neg {
		state.Applied, state.Begun = nil, spec.Hosts
	}
	// An earlier line of the script may have written the state.
	if earlier, err := files.Load(context.Background(), state.Cluster); err != nil || earlier != nil {
		ts.Check(err)
		ts.Check(files.Remove(context.Background(), earlier))
	}
	ts.Check(files.Save(context.Background(), state))
}
