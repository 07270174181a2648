package balancer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"orrery.dev/orrery/internal/process"
)

const patience = 3 * time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// server is an API server that returns its name, allows watches, and can stop to answer.
type server struct {
	*httptest.Server
	address string
	silent  atomic.Bool
	ready   atomic.Int32 // status of /readyz
}

func newServer(t *testing.T, name string) *server {
	t.Helper()
	s := &server{}
	s.ready.Store(http.StatusOK)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.silent.Load():
			<-r.Context().Done()
		case r.URL.Path == "/readyz":
			w.WriteHeader(int(s.ready.Load()))
		case r.URL.Path == "/watch":
			fmt.Fprintln(w, name)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			fmt.Fprint(w, name)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it logs clients that disconnect
	s.StartTLS()
	s.address = s.Listener.Addr().String()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// balanced is a balancer under test.
type balanced struct {
	address string
	file    string
	stop    context.CancelFunc
	err     error // result of Run; valid when done is closed
	done    chan struct{}
	client  *http.Client

	mu  sync.Mutex
	log strings.Builder
}

// said returns a function that reports whether the log contains the text.
func (b *balanced) said(text string) func() bool {
	return func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return strings.Contains(b.log.String(), text)
	}
}

func balance(t *testing.T, backends ...string) *balanced {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &balanced{address: freeAddress(t), file: filepath.Join(t.TempDir(), "backends"), stop: cancel, done: make(chan struct{})}
	b.client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	b.set(t, backends...)
	ctx = logr.NewContext(ctx, funcr.New(func(_, args string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		fmt.Fprintln(&b.log, args)
	}, funcr.Options{}))
	go func() {
		defer close(b.done)
		b.err = Run(ctx, b.address, b.file)
	}()
	t.Cleanup(func() {
		cancel()
		<-b.done
	})
	eventually(t, "it listens", func() bool {
		select {
		case <-b.done:
			t.Fatalf("Run: %v", b.err)
		default:
		}
		conn, err := net.Dial("tcp", b.address)
		return err == nil && conn.Close() == nil
	})
	return b
}

// freeAddress returns an address at which nobody else listens during the test.
func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := process.ReservePort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Release() })
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number))
}

// set replaces the file, as the agent does.
func (b *balanced) set(t *testing.T, backends ...string) {
	t.Helper()
	next := b.file + ".new"
	if err := os.WriteFile(next, []byte(strings.Join(backends, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, b.file); err != nil {
		t.Fatal(err)
	}
}

// ask returns the name of the server that answers.
func (b *balanced) ask(t *testing.T) (string, error) {
	t.Helper()
	resp, err := b.client.Get("https://" + b.address)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	name, err := io.ReadAll(resp.Body)
	return string(name), err
}

// answers sends n requests and counts the answers by server.
func (b *balanced) answers(t *testing.T, n int) map[string]int {
	t.Helper()
	all := map[string]int{}
	for range n {
		name, err := b.ask(t)
		if err != nil {
			t.Fatal(err)
		}
		all[name]++
	}
	return all
}

// answered returns a function that reports whether n answers in a row come from exactly these
// servers.
func (b *balanced) answered(t *testing.T, n int, names ...string) func() bool {
	return func() bool {
		all := map[string]int{}
		for range n {
			if name, err := b.ask(t); err == nil {
				all[name]++
			}
		}
		for _, name := range names {
			if all[name] == 0 {
				return false
			}
		}
		return len(all) == len(names)
	}
}

// watch opens a request that stays open. ended is closed when the request ends. The name is empty
// if the request ended at once.
func (b *balanced) watch(t *testing.T) (name string, ended <-chan struct{}) {
	t.Helper()
	resp, err := b.client.Get("https://" + b.address + "/watch")
	if err != nil {
		return "", nil // its backend counts as unhealthy for a moment
	}
	line := make([]byte, 100)
	n, err := resp.Body.Read(line)
	if err != nil {
		resp.Body.Close()
		return "", nil
	}
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, resp.Body)
	}()
	t.Cleanup(func() { resp.Body.Close() })
	return strings.TrimSpace(string(line[:n])), end
}

// watchOn opens watches until one is on the wanted server.
func (b *balanced) watchOn(t *testing.T, want string) <-chan struct{} {
	t.Helper()
	var ended <-chan struct{}
	eventually(t, "a watch on "+want, func() bool {
		var name string
		name, ended = b.watch(t)
		return name == want
	})
	return ended
}

