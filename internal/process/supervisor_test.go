package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestStartsAndStopsInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, Plan{Processes: []Process{
		withReadyFile(actor("c", rolePolite, "", "b"), dir),
		withReadyFile(actor("b", rolePolite, "", "a"), dir),
		withReadyFile(actor("a", rolePolite, ""), dir),
	}})
	for _, name := range []string{"a", "b", "c"} {
		// A process with its signal handler stops by itself.
		r.waitLog(name, "polite")
		touch(t, filepath.Join(dir, name+".ready"))
	}
	r.waitReady()
	r.patient("a", "b", "c")
	r.stop()
	<-r.done
	if r.err != nil {
		t.Errorf("Run: %v", r.err)
	}
	want := []string{
		"Started a", "Ready a", "Started b", "Ready b", "Started c", "Ready c", "Stopped c", "Stopped b", "Stopped a",
	}
	if diff := cmp.Diff(want, r.recorded(EventStarted, EventReady, EventStopped)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for _, s := range r.Status() {
		want := Status{
			Name: s.Name, State: StateStopped, Since: s.Since, LastExit: "exit status 0", Log: filepath.Join(dir, s.Name+".log"),
		}
		if diff := cmp.Diff(want, s); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		if _, err := os.Stat(filepath.Join(dir, s.Name+".pid")); !os.IsNotExist(err) {
			t.Errorf("pidfile of %s after the stop: %v", s.Name, err)
		}
	}
}

func TestParallelism(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d"}
	all := make([]Process, 0, len(names))
	for _, name := range names {
		all = append(all, withReadyFile(actor(name, rolePolite, ""), dir))
	}
	r := start(t, dir, Plan{Parallelism: 2, Processes: all})
	started := func(name string) {
		eventually(t, name+" started", func() bool { return slices.Contains(r.recorded(EventStarted), string(EventStarted)+" "+name) })
	}
	for _, name := range []string{"b", "a", "c", "d"} {
		started(name)
		if name == "b" {
			started("a") // both processes that may start have started, in the order of the plan
		}
		touch(t, filepath.Join(dir, name+".ready"))
	}
	r.waitReady()
	starting, most := 0, 0
	for _, event := range r.recorded(EventStarted, EventReady) {
		if strings.HasPrefix(event, string(EventStarted)) {
			starting++
		} else {
			starting--
		}
		most = max(most, starting)
	}
	if most != 2 {
		t.Errorf("at most %d processes were starting at once, want 2", most)
	}
}

func TestRespawn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, Plan{Processes: []Process{actor("a", rolePolite, ""), actor("b", rolePolite, "", "a")}})
	r.waitReady()
	a, b := r.status("a").PID, r.status("b").PID
	kill(t, a, syscall.SIGKILL)
	eventually(t, "a is ready again", func() bool {
		s := r.status("a")
		return s.State == StateReady && s.PID != a
	})
	got := r.status("a")
	if got.Restarts != 1 || got.LastExit != "signal: killed" {
		t.Errorf("status of a: got %+v, want one restart after signal: killed", got)
	}
	if got := r.status("b"); got.PID != b || got.Restarts != 0 {
		t.Errorf("status of b, which comes after a: got %+v, want PID %d and no restart", got, b)
	}
	pidfile, err := os.ReadFile(filepath.Join(dir, "a.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(string(pidfile), "\n"); first != fmt.Sprint(got.PID) {
		t.Errorf("pidfile of a: got PID %s, want %d", first, got.PID)
	}
}

