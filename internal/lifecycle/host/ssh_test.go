package host

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// byAgent runs an SSH agent with the key during the test.
func byAgent(t *testing.T, key []byte) {
	t.Helper()
	private, err := ssh.ParseRawPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyring := agent.NewKeyring()
	if err := keyring.Add(agent.AddedKey{PrivateKey: private}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go agent.ServeAgent(keyring, c)
		}
	}()
	t.Setenv("SSH_AUTH_SOCK", socket)
}

func TestLogin(t *testing.T) {
	bastion := server.target("operator")
	cases := map[string]func(t *testing.T, target *Target){
		"PrivateKey":     func(_ *testing.T, target *Target) { target.PrivateKey = Secret(server.key) },
		"PrivateKeyPath": func(_ *testing.T, target *Target) { target.PrivateKeyPath = server.keyFile },
		"Password":       func(_ *testing.T, target *Target) { target.Password = password },
		"Agent":          func(t *testing.T, _ *Target) { byAgent(t, server.key) },
		"Home": func(t *testing.T, _ *Target) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			if err := errors.Join(os.Mkdir(home+"/.ssh", 0o700), os.WriteFile(home+"/.ssh/id_ed25519", server.key, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"HomePath": func(t *testing.T, target *Target) {
			t.Setenv("HOME", filepath.Dir(server.keyFile))
			target.PrivateKeyPath = "~/key"
		},
		"Bastion": func(_ *testing.T, target *Target) {
			target.Password = password
			target.Bastion = &bastion
		},
	}
	for name, set := range cases {
		t.Run(name, func(t *testing.T) {
			target := Target{Address: "127.0.0.1", Port: server.port, User: "operator", SudoPassword: password, Timeout: patience}
			set(t, &target)
			c := connect(t, server.trusting(t), target)
			if got := shell(t, c, "echo $SUDO_USER"); got != "operator" {
				t.Errorf("logged in as %q", got)
			}
		})
	}
}

func TestUnauthorized(t *testing.T) {
	unknownKey, _, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		set   func(t *testing.T, target *Target)
		tried string
	}{
		"Password": {func(_ *testing.T, target *Target) { target.Password = "incorrect horse" }, "the password"},
		"Key":      {func(_ *testing.T, target *Target) { target.PrivateKey = Secret(unknownKey) }, "the private key SHA256:"},
		"Agent":    {func(t *testing.T, _ *Target) { byAgent(t, unknownKey) }, "the agent's SHA256:"},
		"NoUser": {func(_ *testing.T, target *Target) {
			target.User, target.PrivateKey = "nobody-there", Secret(server.key)
		}, "the private key SHA256:"},
		"Nothing": {func(*testing.T, *Target) {}, "no agent (SSH_AUTH_SOCK is not set)"},
		"DeadAgent": {func(t *testing.T, _ *Target) {
			t.Setenv("SSH_AUTH_SOCK", filepath.Join(t.TempDir(), "absent"))
		}, "no agent (SSH_AUTH_SOCK: dial"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			target := Target{Name: "cp-1", Address: "127.0.0.1", Port: server.port, User: "operator", Timeout: patience}
			tc.set(t, &target)
			_, err := server.trusting(t).Dial(t.Context(), target)
			var refused *Unauthorized
			if !errors.As(err, &refused) {
				t.Fatalf("want Unauthorized, got %v", err)
			}
			if !strings.Contains(strings.Join(refused.Tried, ", "), tc.tried) || !strings.Contains(err.Error(), "host cp-1: login of ") {
				t.Errorf("want %q in %v", tc.tried, err)
			}
			if strings.Contains(err.Error(), "incorrect horse") {
				t.Errorf("shows the password: %v", err)
			}
		})
	}
}

func TestBadTarget(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		target Target
		want   string
	}{
		"NoAddress":    {Target{Name: "cp-1"}, "give its address"},
		"Port":         {Target{Address: "h", Port: 65536}, "port 65536"},
		"EncryptedKey": {Target{Address: "h", PrivateKey: Secret(pem.EncodeToMemory(encrypted))}, "ssh-add"},
		"BrokenKey":    {Target{Address: "h", PrivateKey: "-----BEGIN nonsense"}, "privateKey"},
		"NoKeyFile":    {Target{Address: "h", PrivateKeyPath: "/no/such/key"}, "/no/such/key"},
		"TwoBastions":  {Target{Address: "h", Bastion: &Target{Address: "b", Bastion: &Target{}}}, "only one"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := server.trusting(t).Dial(t.Context(), tc.target)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("want %q in %v", tc.want, err)
			}
		})
	}
}