func open(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

func TestSpreads(t *testing.T) {
	t.Parallel()
	b := balance(t, newServer(t, "a").address, newServer(t, "b").address, "", "# the third", newServer(t, "c").address+" # c")
	eventually(t, "all are healthy", b.answered(t, 6, "a", "b", "c"))
	// On a busy machine a backend counts as unhealthy for a moment. A random choice of the backend
	// hits these numbers once in a while, but not 5 times in a row.
	eventually(t, "each of 3 backends gives 10 of 30 answers, 5 times in a row", func() bool {
		for range 5 {
			if got := b.answers(t, 30); got["a"] != 10 || got["b"] != 10 || got["c"] != 10 {
				return false
			}
		}
		return true
	})
}

// TestBackendDies: no request fails when a backend dies, not even the first one.
func TestBackendDies(t *testing.T) {
	t.Parallel()
	a, other := newServer(t, "a"), newServer(t, "b")
	b := balance(t, a.address, other.address)
	eventually(t, "both are healthy", b.answered(t, 6, "a", "b"))
	ended := b.watchOn(t, "a")
	a.CloseClientConnections()
	a.Close()
	if got := b.answers(t, 10); got["b"] != 10 {
		t.Errorf("answers after the death of a: got %v", got)
	}
	<-ended
}

// TestBackendFallsSilent: a dead host sends nothing, and its connections stay open until they are
// closed here.
func TestBackendFallsSilent(t *testing.T) {
	t.Parallel()
	a, other := newServer(t, "a"), newServer(t, "b")
	b := balance(t, a.address, other.address)
	eventually(t, "both are healthy", b.answered(t, 6, "a", "b"))
	onA, onB := b.watchOn(t, "a"), b.watchOn(t, "b")
	a.silent.Store(true)
	select {
	case <-onA:
	case <-time.After(patience):
		t.Fatal("the watch on a silent server stays open")
	}
	if got := b.answers(t, 10); got["b"] != 10 {
		t.Errorf("answers after a fell silent: got %v", got)
	}
	if !open(onB) {
		t.Error("the watch on the other server was closed")
	}
	a.silent.Store(false)
	eventually(t, "a is healthy again", b.answered(t, 6, "a", "b"))
	if !open(onB) {
		t.Error("the watch on the other server was closed when a came back")
	}
}

// TestNotReady: a backend that is not ready gets no connections while another one is ready. If none
// is ready, connections still go to a backend.
func TestNotReady(t *testing.T) {
	t.Parallel()
	a, other := newServer(t, "a"), newServer(t, "b")
	other.ready.Store(http.StatusUnauthorized) // it refuses unauthenticated requests, but is alive
	b := balance(t, a.address, other.address)
	eventually(t, "both are healthy", b.answered(t, 6, "a", "b"))
	a.ready.Store(http.StatusInternalServerError)
	eventually(t, "only b answers", b.answered(t, 6, "b"))
	onB := b.watchOn(t, "b")
	other.ready.Store(http.StatusInternalServerError)
	eventually(t, "any answers", b.answered(t, 6, "a", "b"))
	if !open(onB) {
		t.Error("a watch was closed though there is no healthier server")
	}
	a.ready.Store(http.StatusOK)
	select {
	case <-onB:
	case <-time.After(patience):
		t.Fatal("the watch stays open on a server that is not ready, though another one is")
	}
}

// blackhole accepts connections and never answers.
func blackhole(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close() // closed with the listener
		}
	}()
	return l.Addr().String()
}

func TestBlackhole(t *testing.T) {
	t.Parallel()
	b := balance(t, blackhole(t), newServer(t, "a").address)
	b.client.Timeout = 5 * time.Second
	eventually(t, "a is healthy", b.answered(t, 2, "a"))
	b.client.Timeout = patience
	if got := b.answers(t, 10); got["a"] != 10 {
		t.Errorf("answers: got %v", got)
	}
}

func TestFileChanges(t *testing.T) {
	t.Parallel()
	a, c := newServer(t, "a"), newServer(t, "c")
	b := balance(t, a.address)
	eventually(t, "a answers", b.answered(t, 2, "a"))
	onA := b.watchOn(t, "a")
	b.set(t, a.address, c.address)
	eventually(t, "c answers too", b.answered(t, 6, "a", "c"))
	if !open(onA) {
		t.Error("the watch on a was closed though a is still there")
	}
	b.set(t, c.address)
	select {
	case <-onA:
	case <-time.After(patience):
		t.Fatal("the watch on a backend that was removed stays open")
	}
	if got := b.answers(t, 4); got["c"] != 4 {
		t.Errorf("answers after a was removed: got %v", got)
	}
	// An unreadable file changes nothing. The next readable one does.
	onC := b.watchOn(t, "c")
	b.set(t, "no port")
	eventually(t, "the file was found to be wrong", b.said("no port"))
	if err := os.Remove(b.file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file was found to be missing", b.said("no such file"))
	b.set(t, a.address, c.address)
	eventually(t, "both answer", b.answered(t, 6, "a", "c"))
	if !open(onC) {
		t.Error("the watch on c was closed by a file that cannot be read")
	}
}

// echo returns its input after it has received all of it.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				content, err := io.ReadAll(conn)
				if err == nil {
					_, _ = conn.Write(content)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestManyAtOnce: the backends are no API servers, so all are unhealthy, but are tried. Each client
// closes its write side before it gets an answer.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	b := balance(t, echo(t), freeAddress(t), echo(t))
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			conn, err := net.Dial("tcp", b.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			want := bytes.Repeat([]byte{byte(i)}, 1<<16)
			_, err = conn.Write(want)
			if err := errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("connection %d: got %d bytes back of %d, %v", i, len(got), len(want), err)
			}
		})
	}
	group.Wait()
}

func TestNoBackend(t *testing.T) {
	t.Parallel()
	for name, backends := range map[string][]string{"None": nil, "Dead": {freeAddress(t)}} {
		b := balance(t, backends...)
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: got %d bytes, want the connection to end", name, n)
		}
	}
}

// TestStop: Run returns when all its connections are closed.
func TestStop(t *testing.T) {
	t.Parallel()
	b := balance(t, newServer(t, "a").address)
	eventually(t, "a answers", b.answered(t, 1, "a"))
	ended := b.watchOn(t, "a")
	b.stop()
	<-b.done
	if b.err != nil {
		t.Errorf("Run: %v", b.err)
	}
	<-ended
	if conn, err := net.Dial("tcp", b.address); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

func TestCannotRun(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cases := map[string]struct{ listen, file, want string }{
		"NoFile":      {listen: "127.0.0.1:0", file: filepath.Join(dir, "none"), want: "none"},
		"NoPort":      {listen: "127.0.0.1:0", file: file("port", "a:1\n10.0.0.1\n"), want: `line 2 of ` + filepath.Join(dir, "port") + ` is "10.0.0.1"`},
		"ListenTaken": {listen: taken.Addr().String(), file: file("good", "10.0.0.1:6443\n"), want: taken.Addr().String()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), tc.listen, tc.file)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}
