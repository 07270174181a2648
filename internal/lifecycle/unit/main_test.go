package unit

import (
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
)

// The test binary also runs as the units. Its arguments select the role, because systemd does not
// pass the environment.
const (
	play = "play-unit-role"

	rolePolite = "polite" // ends on SIGTERM, prints a line on SIGHUP
	roleFail   = "fail"   // exits with 3
	roleDump   = "dump"   // prints its arguments, environment and limit of open files as JSON
	roleParent = "parent" // has a polite child and prints the PID of the child
	roleBoot   = "boot"   // is PID 1 of a machine with systemd
	roleRemove = "remove" // removes it
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
	case roleBoot:
		fmt.Fprintln(os.Stderr, bootInside(args[0], args[1], args[2]))
		return 1
	}
	for s := range signals {
		if s == syscall.SIGTERM {
			return 0
		}
		fmt.Println("hangup")
	}
	return 0
}

type dump struct {
	Args, Env []string
	Files     uint64
}

const patience = 3 * time.Minute

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

// files lists the files below dir with relative paths.
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