// TestBackoff: once a process was ready it is respawned without limit, with growing delays.
func TestBackoff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	once := filepath.Join(dir, "once")
	p := actor("a", roleOnce, once)
	p.Ready = &Probe{Exec: &ExecProbe{Command: []string{"test", "-e", once}}}
	r := start(t, dir, Plan{Processes: []Process{p}})
	r.waitReady()
	kill(t, r.status("a").PID, syscall.SIGKILL)
	eventually(t, "more ends than a process gets that was never ready", func() bool {
		return len(r.messages(EventExited)) > startAttempts
	})
	want := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}
	got := make([]time.Duration, 0, len(want))
	for _, message := range r.messages(EventExited)[:len(want)] {
		backoff, err := time.ParseDuration(message[strings.LastIndexByte(message, ' ')+1:])
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, backoff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("backoff (-want +got):\n%s", diff)
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := actor("missing", rolePolite, "")
	missing.Command = []string{filepath.Join(dir, "no-such-binary")}
	unwritable := actor("unwritable", rolePolite, "")
	unwritable.Files = []File{{Path: "/proc/no/such/file"}}
	cases := map[string]struct {
		process Process
		want    []string
	}{
		"Exits": {
			process: withReadyFile(actor("fails", roleFail, ""), dir),
			want:    []string{"fails", "exit status 3", "fails.log", "line 2\n", "line 11"},
		},
		"NoBinary": {process: missing, want: []string{"missing", "no-such-binary"}},
		"NoFile":   {process: unwritable, want: []string{"unwritable", "/proc/no"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := start(t, dir, Plan{Processes: []Process{
				actor("first", rolePolite, ""), tc.process, actor("last", rolePolite, "", tc.process.Name),
			}})
			<-r.done
			if r.err == nil {
				t.Fatal("Run: got no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(r.err.Error(), want) {
					t.Errorf("Run: got %q, want %q in it", r.err, want)
				}
			}
			if strings.Contains(r.err.Error(), "line 1\n") {
				t.Errorf("Run: got %q, want only the last 10 lines", r.err)
			}
			if got := r.recorded(EventStarted, EventStopped); len(got) == 0 || got[len(got)-1] != "Stopped first" {
				t.Errorf("got events %q, want first to be stopped at the end", got)
			}
			if s := r.status("last"); s.Restarts != 0 || r.log("last") != "" {
				t.Errorf("last was started: %+v", s)
			}
		})
	}
}

func TestSlow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := withReadyFile(actor("a", rolePolite, ""), dir)
	p.Ready.Timeout = metav1.Duration{Duration: 200 * time.Millisecond}
	r := start(t, dir, Plan{Processes: []Process{p}})
	eventually(t, "a is called slow", func() bool { return len(r.messages(EventSlow)) == 1 })
	if got := r.messages(EventSlow)[0]; !strings.Contains(got, "a.ready") || !strings.Contains(got, "a.log") {
		t.Errorf("event: got %q, want what the probe said and the log", got)
	}
	touch(t, p.Ready.File.Path)
	r.waitReady()
	if got := r.status("a"); got.Restarts != 0 {
		t.Errorf("a slow process was restarted: %+v", got)
	}
}

