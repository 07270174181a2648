package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

// Each of these variables makes the test binary another process; see TestMain.
const (
	agentsVariable = "TUNNEL_AGENTS" // so many agents
	serverVariable = "TUNNEL_SERVER" // what an agent dials; see site.member
	memberVariable = "TUNNEL_MEMBER" // the agent of a cluster of this name
)

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(agentsVariable)); err == nil {
		manyAgents(n)
		return
	}
	if os.Getenv(serverVariable) != "" {
		oneServer()
		return
	}
	if name := os.Getenv(memberVariable); name != "" {
		oneMember(name)
		return
	}
	os.Exit(m.Run())
}

// remote returns an agent for a process that site.process started.
func remote(name string) *tunnel.Agent {
	ca, err := os.ReadFile(os.Getenv("TUNNEL_CA"))
	if err != nil {
		panic(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	id := identity(&testing.B{}, name, time.Now().Add(time.Hour))
	return &tunnel.Agent{
		URL: os.Getenv("TUNNEL_URL"), TLS: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS13},
		Identity: func() (tls.Certificate, error) { return id, nil }, Replica: "one", Version: "v1", Timing: tunnel.DefaultTiming(),
	}
}

// manyAgents runs agents, each of its own cluster, until the standard input ends.
func manyAgents(n int) {
	ctx, cancel := context.WithCancel(context.Background())
	for i := range n {
		go remote(fmt.Sprintf("c%d", i)).Run(ctx)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
}

// oneServer runs the servers of site.member and prints their addresses, until the standard input
// ends.
func oneServer() {
	id := identity(&testing.B{}, "server", time.Now().Add(time.Hour))
	addresses := map[string]string{}
	for destination, say := range map[string]func(net.Conn){
		"echo": func(c net.Conn) { _, _ = io.Copy(c, c) },
		"bulk": func(c net.Conn) { _, _ = io.CopyN(c, zeros{}, 100<<20) },
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{id}})
		if err != nil {
			panic(err)
		}
		addresses[destination] = l.Addr().String()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					panic(err)
				}
				go func() {
					say(c)
					_ = c.Close()
				}()
			}
		}()
	}
	if err := json.NewEncoder(os.Stdout).Encode(addresses); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// oneMember runs an agent that may dial the addresses in its environment, until the standard input
// ends.
func oneMember(name string) {
	a := remote(name)
	a.Destinations = map[string]func(context.Context) (net.Conn, error){}
	addresses := map[string]string{}
	if err := json.Unmarshal([]byte(os.Getenv("TUNNEL_DESTINATIONS")), &addresses); err != nil {
		panic(err)
	}
	for destination, address := range addresses {
		a.Destinations[destination] = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }
	}
	go a.Run(context.Background())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// unhurried returns a site with the default intervals.
func unhurried(b *testing.B) *site {
	b.Helper()
	return newSiteWith(b, tunnel.DefaultTiming())
}

// near returns an agent with a direct connection to the hub.
func (s *site) near(cluster string) *tunnel.Agent {
	s.t.Helper()
	a := s.agent(cluster)
	a.URL = "wss://" + s.server.Listener.Addr().String() + tunnel.Path
	return a
}

