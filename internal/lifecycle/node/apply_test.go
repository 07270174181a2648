package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	unchanged = lifecyclev1alpha1.StepUnchanged
	changed   = lifecyclev1alpha1.StepChanged
	reverted  = lifecyclev1alpha1.StepReverted
)

func TestSecondApplyChangesNothing(t *testing.T) {
	l := newLife(t)
	n := host(t, l.before)
	done(t, n, l.requests[0], l.streams...)
	stateBefore, err := os.ReadFile(n.dir(stateFile))
	if err != nil {
		t.Fatal(err)
	}
	for id, state := range done(t, n, l.requests[0]) {
		if state != unchanged {
			t.Errorf("step %s is %s", id, state)
		}
	}
	stateAfter, err := os.ReadFile(n.dir(stateFile))
	if err != nil {
		t.Fatal(err)
	}
	applied := func(content []byte) (s state) {
		var c checked
		if err := json.Unmarshal(content, &c); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(c.Value, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if diff := cmp.Diff(applied(stateBefore), applied(stateAfter), cmp.AllowUnexported(state{}, record{})); diff != "" {
		t.Errorf("state (-before +after):\n%s", diff)
	}
}

// TestDrift damages a host in one way. Observe must report it, and Apply must repair it.
func TestDrift(t *testing.T) {
	l := newLife(t)
	cases := map[string]struct {
		harm func(*Node) error
		step string
		want string
	}{
		"FileEdited": {
			harm: func(n *Node) error { return os.WriteFile(n.path("/etc/crictl.yaml"), []byte("edited"), 0o600) },
			step: "crictl", want: "/etc/crictl.yaml has another content",
		},
		"FileMode": {
			harm: func(n *Node) error { return os.Chmod(n.path("/etc/kubernetes/pki/ca.key"), 0o644) },
			step: "pki/ca", want: "/etc/kubernetes/pki/ca.key has mode 0644, want 0600",
		},
		"FileTruncatedByPowerLoss": {
			harm: func(n *Node) error { return os.Truncate(n.path("/etc/crictl.yaml"), 0) },
			step: "crictl", want: "/etc/crictl.yaml has another content",
		},
		"FileGone": {
			harm: func(n *Node) error { return os.RemoveAll(n.path("/etc/kubernetes")) },
			step: "pki/ca", want: "/etc/kubernetes/pki/ca.key is missing",
		},
		"DirectoryMode": {
			harm: func(n *Node) error { return os.Chmod(n.path("/var/lib/etcd"), 0o755) },
			step: "etcd/data", want: "/var/lib/etcd has mode 0755, want 0700",
		},
		"BinaryDamagedWithSameSizeAndTime": {
			harm: func(n *Node) error {
				at := n.path("/opt/cni/bin/loopback")
				info, err := os.Stat(at)
				if err != nil {
					return err
				}
				content := bytes.Repeat([]byte("x"), int(info.Size()))
				return errors.Join(os.WriteFile(at, content, 0o755), os.Chtimes(at, info.ModTime(), info.ModTime()))
			},
			step: "cni/plugins", want: "/opt/cni/bin/loopback has another content",
		},
		"BinaryGone": {
			harm: func(n *Node) error { return os.Remove(n.path("/opt/orrery/bin/kubelet")) },
			step: "kubelet/binary", want: "/opt/orrery/bin/kubelet is missing",
		},
		"Sysctl": {
			harm: func(n *Node) error { return n.System.SetSysctl("vm.swappiness", "60") },
			step: "sysctls", want: "vm.swappiness is 60, want 0",
		},
		"SysctlFile": {
			harm: func(n *Node) error { return os.Remove(n.path("/etc/sysctl.d/95-orrery.conf")) },
			step: "sysctls", want: "/etc/sysctl.d/95-orrery.conf is missing",
		},
		"Package": {
			harm: func(n *Node) error {
				_, err := n.System.Uninstall(context.Background(), "apt", []string{"conntrack"})
				return err
			},
			step: "packages", want: "not installed: conntrack",
		},
		"UnitGone": {
			harm: func(n *Node) error { return n.Units.Remove(context.Background(), "orrery-kubelet") },
			step: "kubelet/unit", want: "unit orrery-kubelet is missing",
		},
		"UnitEdited": {
			harm: func(n *Node) error {
				return n.Units.Install(context.Background(), plan.Unit{Name: "orrery-kubelet", Command: []string{"other"}})
			},
			step: "kubelet/unit", want: "unit orrery-kubelet was changed",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := host(t, l.before)
			done(t, n, l.requests[0], l.streams...)
			want := tree(t, n, false)
			if err := c.harm(n); err != nil {
				t.Fatal(err)
			}
			applied, err := n.Observe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			drift := make(map[string]string)
			for _, step := range applied.Steps {
				if step.Drift != "" {
					drift[step.ID] = step.Drift
				}
			}
			if diff := cmp.Diff(map[string]string{c.step: c.want}, drift); diff != "" {
				t.Errorf("drift (-want +got):\n%s", diff)
			}
			if state := done(t, n, l.requests[0], l.streams...)[c.step]; state != changed {
				t.Errorf("step %s is %s, want it repaired", c.step, state)
			}
			sameTree(t, "after the repair", tree(t, n, false), want)
		})
	}
}

func TestObserveSaysWhatWasApplied(t *testing.T) {
	n := host(t, nil)
	step := fileStep("a", "/etc/a", "a")
	req := request(step)
	done(t, n, req)
	applied, err := n.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Applied{
		Protocol: Protocol, Cluster: "alpha", ClusterID: "sha256:alpha", Version: "v1.36.3", Lease: req.Lease,
		Steps: []plan.AppliedStep{{ID: "a", Hash: step.Hash(), Complete: true}},
	}
	if diff := cmp.Diff(want, applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
}

func TestEvents(t *testing.T) {
	n := host(t, nil)
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	n.Now = func() time.Time { return now }
	a, broken := fileStep("a", "/etc/a", "a"), fileStep("broken", "/etc/a/b", "b")
	got := apply(t, n, request(a, broken, fileStep("never", "/etc/c", "c")))
	want := []Event{
		{State: lifecyclev1alpha1.StepRunning, Time: now},
		{Step: "a", InputHash: a.Hash(), State: lifecyclev1alpha1.StepRunning, Time: now},
		{Step: "a", InputHash: a.Hash(), State: changed, Time: now},
		{Step: "broken", InputHash: broken.Hash(), State: lifecyclev1alpha1.StepRunning, Time: now},
		{Step: "broken", InputHash: broken.Hash(), State: lifecyclev1alpha1.StepFailed, Time: now},
	}
	if !strings.Contains(got[len(got)-1].Message, "/etc/a/b") {
		t.Errorf("message %q does not name the path", got[len(got)-1].Message)
	}
	got[len(got)-1].Message = ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestChangesKeepTheFirstInverse changes a file several times. Undoing restores the content before
// the first change.
func TestChangesKeepTheFirstInverse(t *testing.T) {
	n := host(t, map[string]string{"/etc/a": "of the user", AgentPath: "agent"})
	before := tree(t, n, true)
	for _, content := range []string{"one", "two", "three"} {
		done(t, n, request(fileStep("a", "/etc/a", content)))
	}
	req := request()
	req.Remove = []string{"a"}
	if diff := cmp.Diff(map[string]lifecyclev1alpha1.StepState{"a": reverted}, done(t, n, req)); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if got := tree(t, n, true)["/etc/a"]; got != before["/etc/a"] {
		t.Errorf("after the removal: %q, want %q", got, before["/etc/a"])
	}
}

// TestPathOfAStepChanges: when a step has another path, the former content of the old path is
// restored.
func TestPathOfAStepChanges(t *testing.T) {
	n := host(t, map[string]string{"/etc/old": "of the user"})
	before := tree(t, n, true)["/etc/old"]
	done(t, n, request(fileStep("a", "/etc/old", "ours"), plan.Step{ID: "u", Unit: &plan.Unit{Name: "orrery-old", Command: []string{"x"}}}))
	done(t, n, request(fileStep("a", "/etc/new", "ours"), plan.Step{ID: "u", Unit: &plan.Unit{Name: "orrery-new", Command: []string{"x"}}}))
	if got := tree(t, n, true)["/etc/old"]; got != before {
		t.Errorf("/etc/old is %q, want %q", got, before)
	}
	units, err := n.System.(*Recorder).Units()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"orrery-new": true}, units); diff != "" {
		t.Errorf("units (-want +got):\n%s", diff)
	}
}

func TestRefusals(t *testing.T) {
	ok := fileStep("a", "/etc/a", "a")
	cases := map[string]struct {
		files   map[string]string
		step    plan.Step
		message string
	}{
		"DirectoryInTheWay": {map[string]string{"/etc/a/": ""}, ok, "/etc/a is a directory, and the step needs another type; move it away"},
		"FileInTheWay": {
			map[string]string{"/etc/d": "x"},
			plan.Step{ID: "d", Directory: &plan.Directory{Path: "/etc/d", Mode: "0755"}},
			"/etc/d is a file, and the step needs another type; move it away",
		},
		"Mode":        {nil, plan.Step{ID: "a", File: &plan.File{Path: "/etc/a", Mode: "rw"}}, `mode "rw": want permissions as octal digits`},
		"SpecialBits": {nil, plan.Step{ID: "a", File: &plan.File{Path: "/etc/a", Mode: "04755"}}, `mode "04755": want permissions`},
		"NoKind":      {nil, plan.Step{ID: "a"}, "step a is of 0 kinds that this agent knows"},
		"TwoKinds":    {nil, plan.Step{ID: "a", File: ok.File, Script: &plan.Script{Run: "x"}}, "step a is of 2 kinds"},
		"NoID":        {nil, plan.Step{File: ok.File}, "step has no ID"},
		"Digest": {
			nil,
			plan.Step{ID: "a", Artifact: &plan.Artifact{Blob: "sha256:../../etc", Mode: "0755", Files: map[string]string{"": "/x"}}},
			`digest "sha256:../../etc": want sha256: and 64 hexadecimal digits`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := host(t, c.files)
			before := tree(t, n, false)
			e := failed(t, n, request(c.step))
			if !strings.Contains(e.Message, c.message) {
				t.Errorf("message %q, want %q in it", e.Message, c.message)
			}
			before["/var"], before["/var/lib"], before["/var/lib/orrery"] = "drwxr-xr-x", "drwxr-xr-x", "drwxr-xr-x"
			if c.files == nil {
				delete(before, "/etc")
			}
			sameTree(t, "after the refusal", tree(t, n, false), before)
		})
	}
}

