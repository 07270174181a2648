// Package e2e tests the whole of Orrery as its users meet it: the binary, plain kubectl,
// real API servers in the hub and in every member.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
)

// deadline is how long anything may take that should take a moment.
const deadline = time.Minute

// dataDir is the demo's; every test shares the demo, each in a namespace of its own. Those
// that harm it run alone; the others run at once after them, and name the clusters they use,
// for one of them joins another.
var dataDir string

func TestMain(m *testing.M) {
	code := 1
	if err := run(m, &code); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, code *int) error {
	// Tests wait for processes more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		return err
	}
	home, err := os.MkdirTemp("", "orrery-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	// The documents' commands find the demo where its default is.
	for k, v := range map[string]string{"HOME": home, "XDG_DATA_HOME": filepath.Join(home, ".local", "share")} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	dataDir = filepath.Join(home, ".local", "share", "orrery-demo")
	start := time.Now()
	// The hub dials one member, and the agents of the two others dial the hub: no test knows which.
	out, err := exec.Command(orreryBinary(), "demo", "up", "--detach", "--by-agent=pine,birch").CombinedOutput()
	if err != nil {
		return fmt.Errorf("demo up: %w\n%s\n%s", err, out, logs(dataDir))
	}
	fmt.Printf("demo is ready after %s\n%s", time.Since(start).Round(time.Second), out)
	*code = m.Run()
	for _, f := range logFiles(dataDir) {
		if text, _ := os.ReadFile(f); testenv.Crash(string(text)) != "" {
			fmt.Printf("a process ended by a fault of its own, %s:\n%s\n", f, testenv.Crash(string(text)))
			*code = 1
		}
	}
	if *code != 0 {
		fmt.Println(logs(dataDir))
	}
	if out, err := exec.Command(orreryBinary(), "demo", "down").CombinedOutput(); err != nil {
		return fmt.Errorf("demo down: %w\n%s", err, out)
	}
	if left := processesOf(dataDir); len(left) > 0 {
		return fmt.Errorf("demo down left processes: %v", left)
	}
	return nil
}

func orreryBinary() string {
	testenv.Programs()
	return filepath.Join(testenv.Root(), "bin", "orrery")
}

// logs returns the ends of the demo's logs.
func logs(dir string) string {
	var b strings.Builder
	for _, f := range logFiles(dir) {
		text, _ := os.ReadFile(f)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", f, strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
	return b.String()
}

// logFiles are the logs of the hub and of the demo.
func logFiles(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "processes", "hub*.log"))
	more, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	return append(files, more...)
}

// processesOf lists the processes whose command line names a directory.
func processesOf(dir string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(b, []byte(dir)) && filepath.Base(filepath.Dir(f)) != fmt.Sprint(os.Getpid()) {
			found = append(found, filepath.Base(filepath.Dir(f))+" "+strings.ReplaceAll(string(b[:min(len(b), 120)]), "\x00", " "))
		}
	}
	return found
}

// kubectl runs the bundled kubectl against a context of the demo and returns what it
// prints; it fails the test when kubectl fails.
func kubectl(t testing.TB, context string, args ...string) string {
	t.Helper()
	out, err := tryKubectl(context, "", args...)
	if err != nil {
		t.Fatalf("kubectl --context %s %s: %v\n%s", context, strings.Join(args, " "), err, out)
	}
	return out
}

// apply applies manifests.
func apply(t testing.TB, context, manifest string, args ...string) {
	t.Helper()
	out, err := tryKubectl(context, manifest, append([]string{"apply", "-f", "-"}, args...)...)
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
}

func tryKubectl(context, stdin string, args ...string) (string, error) {
	cmd := exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "--context", context}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dataDir, "kubeconfig"))
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// get reads an object, or a list, as JSON into v.
func get(t testing.TB, context string, v any, args ...string) {
	t.Helper()
	out := kubectl(t, context, append([]string{"get", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("read %s: %v\n%s", args, err, out)
	}
}

// eventually waits until check returns "", which says what is still missing.
func eventually(t testing.TB, within time.Duration, check func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// Most checks run kubectl, which costs more than what it waits for.
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := check()
		if missing == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %s", within, missing)
		case <-tick.C:
		}
	}
}

// namespace makes a namespace on the hub for one test.
func namespace(t testing.TB, name string) string {
	t.Helper()
	kubectl(t, "hub", "create", "namespace", name)
	t.Cleanup(func() { _, _ = tryKubectl("hub", "", "delete", "namespace", name, "--ignore-not-found") })
	return name
}
