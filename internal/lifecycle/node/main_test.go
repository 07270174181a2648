package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest/recorder"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Recorder is the System of a host that is a directory.
type Recorder = recorder.System

// Rooted returns a host that is a directory. It does not sync to disk.
func Rooted(root string) *Node {
	system, units := recorder.New(root)
	return &Node{Root: root, System: system, Units: units, Now: time.Now, NoSync: true}
}

// With agentRoot, this program is an agent. It kills itself at the point with the number agentKill.
const (
	agentRoot = "ORRERY_TEST_AGENT_ROOT"
	agentKill = "ORRERY_TEST_AGENT_KILL"
)

func TestMain(m *testing.M) {
	if os.Getenv(asShim) != "" {
		child := exec.Command("sleep", "600")
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Println(child.Process.Pid)
		child.Wait()
		os.Exit(0)
	}
	root := os.Getenv(agentRoot)
	if root == "" {
		os.Exit(m.Run())
	}
	kill, err := strconv.Atoi(os.Getenv(agentKill))
	if err != nil {
		panic(err)
	}
	var points atomic.Int64 // content arrives while steps run
	n := Rooted(root)
	n.Fault = func(string) error {
		if points.Add(1) == int64(kill) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	if err := n.Apply(context.Background(), os.Stdin, os.Stdout); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// agent runs a request in its own process, which kills itself at a point. It reports whether the
// process reached that point.
func agent(t *testing.T, root string, req Request, kill int, streams ...string) (killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), agentRoot+"="+root, agentKill+"="+strconv.Itoa(kill))
	cmd.Stdin = input(t, req, streams...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("agent: %v\n%s", err, out.String())
	}
	return false
}

func input(t *testing.T, req Request, streams ...string) *bytes.Reader {
	t.Helper()
	for _, s := range streams {
		req.Streams = append(req.Streams, Stream{Digest: digestOf([]byte(s)), Size: int64(len(s))})
	}
	line, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader([]byte(string(line) + "\n" + strings.Join(streams, "")))
}

// apply runs a request and returns the events.
func apply(t *testing.T, n *Node, req Request, streams ...string) []Event {
	t.Helper()
	var out bytes.Buffer
	if err := n.Apply(t.Context(), input(t, req, streams...), &out); err != nil {
		t.Fatal(err)
	}
	var events []Event
	decoder := json.NewDecoder(&out)
	for decoder.More() {
		var e Event
		if err := decoder.Decode(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// done runs a request that must not fail, and returns the final state of each step.
func done(t *testing.T, n *Node, req Request, streams ...string) map[string]lifecyclev1alpha1.StepState {
	t.Helper()
	states := make(map[string]lifecyclev1alpha1.StepState)
	for _, e := range apply(t, n, req, streams...) {
		if e.State == lifecyclev1alpha1.StepFailed {
			t.Fatalf("step %q failed: %s", e.Step, e.Message)
		}
		if e.Step != "" {
			states[e.Step] = e.State
		}
	}
	return states
}

// failed runs a request that must fail, and returns the last event.
func failed(t *testing.T, n *Node, req Request, streams ...string) Event {
	t.Helper()
	events := apply(t, n, req, streams...)
	last := events[len(events)-1]
	if last.State != lifecyclev1alpha1.StepFailed {
		t.Fatalf("last event is %+v, want a failure", last)
	}
	return last
}

// request returns a request of the same run with these steps.
func request(steps ...plan.Step) Request {
	return Request{
		Protocol: Protocol, Cluster: "alpha", ClusterID: "sha256:alpha", Version: "v1.36.3", Steps: steps,
		Lease: plan.Lease{Operation: "create-alpha", Holder: "anna@desk", Epoch: 1, Expires: time.Now().Add(time.Hour)},
	}
}

func removal() Request {
	r := request()
	r.RemoveAll = true
	return r
}

// host returns a host with these files. A name that ends with / is a directory, and a content that
// begins with -> is a link.
func host(t *testing.T, files map[string]string) *Node {
	t.Helper()
	n := Rooted(memoryDir(t))
	furnish(t, n, files)
	return n
}

// memoryDir returns a directory in memory, because hundreds of short-lived hosts would load the
// disk.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "orrery-node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func furnish(t *testing.T, n *Node, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at, content := n.path(name), files[name]
		target, link := strings.CutPrefix(content, "->")
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		case link:
			err = os.Symlink(target, at)
		default:
			if err = os.WriteFile(at, []byte(content), 0o640); err == nil {
				err = os.Chtimes(at, time.Time{}, time.Unix(1_600_000_000, 123_000_000))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tree lists everything below the root, without the agent's directory unless withTimes is true.
func tree(t *testing.T, n *Node, withTimes bool) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(n.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == n.Root {
			return err
		}
		if path == n.dir() && !withTimes {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		entry := info.Mode().String()
		switch info.Mode().Type() { //nolint:exhaustive // the test makes no others
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			entry += " -> " + target
		case 0:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			entry += " " + string(content)
			if withTimes {
				entry += " " + info.ModTime().String()
			}
		}
		found[strings.TrimPrefix(path, n.Root)] = entry
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func sameTree(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// targz returns an archive.
func targz(t *testing.T, members map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(members[name]))}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(w, members[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func fileStep(id, path, content string) plan.Step {
	return plan.Step{ID: id, File: &plan.File{Path: path, Mode: "0644", Content: content}}
}