func TestStaysWithinRoot(t *testing.T) {
	outer := t.TempDir()
	n := Rooted(filepath.Join(outer, "root"))
	furnish(t, n, map[string]string{"/etc/": ""})
	done(t, n, request(fileStep("a", "/../../escaped", "a")))
	if entries, err := names(outer); err != nil || !cmp.Equal(entries, []string{"root"}) {
		t.Errorf("beside the root: %v, %v", entries, err)
	}
}

func TestSocketInTheWay(t *testing.T) {
	n := host(t, map[string]string{"/run/": ""})
	if err := unix.Mkfifo(n.path("/run/a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e := failed(t, n, request(fileStep("a", "/run/a", "a"))); !strings.Contains(e.Message, "move it away") {
		t.Errorf("message %q", e.Message)
	}
}

// TestSecretsAreNowhere searches all events and stored files for the content of a secret file.
func TestSecretsAreNowhere(t *testing.T) {
	n := host(t, nil)
	const secret = "tell-nobody"
	step := plan.Step{ID: "key", File: &plan.File{Path: "/etc/key", Mode: "0600", Content: secret, Secret: true}}
	hook := plan.Step{ID: "hook", Script: &plan.Script{Run: "password=" + secret}}
	broken := plan.Step{ID: "broken", File: &plan.File{Path: "/etc/key/x", Mode: "0600", Content: secret, Secret: true}}
	var said bytes.Buffer
	if err := n.Apply(t.Context(), input(t, request(step, hook, broken)), &said); err != nil {
		t.Fatal(err)
	}
	applied, err := n.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(&said).Encode(applied); err != nil {
		t.Fatal(err)
	}
	for path, content := range tree(t, n, true) {
		if strings.HasPrefix(path, Dir) {
			said.WriteString(content)
		}
	}
	if strings.Contains(said.String(), secret) {
		t.Errorf("the secret is in: %s", said.String())
	}
	info, err := os.Stat(n.dir())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %v, %v", Dir, info.Mode(), err)
	}
}

