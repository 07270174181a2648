package lifecycle_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	proc "orrery.dev/orrery/internal/process" // process is a type of these tests
	"orrery.dev/orrery/internal/testenv"
)

// etcds runs a real etcd process for each host of a lab, with the command and keys that the agent
// gave the host. A proxy forwards traffic between the hosts' addresses to the local ports.
type etcds struct {
	l     *lab
	proxy string

	mu      sync.Mutex
	members map[string]*etcdProcess // by host
}

// etcdProcess is the etcd of a host.
type etcdProcess struct {
	unit         plan.Unit
	client, peer string // local addresses, reserved until the end of the test
	cmd          *exec.Cmd
	// voted is true once the member has voted. The agent of the host then writes Unit.Established. The
	// hosts of a lab have that file earlier, because their probes succeed at once.
	voted bool
	ended chan struct{}
	log   string
}

// withEtcds lets the hosts of a lab run etcd.
func withEtcds(l *lab) *etcds {
	e := &etcds{l: l, members: map[string]*etcdProcess{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(e.forward), ReadHeaderTimeout: time.Minute}
	go server.Serve(listener)
	e.proxy = "http://" + listener.Addr().String()
	l.t.Cleanup(func() {
		for _, h := range e.hosts() {
			m := e.member(h)
			if l.t.Failed() {
				log, _ := os.ReadFile(m.log)
				l.t.Logf("etcd of host %s, running: %v; its log ends:\n%s", h, m.runs(), log[max(0, len(log)-4000):])
			}
			e.stop(h)
		}
		server.Close()
	})
	register := l.fleet.Applied
	l.fleet.Applied = func(name string, req node.Request) {
		for _, s := range req.Steps {
			if s.ID == plan.StepEtcdUnit {
				e.start(name, *s.Unit)
			}
		}
		if req.RemoveAll {
			e.stop(name)
			if m := e.member(name); m != nil {
				m.voted = false
			}
			os.RemoveAll(filepath.Join(l.fleet.Dir, name+".etcd"))
		}
		register(name, req)
	}
	l.fleet.Dialed = func(name, address string) (net.Conn, error) {
		m := e.member(name)
		if m == nil || !strings.HasSuffix(address, ":2379") {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return net.Dial("tcp", m.client)
	}
	return e
}

func (e *etcds) hosts() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for name := range e.members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (e *etcds) member(name string) *etcdProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.members[name]
}

// forward connects one member to another.
func (e *etcds) forward(w http.ResponseWriter, r *http.Request) {
	to := ""
	for _, h := range hosttest.Hosts(9) {
		if m := e.member(h.Name); m != nil && r.Host == h.Address+":2380" {
			to = m.peer
		}
	}
	there, err := net.Dial("tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		e.l.t.Error(err)
		return
	}
	defer here.Close()
	fmt.Fprint(here, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		io.Copy(there, buffered)
		there.Close()
	}()
	io.Copy(here, bufio.NewReader(there))
}

// start plays systemd: it runs the etcd of a host, or restarts it if its unit has changed. Without
// its data, an etcd that had a quorum is not started.
func (e *etcds) start(name string, unit plan.Unit) {
	old := e.member(name)
	if old != nil && old.runs() && jsonOf(e.l.t, old.unit) == jsonOf(e.l.t, unit) {
		return
	}
	e.stop(name)
	logs, _ := filepath.Glob(filepath.Join(e.l.fleet.Dir, name+".etcd/member/wal/*.wal"))
	if old != nil && old.voted && len(logs) == 0 {
		return
	}
	e.launch(name, unit)
}

// launch runs the etcd of a host. It waits until the member votes and answers, or has ended, as the
// probe of the stage would.
func (e *etcds) launch(name string, unit plan.Unit) {
	old := e.member(name)
	m := &etcdProcess{unit: unit, ended: make(chan struct{})}
	if old != nil {
		m.client, m.peer, m.voted = old.client, old.peer, old.voted
	} else {
		m.client, m.peer = reservedAddress(e.l.t), reservedAddress(e.l.t)
	}
	root := e.l.fleet.Root(name)
	m.log = filepath.Join(e.l.fleet.Dir, name+".etcd.log")
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.l.t.Error(err)
		return
	}
	defer log.Close()
	args := []string{"etcd"}
	for _, arg := range unit.Command[1:] {
		flag, value, _ := strings.Cut(arg, "=")
		switch {
		case flag == "--listen-client-urls":
			value = "https://" + m.client
		case flag == "--listen-peer-urls":
			value = "https://" + m.peer
		case flag == "--listen-metrics-urls":
			continue
		case flag == "--data-dir": // outside of the files that the lab compares
			value = filepath.Join(e.l.fleet.Dir, name+".etcd")
		case strings.HasPrefix(value, "/"):
			value = root + value
		}
		args = append(args, flag+"="+value)
	}
	m.cmd = exec.Command(testenv.KubeBinary(), append(args, "--unsafe-no-fsync=true")...)
	m.cmd.Env = append(os.Environ(), "HTTPS_PROXY="+e.proxy)
	for key, value := range unit.Env {
		m.cmd.Env = append(m.cmd.Env, key+"="+value)
	}
	if m.voted {
		established, err := os.ReadFile(root + unit.Established)
		if err != nil {
			e.l.t.Error(err)
		}
		for line := range strings.Lines(string(established)) {
			if !strings.HasPrefix(line, "#") { // the last value of a variable counts
				m.cmd.Env = append(m.cmd.Env, strings.TrimSuffix(line, "\n"))
			}
		}
	}
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := testenv.StartFromLastingThread(m.cmd); err != nil {
		e.l.t.Error(err)
		return
	}
	go func() {
		m.cmd.Wait()
		close(m.ended)
	}()
	e.mu.Lock()
	e.members[name] = m
	e.mu.Unlock()
	e.awaitVote(name, m)
}