// proxy forwards connections to the server. Once frozen, it keeps connections open but forwards
// nothing.
type proxy struct {
	listener net.Listener
	accepted atomic.Int32
	frozen   chan struct{}
	once     sync.Once
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, frozen: make(chan struct{})}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			out, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", server.port))
			if err != nil {
				in.Close()
				continue
			}
			t.Cleanup(func() { in.Close(); out.Close() })
			go p.forward(in, out)
			go p.forward(out, in)
		}
	}()
	return p
}

func (p *proxy) forward(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-p.frozen:
			return
		default:
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			to.Close()
			return
		}
	}
}

func (p *proxy) freeze() { p.once.Do(func() { close(p.frozen) }) }

func (p *proxy) target(user string) Target {
	target := server.target(user)
	target.Port = p.listener.Addr().(*net.TCPAddr).Port
	return target
}

// TestPartition checks that a silent host soon counts as unreachable, in every state of a command.
func TestPartition(t *testing.T) {
	cases := map[string]struct {
		argv  []string
		stdin io.Reader
	}{
		"Waiting": {argv: []string{"sh", "-c", "echo; sleep 600"}},
		"Sending": {argv: []string{"sh", "-c", "echo; cat >/dev/null"}, stdin: zeros{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gone *Unreachable
			c, p, done := commanded(t, tc.argv, tc.stdin)
			p.freeze()
			err := <-done
			if !errors.As(err, &gone) || gone.Host != "cp-1" {
				t.Errorf("want Unreachable, got %v", err)
			}
			if err := c.Run(t.Context(), []string{"true"}, nil, nil); !errors.As(err, &gone) {
				t.Errorf("want Unreachable, got %v", err)
			}
			if _, err := c.Dial(t.Context(), "tcp", "127.0.0.1:1"); !errors.As(err, &gone) {
				t.Errorf("want Unreachable, got %v", err)
			}
		})
	}
}

// TestSilence: a host is silent when it left two requests unanswered. The time between them does
// not count: this process may have stood still.
func TestSilence(t *testing.T) {
	var s silence
	at := time.Now()
	for i, tc := range []struct {
		heard time.Time
		ends  bool
	}{
		{at, false}, {at, false}, // two requests
		{at.Add(time.Second), false},                          // an answer
		{at.Add(time.Hour), false},                            // and one after an hour
		{at.Add(time.Hour), false}, {at.Add(time.Hour), true}, // the second one is not answered either
	} {
		if ends := s.ends(tc.heard); ends != tc.ends {
			t.Errorf("step %d: silent %t, want %t", i, ends, tc.ends)
		}
	}
}

// commanded returns a connection on which a command has begun, its proxy, and the command's end.
func commanded(t *testing.T, argv []string, stdin io.Reader) (Conn, *proxy, <-chan error) {
	t.Helper()
	for limit := 600 * time.Millisecond; ; limit *= 2 {
		p := newProxy(t)
		d := server.trusting(t)
		d.KeepAlive = limit
		c := connect(t, d, p.target("root"))
		r, w := io.Pipe()
		begun, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- c.Run(t.Context(), argv, stdin, w) }()
		go func() {
			r.Read(make([]byte, 1))
			close(begun)
			io.Copy(io.Discard, r)
		}()
		select {
		case <-begun:
			return c, p, done
		case err := <-done:
			r.Close()
			if limit > time.Minute {
				t.Fatal(err)
			}
			// The machine is so busy that the host was silent for longer than the limit.
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestIdle checks that a host without output does not count as silent.
func TestIdle(t *testing.T) {
	for limit := 3 * time.Second; ; limit *= 2 {
		d := server.trusting(t)
		d.KeepAlive = limit
		c := connect(t, d, server.target("root"))
		err := c.Run(t.Context(), []string{"sleep", fmt.Sprint((limit * 7 / 3).Seconds())}, nil, nil)
		if err == nil {
			return
		}
		// On a busy machine the host may be silent for longer than a short limit.
		if _, silent := errors.AsType[*Unreachable](err); !silent || limit > time.Minute {
			t.Fatal(err)
		}
	}
}

// TestBrokenConnection checks the error when a connection ends during a command.
func TestBrokenConnection(t *testing.T) {
	c := server.dial(t, "root")
	err := c.Run(t.Context(), []string{"sh", "-c", `kill -KILL "$PPID"; sleep 5`}, nil, nil)
	if _, ok := errors.AsType[*Unreachable](err); !ok {
		t.Errorf("want Unreachable, got %v", err)
	}
}

// peer serves each connection with handle.
func peer(t *testing.T, handle func(net.Conn)) Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go handle(c)
		}
	}()
	return Target{Name: "cp-1", Address: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Password: password, Timeout: patience}
}