func TestStatusWhileWaiting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, Plan{Processes: []Process{withReadyFile(actor("a", rolePolite, ""), dir), actor("b", rolePolite, "", "a")}})
	r.waitLog("a", "polite")
	eventually(t, "a counts as started", func() bool { return r.status("a").State != StateWaiting })
	got := map[string]State{}
	for _, s := range r.Status() {
		got[s.Name] = s.State
	}
	if diff := cmp.Diff(map[string]State{"a": StateStarting, "b": StateWaiting}, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func TestEnvironmentDirectoryAndFiles(t *testing.T) {
	t.Parallel()
	dir, work := t.TempDir(), t.TempDir()
	p := actor("a", roleEnviron, "of the plan")
	p.Dir = work
	p.Files = []File{{Path: filepath.Join(work, "new", "f"), Mode: 0o640, Content: "x"}, {Path: filepath.Join(work, "g")}}
	r := start(t, dir, Plan{Processes: []Process{p}})
	r.waitReady()
	r.waitLog("a", "environ of the plan "+work+"\n")
	got := map[string]string{}
	for _, path := range []string{
		p.Files[0].Path, p.Files[1].Path, filepath.Join(dir, "a.pid"), filepath.Join(dir, "a.log"),
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		got[filepath.Base(path)] = info.Mode().String()
	}
	want := map[string]string{"f": "-rw-r-----", "g": "-rw-------", "a.pid": "-rw-------", "a.log": "-rw-------"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
}

func TestDirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, Plan{Processes: []Process{actor("a", rolePolite, "")}})
	r.waitReady()
	second, err := New(Plan{Processes: []Process{actor("a", rolePolite, "")}}, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil {
		t.Error("Run in a directory in use: got no error")
	}
	if got := r.status("a"); got.State != StateReady || got.Restarts != 0 {
		t.Errorf("the first supervisor's process suffered: %+v", got)
	}
}

func TestRunsOnce(t *testing.T) {
	t.Parallel()
	r := start(t, t.TempDir(), Plan{})
	r.waitReady()
	r.stop()
	<-r.done
	if err := r.Run(t.Context()); err == nil {
		t.Error("second Run: got no error")
	}
}

// TestStopsWhatHangs: after stopBudget everything is killed, with any number of hung processes.
func TestStopsWhatHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, Plan{Processes: []Process{
		actor("paused", rolePolite, ""),
		actor("deaf", roleStubborn, "", "paused"),
		actor("deaf-too", roleStubborn, "", "paused"),
		actor("last", roleStubborn, "", "deaf"),
	}})
	r.waitReady()
	r.waitLog("paused", "polite")
	for _, name := range []string{"deaf", "deaf-too", "last"} {
		r.waitLog(name, "stubborn")
	}
	kill(t, r.status("paused").PID, syscall.SIGSTOP)
	longest := patience
	if os.Getenv("SOAK") != "" { // elsewhere the machine may be too busy for the budget
		longest = stopBudget + time.Second
	} else {
		r.patient("paused")
	}
	r.stop()
	select {
	case <-r.done:
	case <-time.After(longest):
		t.Fatalf("still running after %s: %+v", longest, r.Status())
	}
	if r.err != nil {
		t.Errorf("Run: %v", r.err)
	}
	got := map[string]string{}
	for _, s := range r.Status() {
		got[s.Name] = s.LastExit
	}
	want := map[string]string{
		"paused": "exit status 0", "deaf": "signal: killed", "deaf-too": "signal: killed", "last": "signal: killed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exits (-want +got):\n%s", diff)
	}
	if got := r.recorded(EventStopped); got[len(got)-1] != "Stopped paused" {
		t.Errorf("got %q, want paused, which the others depend on, to be stopped last", got)
	}
}

func TestGroupDiesWithItsLeader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, Plan{Processes: []Process{actor("a", roleParent, "")}})
	r.waitReady()
	r.waitLog("a", "stubborn")
	r.waitLog("a", "child ") // parent and child print in any order
	_, after, _ := strings.Cut(r.log("a"), "child ")
	var grandchild int
	if _, err := fmt.Sscan(after, &grandchild); err != nil {
		t.Fatal(err)
	}
	kill(t, r.status("a").PID, syscall.SIGKILL)
	eventually(t, "the child of the killed process has ended", func() bool { return !runs(grandchild) })
}