// BenchmarkDial measures the time from the dial to the first byte of an answer, through an agent
// and directly.
func BenchmarkDial(b *testing.B) {
	for _, by := range []string{"Agent", "Directly"} {
		b.Run(by, func(b *testing.B) {
			s := unhurried(b)
			a := s.near("oak")
			s.run(a)
			_ = s.dial("oak").Close()
			var took []time.Duration
			for b.Loop() {
				s.await("a spare is there, as one is while no more are taken at once than lately", func() bool { return s.spares("oak") > 0 })
				start := time.Now()
				var c net.Conn
				var err error
				if by == "Agent" {
					c, err = s.gateway.Dial(b.Context(), "oak", tunnel.APIServer)
				} else {
					c, err = a.Destinations[tunnel.APIServer](b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
				if err := says(b, c, "x"); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
				_ = c.Close()
			}
			report(b, took)
		})
	}
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
}

// BenchmarkEcho measures the round trip of 1 KiB while another connection reads 100 MB, through an
// agent and directly. Both use TLS, as to an API server. Hub, agent and server are separate
// processes, as in production: a Go process whose two threads are never idle polls its connections
// only every 10 ms.
func BenchmarkEcho(b *testing.B) {
	for range 2 {
		for _, name := range []string{"Agent", "Directly"} {
			b.Run(name, func(b *testing.B) {
				s := unhurried(b)
				addresses := s.member(b, "oak")
				dial := func(to string) net.Conn {
					var c net.Conn
					var err error
					if name == "Agent" {
						c, err = s.gateway.Dial(b.Context(), "oak", to)
					} else {
						c, err = net.Dial("tcp", addresses[to])
					}
					if err != nil {
						b.Fatal(err)
					}
					// The server is not verified here.
					return tls.Client(c, &tls.Config{InsecureSkipVerify: true})
				}
				var took []time.Duration
				quiet := dial("echo")
				for b.Loop() {
					bulk := dial("bulk")
					done := make(chan struct{})
					go func() {
						_, _ = io.Copy(io.Discard, bulk)
						close(done)
					}()
					text := string(make([]byte, 1024))
				reading:
					for {
						start := time.Now()
						if err := says(b, quiet, text); err != nil {
							b.Fatal(err)
						}
						took = append(took, time.Since(start))
						select {
						case <-done:
							break reading
						default:
						}
					}
				}
				report(b, took)
			})
		}
	}
}

// member starts two processes: a TLS server as the cluster's API server, and the agent. The
// server's echo returns its input, its bulk sends 100 MB. member returns the addresses of the
// server.
func (s *site) member(b *testing.B, name string) map[string]string {
	b.Helper()
	server := s.process(b, serverVariable+"=yes")
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	start(b, server)
	var addresses map[string]string
	if err := json.NewDecoder(out).Decode(&addresses); err != nil {
		b.Fatal(err)
	}
	text, err := json.Marshal(addresses)
	if err != nil {
		b.Fatal(err)
	}
	start(b, s.process(b, memberVariable+"="+name, "TUNNEL_DESTINATIONS="+string(text)))
	s.await("the agent is there", func() bool { return s.spares(name) > 0 })
	return addresses
}

// start starts a process that ends with the benchmark.
func start(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// process returns a command that runs this binary as another process, which ends with its standard
// input.
func (s *site) process(b *testing.B, variables ...string) *exec.Cmd {
	b.Helper()
	ca := filepath.Join(b.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw}), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), variables...), "TUNNEL_CA="+ca, "TUNNEL_URL=wss://"+s.server.Listener.Addr().String()+tunnel.Path)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	return cmd
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// BenchmarkSpares measures the memory of idle spares on the hub, and how long 1,000 agents take to
// return after every connection was reset. The agents are another process. A round takes seconds,
// so there are at most three.
func BenchmarkSpares(b *testing.B) {
	const agents, most = 1000, 3
	s := unhurried(b)
	s.patience = 5 * time.Minute
	memory := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapInuse + m.StackInuse)
	}
	before := memory()
	start(b, s.process(b, agentsVariable+"="+strconv.Itoa(agents)))
	all := func() bool {
		for i := range agents {
			if s.spares(fmt.Sprintf("c%d", i)) < 2 {
				return false
			}
		}
		return true
	}
	s.await("all agents are there", all)
	var back []time.Duration
	for b.Loop() {
		if len(back) == most {
			continue
		}
		start := time.Now()
		var closing sync.WaitGroup
		for i := range agents {
			name := fmt.Sprintf("c%d", i)
			s.refuse(name, context.Canceled)
			closing.Go(func() { s.gateway.Recheck(b.Context(), name) })
		}
		closing.Wait()
		for i := range agents {
			s.refuse(fmt.Sprintf("c%d", i), nil)
		}
		s.await("all agents are back", all)
		back = append(back, time.Since(start))
	}
	slices.Sort(back)
	b.ReportMetric(back[len(back)-1].Seconds(), "all-back-s")
	b.ReportMetric((memory()-before)/1024/float64(2*agents), "KiB/spare")
}