// awaitVote waits until a member is a voting member, or has ended.
func (e *etcds) awaitVote(name string, m *etcdProcess) {
	deadline := time.Now().Add(patience)
	for m.runs() {
		members, err := e.listWithin(name, time.Second)
		if err == nil && slices.ContainsFunc(members, func(o *etcdserverpb.Member) bool { return o.Name == name && !o.IsLearner }) {
			m.voted = true
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(m.log)
			e.l.t.Errorf("etcd of host %s: %v; its log: %s", name, err, log)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (m *etcdProcess) runs() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// stop kills the etcd of a host, as a loss of power would.
func (e *etcds) stop(name string) {
	if m := e.member(name); m != nil {
		m.cmd.Process.Kill()
		<-m.ended
	}
}

// fail stops the etcd of hosts, and lets their agents report it.
func (e *etcds) fail(names ...string) {
	e.l.t.Helper()
	for _, name := range names {
		e.stop(name)
		e.l.stopUnit(name, "orrery-etcd")
	}
}

// client returns a client of the etcd on a host.
func (e *etcds) client(name string) *clientv3.Client {
	e.l.t.Helper()
	keys := e.l.state().InUse()
	cert, err := tls.X509KeyPair(keys[plan.LeafEtcdAdmin].Cert, keys[plan.LeafEtcdAdmin].Key)
	if err != nil {
		e.l.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(keys[plan.AuthorityEtcd].Cert)
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + e.member(name).client}, Logger: zap.NewNop(),
		TLS: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots},
	})
	if err != nil {
		e.l.t.Fatal(err)
	}
	return cli
}

// list returns the members from the etcd on a host, if a majority confirms them.
func (e *etcds) list(name string) ([]*etcdserverpb.Member, error) {
	return e.listWithin(name, 10*time.Second)
}

func (e *etcds) listWithin(name string, within time.Duration) ([]*etcdserverpb.Member, error) {
	cli := e.client(name)
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	list, err := cli.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	return list.Members, nil
}

// wantMembers checks the voting members, as listed by the etcd on the host seen.
func (e *etcds) wantMembers(seen string, want ...string) {
	e.l.t.Helper()
	var members []*etcdserverpb.Member
	testenv.Eventually(e.l.t, "etcd of host "+seen+" lists its members", patience, func() (err error) {
		members, err = e.list(seen)
		return err
	})
	var got []string
	for _, m := range members {
		if !m.IsLearner {
			got = append(got, m.Name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		e.l.t.Errorf("members of etcd are %v, want %v", got, want)
	}
}

// pid returns the process ID of the etcd on a host.
func (e *etcds) pid(name string) int { return e.member(name).cmd.Process.Pid }

// reservedAddress returns a local address that nobody else can take before the end of the test. An
// etcd that is stopped finds the address free when it is started again.
func reservedAddress(t testing.TB) string {
	t.Helper()
	port, err := proc.ReservePort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Release() })
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number))
}

// stopUnit lets the agent of a host report that a unit does not run.
func (l *lab) stopUnit(name, unit string) {
	l.t.Helper()
	path := filepath.Join(l.fleet.Root(name), ".recorded.json")
	content, err := os.ReadFile(path)
	if err != nil {
		l.t.Fatal(err)
	}
	var noted map[string]any
	if err := json.Unmarshal(content, &noted); err != nil {
		l.t.Fatal(err)
	}
	one, ok := noted["units"].(map[string]any)[unit].(map[string]any)
	if !ok {
		l.t.Fatal(errors.New("host " + name + " has no unit " + unit))
	}
	one["running"] = false
	if content, err = json.Marshal(noted); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		l.t.Fatal(err)
	}
}