// TestKillModeProcess: containers outlive the end and the stop of the runtime that started them.
func TestKillModeProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := actor("a", roleParent, "")
	p.KillMode = KillModeProcess
	r := start(t, dir, Plan{Processes: []Process{p}})
	// children waits until the process was started n times, and returns the child of each.
	children := func(n int) []int {
		eventually(t, "the process has a child", func() bool {
			// Parent and child print in any order.
			return strings.Count(r.log("a"), "stubborn\n") == n && strings.Count(r.log("a"), "child ") == n
		})
		var pids []int
		for _, part := range strings.Split(r.log("a"), "child ")[1:] {
			var pid int
			if _, err := fmt.Sscan(part, &pid); err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		return pids
	}
	t.Cleanup(func() {
		for _, pid := range children(2) {
			kill(t, pid, syscall.SIGKILL)
		}
	})
	r.waitReady()
	children(1)
	kill(t, r.status("a").PID, syscall.SIGKILL)
	all := children(2)
	r.stop()
	<-r.done
	for i, pid := range all {
		if !runs(pid) {
			t.Errorf("child %d has ended with its parent", i)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	survivor := actor("survivor", roleStubborn, "")
	survivor.DeathSignal = DeathSignalTerm
	cmd, pids := supervise(t, dir, Plan{Processes: []Process{survivor}})
	if err := Clean(dir); err == nil {
		t.Error("Clean beside a running supervisor: got no error")
	}
	killSupervisor(t, cmd)
	for range 2 { // the second time there is nothing
		if err := Clean(dir); err != nil {
			t.Fatal(err)
		}
	}
	if runs(pids["survivor"]) {
		t.Error("the leftover still runs")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory after Clean: %v", err)
	}
}

// supervise runs the plan in another process. It returns that process after the plan has started,
// and the PIDs of the plan's processes.
func supervise(t *testing.T, dir string, plan Plan) (*exec.Cmd, map[string]int) {
	t.Helper()
	content, err := yaml.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plan.yaml"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	p := actor("supervisor", roleRun, dir)
	cmd := p.command(p.Command, os.Stderr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	pids := map[string]int{}
	for _, p := range plan.Processes {
		eventually(t, p.Name+" has a pidfile and says something", func() bool {
			pidfile, err := os.ReadFile(filepath.Join(dir, p.Name+".pid"))
			if err != nil {
				return false
			}
			log, err := os.ReadFile(filepath.Join(dir, p.Name+".log"))
			if err != nil || strings.Count(string(log), "\n") < 2 {
				return false
			}
			var pid int
			_, err = fmt.Sscan(string(pidfile), &pid)
			pids[p.Name] = pid
			return err == nil
		})
	}
	return cmd, pids
}

func killSupervisor(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

func TestNoOrphansOfAKilledSupervisor(t *testing.T) {
	t.Parallel()
	cmd, pids := supervise(t, t.TempDir(), Plan{Processes: []Process{
		actor("a", rolePolite, ""), actor("b", roleStubborn, "", "a"), actor("c", roleStubborn, ""),
	}})
	killSupervisor(t, cmd)
	for name, pid := range pids {
		eventually(t, name+" has ended with its supervisor", func() bool { return !runs(pid) })
	}
}

// TestDeathSignalTerm: in `orrery demo` a supervisor is one of the processes of another supervisor.
func TestDeathSignalTerm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := actor("a", rolePolite, "")
	p.DeathSignal = DeathSignalTerm
	cmd, pids := supervise(t, dir, Plan{Processes: []Process{p}})
	killSupervisor(t, cmd)
	eventually(t, "a has ended", func() bool { return !runs(pids["a"]) })
	log, err := os.ReadFile(filepath.Join(dir, "a.log"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "terminated") {
		t.Errorf("log of a: got %q, want it to have ended on SIGTERM", log)
	}
}

func TestKillsLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	survivor := actor("survivor", roleStubborn, "")
	survivor.DeathSignal = DeathSignalTerm
	cmd, pids := supervise(t, dir, Plan{Processes: []Process{survivor}})
	killSupervisor(t, cmd)
	eventually(t, "the process has got its death signal", func() bool {
		log, err := os.ReadFile(filepath.Join(dir, "survivor.log"))
		return err == nil && strings.Contains(string(log), "ignored")
	})
	if !runs(pids["survivor"]) {
		t.Fatal("the process has ended with its supervisor")
	}

	// The leftover is found by its pidfile, with any plan of the next supervisor.
	r := start(t, dir, Plan{Processes: []Process{actor("a", rolePolite, "")}})
	r.waitReady()
	if runs(pids["survivor"]) {
		t.Error("the leftover still runs")
	}
	want := []string{"Leftover survivor", "Started a"}
	if diff := cmp.Diff(want, r.recorded(EventLeftover, EventStarted)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestSparesARecycledPID(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"OtherStartTime": "%d\n1 boot\n",
		"NoIdentity":     "%d\n",
		"CutOff":         "%d",
		"Garbage":        "PID %d",
	}
	for name, pidfile := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := actor("other", rolePolite, "")
			ctx, cancel := context.WithCancel(t.Context())
			other := exec.CommandContext(ctx, p.Command[0])
			other.Env = append(os.Environ(), roleVariable+"="+rolePolite)
			other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				cancel()
				_ = other.Wait() // it was killed
			}()
			content := fmt.Sprintf(pidfile, other.Process.Pid)
			if err := os.WriteFile(filepath.Join(dir, "a.pid"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			r := start(t, dir, Plan{Processes: []Process{actor("a", rolePolite, "")}})
			r.waitReady()
			if !runs(other.Process.Pid) {
				t.Error("a process that is not ours was killed")
			}
			if got := r.recorded(EventLeftover); got != nil {
				t.Errorf("got events %q, want none", got)
			}
		})
	}
}
