package reach

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/testenv"
)

// never is a window that no check in these tests uses up.
const never = 10 * time.Minute

// brief is a window in which nothing has to happen. Under Soak it allows one attempt.
func brief() time.Duration {
	if testenv.Soak() {
		return 10 * time.Second
	}
	return time.Second
}

// freePort returns a port on which nobody else listens during the test.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := process.ReservePort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Release() })
	return port.Number
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// serve passes each connection to f.
func serve(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				f(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// TestAllWell: hosts that begin one after another reach each other, and all end long before the
// window.
func TestAllWell(t *testing.T) {
	t.Parallel()
	const hosts = 4
	var ports []int
	for range hosts {
		ports = append(ports, freePort(t))
	}
	var group sync.WaitGroup
	for i, port := range ports {
		r := Request{Token: "token", Listen: []int{port, freePort(t)}, Expect: hosts - 1, Window: never}
		for j, other := range ports {
			if i != j {
				r.Dial = append(r.Dial, local(other))
			}
		}
		group.Go(func() {
			got, err := Check(t.Context(), r)
			if diff := cmp.Diff(Result{}, got); diff != "" || err != nil {
				t.Errorf("host %d: %v (-want +got):\n%s", i, err, diff)
			}
		})
		if i == 0 { // the others find it listening, but it has reached nobody yet
			waitFor(t, local(port))
		}
	}
	group.Wait()
}

func waitFor(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Patience); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		address string
		want    Problem
		answers bool // the server must answer in time for that
	}{
		"NobodyListens": {address: local(freePort(t)), want: ProblemRefused},
		"NoSuchName":    {address: "no-such-host.invalid:1", want: ProblemNoRoute},
		"AnotherServer": {address: serve(t, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH_9.2 and so on and on\r\n") }), want: ProblemStranger},
		"ClosesAtOnce":  {address: serve(t, func(net.Conn) {}), want: ProblemStranger},
		"Echo":          {address: serve(t, func(c net.Conn) { _, _ = io.Copy(c, c) }), want: "", answers: true},
		"SmallPacketsOnly": {
			address: serve(t, func(c net.Conn) {
				line := make([]byte, len(greeting)+len("token\n"))
				_, _ = io.ReadFull(c, line)
				_, _ = c.Write(line)
				_, _ = io.CopyN(io.Discard, c, 1400)
				<-t.Context().Done() // the rest is lost
			}),
			want: ProblemLargeLost, answers: true,
		},
		"Silent":       {address: serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), want: ProblemStranger},
		"AnotherCheck": {address: another(t), want: ProblemStranger},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := check(t, tc.address, tc.want, tc.answers)
			if err != nil {
				t.Fatal(err)
			}
			var want Result
			if tc.want != "" {
				want.Unreached = []Peer{{Address: tc.address, Problem: tc.want}}
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Peer{}, "Message")); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			for _, peer := range got.Unreached {
				if peer.Message == "" {
					t.Error("there is no message")
				}
			}
		})
	}
}

// lateContext is a context whose deadline passes after the first attempt, and which ends only after
// the second one, as if its timer were late.
type lateContext struct {
	context.Context
	end      context.CancelFunc
	attempts int
}

func (c *lateContext) Err() error {
	if c.attempts++; c.attempts == 2 {
		defer c.end()
		return nil
	}
	return c.Context.Err()
}

func (c *lateContext) Deadline() (time.Time, bool) {
	if c.attempts == 0 {
		return time.Now().Add(never), true
	}
	return time.Now().Add(-time.Second), true
}

// TestCutShort: an attempt that the deadline cuts short does not replace the problem of an earlier
// attempt, even if the context has not ended yet.
func TestCutShort(t *testing.T) {
	t.Parallel()
	base, end := context.WithCancel(t.Context())
	defer end()
	ctx := &lateContext{Context: base, end: end}
	peer := dial(ctx, local(freePort(t)), "token")
	if peer == nil || peer.Problem != ProblemRefused || ctx.attempts < 2 {
		t.Errorf("after %d attempts: %+v, want %s", ctx.attempts, peer, ProblemRefused)
	}
}

// check returns the result of a Check for an address. It makes one attempt. If the address answers,
// it makes attempts until the result is the wanted problem ("": none). Under Soak it uses a window,
// which is used up if there is a problem.
func check(t *testing.T, address string, want Problem, answers bool) (Result, error) {
	t.Helper()
	if testenv.Soak() {
		return Check(t.Context(), Request{Token: "token", Dial: []string{address}, Window: brief()})
	}
	problem, err := exchange(t.Context(), address, "token")
	// On a busy machine the answer may come after the attempt. A host makes attempts until one
	// succeeds.
	for end := time.Now().Add(testenv.Patience); problem != want && answers && time.Now().Before(end); {
		problem, err = exchange(t.Context(), address, "token")
	}
	if err != nil {
		return Result{Unreached: []Peer{{Address: address, Problem: problem, Message: cause(err)}}}, nil
	}
	return Result{}, nil
}

// another runs a Check with another token, and returns its address.
func another(t *testing.T) string {
	t.Helper()
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = Check(ctx, Request{Token: "another", Listen: []int{port}, Window: never})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	waitFor(t, local(port))
	return local(port)
}

// TestTaken: a port that is in use does not prevent the check of the others.
func TestTaken(t *testing.T) {
	t.Parallel()
	taken := listen(t).Addr().(*net.TCPAddr).Port
	got, err := Check(t.Context(), Request{Token: "token", Listen: []int{taken, freePort(t)}, Window: brief()})
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Taken: []Port{{Port: taken, Message: "address already in use"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	port := freePort(t)
	go func() {
		waitFor(t, local(port))
		cancel()
	}()
	if _, err := Check(ctx, Request{Token: "token", Listen: []int{port}, Window: never}); err == nil {
		t.Error("got no error")
	}
	if l, err := net.Listen("tcp", local(port)); err != nil {
		t.Errorf("the port is still in use: %v", err)
	} else {
		l.Close()
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]Request{
		"NoToken":     {Window: brief()},
		"TwoLines":    {Token: "a\nb", Window: brief()},
		"NoWindow":    {Token: "a"},
		"NoPort":      {Token: "a", Window: brief(), Listen: []int{70000}},
		"PortTwice":   {Token: "a", Window: brief(), Listen: []int{6443, 6443}},
		"DialNoPort":  {Token: "a", Window: brief(), Dial: []string{"10.0.0.1"}},
		"DialNowhere": {Token: "a", Window: brief(), Dial: []string{":6443"}},
	}
	for name, r := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Check(t.Context(), r); err == nil {
				t.Error("got no error")
			}
		})
	}
}