// TestDialTimesOut lets the socket notice the deadline before the context does.
func TestDialTimesOut(t *testing.T) {
	target, err := Target{Name: "cp-1", Address: "10.0.0.1", Password: password}.defaulted()
	if err != nil {
		t.Fatal(err)
	}
	_, err = server.trusting(t).connect(t.Context(), target, func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	})
	var gone *Unreachable
	if !errors.As(err, &gone) || !strings.Contains(err.Error(), "no answer within 30s") || !strings.Contains(err.Error(), "firewall") {
		t.Errorf("got %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	closed := closedPort(t)
	brief := func(target Target) Target {
		target.Timeout = time.Second
		return target
	}
	bastion := server.target("operator")
	dead := Target{Name: "jump", Address: "127.0.0.1", Port: closed}
	cases := map[string]struct {
		target    Target
		host, way string
	}{
		"Refused": {Target{Name: "cp-1", Address: "127.0.0.1", Port: closed}, "cp-1", "sshd runs"},
		"NoName":  {Target{Name: "cp-1", Address: "no-such-host.invalid"}, "cp-1", "IP address"},
		"Silent":  {brief(peer(t, func(net.Conn) {})), "cp-1", "firewall"},
		"SlowGreeting": {brief(peer(t, func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, "wait\r\n"); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})), "cp-1", "firewall"},
		"HTTP": {peer(t, func(c net.Conn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			c.Close()
		}), "cp-1", "port is sshd's"},
		"HangsUp":       {peer(t, func(c net.Conn) { c.Close() }), "cp-1", "MaxStartups"},
		"DeadBastion":   {Target{Name: "cp-1", Address: "10.0.0.1", Bastion: &dead}, "jump", "sshd runs"},
		"BehindBastion": {Target{Name: "cp-1", Address: "127.0.0.1", Port: closed, Bastion: &bastion}, "cp-1", "on the network"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := server.trusting(t).Dial(t.Context(), tc.target)
			var gone *Unreachable
			if !errors.As(err, &gone) {
				t.Fatalf("want Unreachable, got %v", err)
			}
			if gone.Host != tc.host || !strings.Contains(err.Error(), tc.way) || !strings.Contains(err.Error(), "host cp-1: ") {
				t.Errorf("want host %s and %q, got %v", tc.host, tc.way, err)
			}
			noSecrets(t, err.Error())
		})
	}
}

// TestDialEnds checks that dialing ends with its context, and returns the cause.
func TestDialEnds(t *testing.T) {
	accepted := make(chan struct{}, 1)
	target := peer(t, func(net.Conn) { accepted <- struct{}{} })
	target.Timeout = time.Minute
	for name, target := range map[string]Target{
		"Host":    target,
		"Bastion": {Name: "cp-2", Address: "10.0.0.1", Bastion: &target},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-accepted
				cancel(errStop)
			}()
			if _, err := server.trusting(t).Dial(ctx, target); !errors.Is(err, errStop) {
				t.Errorf("want the cause, got %v", err)
			}
		})
	}
}

// TestBastionShared checks that the hosts behind a bastion share one connection, and that the last
// one closes it.
func TestBastionShared(t *testing.T) {
	p := newProxy(t)
	bastion := p.target("operator")
	target := server.target("root")
	target.Bastion = &bastion
	d := server.trusting(t)
	var wg sync.WaitGroup
	conns := make([]Conn, 20)
	for i := range conns {
		wg.Go(func() {
			var err error
			if conns[i], err = d.Dial(t.Context(), target); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if n := p.accepted.Load(); n != 1 {
		t.Errorf("the bastion was dialled %d times", n)
	}
	for _, c := range conns[1:] {
		c.Close()
	}
	if got := shell(t, conns[0], "echo still here"); got != "still here" {
		t.Errorf("got %q", got)
	}
	conns[0].Close()
	eventually(t, "the bastion is forgotten", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.bastions) == 0
	})
	connect(t, d, target)
	if n := p.accepted.Load(); n != 2 {
		t.Errorf("the bastion was dialled %d times", n)
	}
}

func TestDialThroughHost(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok")
	}))
	defer api.Close()
	c := server.dial(t, "operator")
	client := http.Client{Transport: &http.Transport{DialContext: c.Dial}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
		t.Errorf("got %q, %v", body, err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", closedPort(t))
	_, err = c.Dial(t.Context(), "tcp", address)
	var gone *Unreachable
	if err == nil || errors.As(err, &gone) || !strings.Contains(err.Error(), "host cp-1: connect from it to "+address) {
		t.Errorf("got %v", err)
	}
}
