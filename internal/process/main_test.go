package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// The test binary also plays the processes of the plans; the role selects which.
const (
	roleVariable = "ORRERY_TEST_ROLE"
	argVariable  = "ORRERY_TEST_ARG"

	rolePolite   = "polite"   // ends on SIGTERM
	roleStubborn = "stubborn" // ignores SIGTERM
	roleFail     = "fail"     // says 12 lines and exits with 3
	roleOnce     = "once"     // makes the file ARG and waits to be killed; where that exists, it fails
	roleParent   = "parent"   // has a stubborn child, whose PID it prints
	roleRun      = "run"      // supervises the plan in ARG/plan.yaml in the directory ARG
	roleEnviron  = "environ"  // prints ARG and its directory
	roleReserve  = "reserve"  // reserves the port ARG, and ends
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	os.Exit(play(role, os.Getenv(argVariable)))
}

func play(role, arg string) int {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	switch role {
	case rolePolite:
		fmt.Println("polite")
		<-terminated
		fmt.Println("terminated")
	case roleStubborn:
		fmt.Println("stubborn")
		for range terminated {
			fmt.Println("ignored")
		}
	case roleFail:
		for i := range 12 {
			fmt.Println("line", i)
		}
		return 3
	case roleReserve:
		number, err := strconv.Atoi(arg)
		if err == nil {
			_, err = ReservePort(loopback, number)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	case roleOnce:
		if _, err := os.Stat(arg); err == nil {
			return 4
		}
		if err := os.WriteFile(arg, nil, 0o600); err != nil {
			return 5
		}
		<-terminated
	case roleParent:
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVariable+"="+roleStubborn)
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return 5
		}
		fmt.Println("child", cmd.Process.Pid)
		<-terminated
	case roleEnviron:
		dir, err := os.Getwd()
		if err != nil {
			return 5
		}
		fmt.Println("environ", arg, dir)
		<-terminated
	case roleRun:
		return runPlan(arg)
	}
	return 0
}

func runPlan(dir string) int {
	content, err := os.ReadFile(filepath.Join(dir, "plan.yaml"))
	if err != nil {
		return 5
	}
	var plan Plan
	if err := yaml.UnmarshalStrict(content, &plan); err != nil {
		return 6
	}
	s, err := New(plan, Options{Dir: dir})
	if err != nil {
		return 7
	}
	if err := s.Run(context.Background()); err != nil {
		return 8
	}
	return 0
}

// actor is a process that the test binary plays.
func actor(name, role, arg string, after ...string) Process {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Process{
		Name:    name,
		Command: []string{self},
		Env:     map[string]string{roleVariable: role, argVariable: arg},
		After:   after,
	}
}

// withReadyFile returns a process that is ready when the test creates the file.
func withReadyFile(p Process, dir string) Process {
	p.Ready = &Probe{File: &FileProbe{Path: filepath.Join(dir, p.Name+".ready")}}
	return p
}

// run is a supervisor under test with its events.
type run struct {
	*Supervisor
	t    *testing.T
	dir  string
	stop context.CancelFunc
	err  error // of Run; to be read when done is closed
	done chan struct{}

	mu     sync.Mutex
	events []Event
}

func start(t *testing.T, dir string, plan Plan) *run {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &run{t: t, dir: dir, stop: cancel, done: make(chan struct{})}
	var err error
	r.Supervisor, err = New(plan, Options{Dir: dir, OnEvent: func(e Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		r.err = r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		if t.Failed() {
			t.Logf("Run: %v; events: %+v", r.err, r.events)
		}
	})
	return r
}

// recorded returns the events of these types as "Type process", in order.
func (r *run) recorded(types ...EventType) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, e := range r.events {
		if slices.Contains(types, e.Type) {
			all = append(all, string(e.Type)+" "+e.Process)
		}
	}
	return all
}

// messages returns the messages of the events of this type.
func (r *run) messages(what EventType) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, e := range r.events {
		if e.Type == what {
			all = append(all, e.Message)
		}
	}
	return all
}

func (r *run) status(name string) Status {
	r.t.Helper()
	for _, s := range r.Status() {
		if s.Name == name {
			return s
		}
	}
	r.t.Fatalf("no status of %s", name)
	return Status{}
}

func (r *run) waitReady() {
	r.t.Helper()
	select {
	case <-r.Ready():
	case <-r.done:
		r.t.Fatalf("Run ended before everything was ready: %v", r.err)
	case <-time.After(patience):
		r.t.Fatalf("not ready: %+v", r.Status())
	}
}

// patient gives the processes as long to stop as the tests wait. On a busy machine a process that
// stops by itself may take longer than its share of stopBudget, and be killed.
func (r *run) patient(names ...string) {
	for _, t := range r.tasks {
		if slices.Contains(names, t.Name) {
			t.stopShare = patience
		}
	}
}

func (r *run) log(name string) string {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.dir, name+".log"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	return string(content)
}

// waitLog waits until the log of the process has the text.
func (r *run) waitLog(name, text string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%q in the log of %s", text, name), func() bool {
		return strings.Contains(r.log(name), text)
	})
}

// patience is how long the tests wait for something that must happen.
const patience = 3 * time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// runs reports whether the PID belongs to a process that has not ended.
func runs(pid int) bool {
	_, err := identity(pid)
	return err == nil
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("there is no process to send %v to: PID %d", sig, pid)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}
