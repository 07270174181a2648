package unit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// The test binary plays the units and the supervisor too; its arguments say which, since a supervisor passes no
// environment on.
const (
	play = "play-unit-role"

	rolePolite    = "polite"    // ends on SIGTERM, says so on SIGHUP
	roleFail      = "fail"      // exits with 3
	roleDump      = "dump"      // prints its arguments, environment and limit of open files as JSON
	roleParent    = "parent"    // has a polite child, whose PID it prints
	roleSupervise = "supervise" // is the supervisor below a root
	roleBoot      = "boot"      // is PID 1 of a machine with systemd
	roleInstall   = "install"   // installs a polite unit on this host and starts it
	roleObserve   = "observe"   // prints how that unit is
	roleRemove    = "remove"    // removes it
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == play {
		os.Exit(perform(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

func perform(role string, args []string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	switch role {
	case rolePolite:
		fmt.Println("polite", strings.Join(args, " "))
	case roleFail:
		fmt.Println("failing")
		return 3
	case roleDump:
		var limit syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		content, err := json.Marshal(dump{Args: args, Env: os.Environ(), Files: limit.Cur})
		if err != nil {
			return 5
		}
		fmt.Println("dump", string(content))
	case roleParent:
		cmd := exec.Command(os.Args[0], play, rolePolite, "child")
		if err := cmd.Start(); err != nil {
			return 5
		}
		fmt.Println("child", cmd.Process.Pid)
	case roleInstall, roleObserve, roleRemove:
		if err := manage(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case roleBoot:
		fmt.Fprintln(os.Stderr, bootInside(args[0], args[1], args[2]))
		return 1
	case roleSupervise:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		log := funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{})
		if err := Supervise(logr.NewContext(ctx, log), args[0]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	for s := range signals {
		if s == syscall.SIGTERM {
			return 0
		}
		fmt.Println("hangup")
	}
	return 0
}

// manage does what its role says with the unit of TestBoot.
func manage(role string) error {
	ctx := context.Background()
	u := plan.Unit{Name: "orrery-polite", Command: []string{os.Args[0], play, rolePolite}}
	m := NewSupervisor("/", os.Args[0], play, roleSupervise, "/")
	switch role {
	case roleInstall:
		if err := m.Install(ctx, u); err != nil {
			return err
		}
		return m.Restart(ctx, u.Name)
	case roleRemove:
		return m.Remove(ctx, u.Name)
	default:
		all, err := m.Observe(ctx, []string{u.Name})
		fmt.Printf("%+v\n", all[u.Name])
		return err
	}
}

type dump struct {
	Args, Env []string
	Files     uint64
}

const patience = time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// runs is true while the process is there and no zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// files below dir, relative.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return all
}