// TestRevertFails: the event names the step that cannot be undone, and the next removal continues.
func TestRevertFails(t *testing.T) {
	n := host(t, map[string]string{AgentPath: "agent"})
	done(t, n, request(fileStep("a", "/etc/a", "a"), fileStep("b", "/etc/b", "b"), fileStep("c", "/etc/c", "c")))
	if err := errors.Join(os.Remove(n.path("/etc/b")), os.Mkdir(n.path("/etc/b"), 0o700), os.WriteFile(n.path("/etc/b/x"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if e := failed(t, n, removal()); e.Step != "b" {
		t.Errorf("failed at %q, want b: %s", e.Step, e.Message)
	}
	if err := os.RemoveAll(n.path("/etc/b")); err != nil {
		t.Fatal(err)
	}
	states := done(t, n, removal())
	if diff := cmp.Diff(map[string]lifecyclev1alpha1.StepState{"a": reverted, "b": reverted}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	sameTree(t, "after the removal", tree(t, n, true), map[string]string{"/opt": "drwxr-xr-x"})
}

func TestRemovalOfAFreeHost(t *testing.T) {
	n := host(t, map[string]string{"/etc/a": "a"})
	before := tree(t, n, true)
	done(t, n, removal())
	release := request()
	release.Release = true
	done(t, n, release)
	sameTree(t, "after the removal", tree(t, n, true), before)
}

func TestBackupIsGone(t *testing.T) {
	n := host(t, map[string]string{"/etc/a": "of the user"})
	done(t, n, request(fileStep("a", "/etc/a", "ours")))
	if err := os.RemoveAll(n.dir("backup")); err != nil {
		t.Fatal(err)
	}
	events := apply(t, n, removal())
	if e := events[len(events)-1]; e.State != reverted || !strings.Contains(e.Message, "/etc/a cannot be brought back") {
		t.Errorf("event %+v", e)
	}
}

// TestFaults fails at every point with an error, as of a disk. The event names the step, and the
// same request continues.
func TestFaults(t *testing.T) {
	l := newLife(t)
	undisturbed := host(t, l.before)
	done(t, undisturbed, l.requests[0], l.streams...)
	want := tree(t, undisturbed, false)
	for left := int64(1); ; left++ {
		n := host(t, l.before)
		var count atomic.Int64 // content arrives while steps run
		n.Fault = func(string) error {
			if count.Add(1) == left {
				return unix.EIO
			}
			return nil
		}
		events := apply(t, n, l.requests[0], l.streams...)
		if count.Load() < left {
			break
		}
		last := events[len(events)-1]
		// Content that could not be stored is reported as missing, and sent again.
		if last.State == lifecyclev1alpha1.StepFailed && last.Message == "" {
			t.Errorf("fault %d: event %+v has no message", left, last)
		}
		n.Fault = nil
		done(t, n, l.requests[0], l.streams...)
		sameTree(t, "after a fault and the same request", tree(t, n, false), want)
	}
}
