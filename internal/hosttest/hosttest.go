// Package hosttest has hosts for tests and benchmarks of the engine. Each host is a directory
// in which the real agent runs the real steps. The agent changes nothing outside of it and
// starts no process, and all probes succeed. The connection between the engine and a host is
// simulated. It can be slow, or fail at any command.
package hosttest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/hosttest/recorder"
	"orrery.dev/orrery/internal/lifecycle/facts"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
)

// Fleet is a set of simulated hosts, which come into being when they are dialed. It implements
// host.Dialer for the engine.
type Fleet struct {
	// Dir is the directory in which each host has a directory.
	Dir string
	// Latency is how long each dial and each command takes in addition, as a round trip.
	Latency time.Duration
	// Fault is called before each dial and each command; nil: never. command is "dial" or a name that
	// Commands lists. If Fault returns an error, the engine gets the error and nothing is done.
	Fault func(host, command string) error
	// Broken is called after each command that succeeded; nil: never. If it returns an error, the
	// engine gets the error although the command has run, as if the connection broke.
	Broken func(host, command string) error
	// NodeFault is called at the fault points of the agent on a host, as node.Node.Fault is; nil:
	// never.
	NodeFault func(host, point string) error
	// Applied is called with each request that an agent has performed without a failure; nil: never.
	Applied func(host string, req node.Request)
	// Dialed connects to a service on a host, at an address as the host sees it. nil: no
	// connection succeeds.
	Dialed func(host, address string) (net.Conn, error)
	// Facts replace facts of a host, by name of the host and key of the fact. Keys and values are in
	// the format in which the script of package facts prints them.
	Facts map[string]map[string]string
	// Protocol is the protocol version of a host's agent, by name of the host, if it differs from
	// node.Protocol. It holds until the engine installs another agent on the host.
	Protocol map[string]int
	// Clock is how far the clock of a host is ahead of that of this machine, by name of the host.
	Clock map[string]time.Duration

	mu       sync.Mutex
	commands map[string][]string // by host
	sent     map[string]int      // number of transfers from the engine, by digest
}

// Address returns the address of the host with index n, from 0. Nothing listens there: simulated
// connections between hosts use the loopback interface.
func Address(n int) string { return fmt.Sprintf("10.77.%d.%d", n/250, n%250+1) }

// Hosts returns n hosts for spec.provision.hosts, named h-1, h-2 and so on, with the addresses that
// Address returns.
func Hosts(n int) []clusterv1alpha1.Host {
	hosts := make([]clusterv1alpha1.Host, 0, n)
	for i := range n {
		hosts = append(hosts, clusterv1alpha1.Host{Name: fmt.Sprintf("h-%d", i+1), Address: Address(i)})
	}
	return hosts
}

// Root returns the directory on this machine that is the root directory of a host.
func (f *Fleet) Root(name string) string { return filepath.Join(f.Dir, name) }

// Commands returns the names of the commands that the engine has run on a host, in their order.
// facts reads the facts, and agent installs the agent. serve and check are those commands of the
// agent. lease and release are requests to the agent that only take or release a lease. apply is
// any other request. unknown is any other command, which fails.
func (f *Fleet) Commands(name string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.commands[name])
}

// Forget makes the lists of Commands and Sent empty.
func (f *Fleet) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commands, f.sent = nil, nil
}

// Sent returns how often the engine has sent each content to a host, by digest. A content that
// hosts fetch from each other does not count.
func (f *Fleet) Sent() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := map[string]int{}
	maps.Copy(sent, f.sent)
	return sent
}

// note adds a command to those that Commands lists for a host.
func (f *Fleet) note(name, command string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.commands == nil {
		f.commands = map[string][]string{}
	}
	f.commands[name] = append(f.commands[name], command)
}

// copied counts one transfer of a content by the engine, for Sent.
func (f *Fleet) copied(digest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent == nil {
		f.sent = map[string]int{}
	}
	f.sent[digest]++
}

// Dial implements host.Dialer. It connects to the host t.Name, and creates the directory of the
// host if it is missing.
func (f *Fleet) Dial(ctx context.Context, t host.Target) (host.Conn, error) {
	if err := f.travel(ctx); err != nil {
		return nil, err
	}
	if f.Fault != nil {
		if err := f.Fault(t.Name, "dial"); err != nil {
			return nil, err
		}
	}
	// A real host has /opt already.
	if err := os.MkdirAll(filepath.Join(f.Root(t.Name), "opt"), 0o755); err != nil {
		return nil, fmt.Errorf("host %s: %w", t.Name, err)
	}
	return &conn{fleet: f, name: t.Name, address: t.Address}, nil
}

// travel waits for the latency. It returns the cause if ctx ends.
func (f *Fleet) travel(ctx context.Context) error {
	if f.Latency == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(f.Latency):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// conn is a simulated connection to a host. It implements host.Conn.
type conn struct {
	fleet         *Fleet
	name, address string
}

// Close implements host.Conn. It does nothing.
func (c *conn) Close() error { return nil }

// Name returns the name of the host.
func (c *conn) Name() string { return c.name }

// Dial implements host.Conn. It calls Fleet.Dialed. If that is nil, it returns a *host.Unreachable.
func (c *conn) Dial(_ context.Context, _, address string) (net.Conn, error) {
	if c.fleet.Dialed != nil {
		return c.fleet.Dialed(c.name, address)
	}
	return nil, &host.Unreachable{Host: c.name, Address: c.address, Err: errors.New("no process runs on this host")}
}

// Run implements host.Conn. It simulates the commands that the engine runs on hosts, in this
// process.
func (c *conn) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	if err := c.fleet.travel(ctx); err != nil {
		return err
	}
	command, run := c.command(argv)
	if command == "apply" {
		command, stdin = requested(stdin)
	}
	c.fleet.note(c.name, command)
	if c.fleet.Fault != nil {
		if err := c.fleet.Fault(c.name, command); err != nil {
			return err
		}
	}
	if err := run(ctx, stdin, stdout); err != nil {
		return err
	}
	if c.fleet.Broken != nil {
		return c.fleet.Broken(c.name, command)
	}
	return nil
}

// requested returns the name of a request to the agent: lease or release if the request does only
// that, otherwise apply. stdin has the request. The returned reader has the complete input again.
func requested(stdin io.Reader) (string, io.Reader) {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	again := io.MultiReader(bytes.NewReader(line), in)
	var req node.Request
	switch {
	case err != nil, json.Unmarshal(line, &req) != nil, req.RemoveAll, len(req.Steps)+len(req.Remove)+len(req.Streams)+len(req.Fetches) > 0:
		return "apply", again
	case req.Release:
		return "release", again
	}
	return "lease", again
}

// command returns the name of a command that the engine runs, as Commands lists it, and a function
// that simulates the command.
func (c *conn) command(argv []string) (string, func(context.Context, io.Reader, io.Writer) error) {
	switch {
	case len(argv) == 1 && argv[0] == "sh":
		return "facts", c.facts
	case argv[0] == "sh":
		return "agent", func(_ context.Context, stdin io.Reader, _ io.Writer) error { return c.receive(argv[4], argv[5], stdin) }
	case argv[0] == "bash":
		return "agent", func(ctx context.Context, stdin io.Reader, _ io.Writer) error { return c.fetch(ctx, argv[4:], stdin) }
	case argv[0] == node.AgentPath && argv[2] == "serve":
		return "serve", func(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
			return c.node().Serve(ctx, stdin, loopback("0"), stdout)
		}
	case argv[0] == node.AgentPath && argv[2] == "check":
		return "check", func(_ context.Context, _ io.Reader, stdout io.Writer) error {
			_, err := io.WriteString(stdout, "{}")
			return err
		}
	case argv[0] == node.AgentPath && argv[2] == "apply":
		return "apply", c.apply
	}
	return "unknown", func(context.Context, io.Reader, io.Writer) error {
		return &host.ExitError{Host: c.name, Command: argv[0], Code: 127, Stderr: "not found"}
	}
}

// Rooted returns a node.Node whose host is the directory root. The agent writes real files in it,
// without syncing them to disk, and changes nothing outside of it.
func Rooted(root string) *node.Node {
	system, units := recorder.New(root)
	return &node.Node{Root: root, System: system, Units: units, Now: time.Now, NoSync: true}
}

// node returns the node.Node of the host, with the fault points of the Fleet.
func (c *conn) node() *node.Node {
	n := Rooted(c.fleet.Root(c.name))
	if c.fleet.NodeFault != nil {
		n.Fault = func(point string) error { return c.fleet.NodeFault(c.name, point) }
	}
	return n
}

// facts simulates the script that reads the facts of a host. It writes those of a newly installed
// host with two cores, changed by Fleet.Facts. It adds what the agent has done in the directory of
// the host.
func (c *conn) facts(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	script, err := io.ReadAll(stdin)
	if err != nil {
		return fmt.Errorf("host %s: read the script: %w", c.name, err)
	}
	values := map[string]string{
		"uid": "0", "hostname": c.name, "machine-id": hex.EncodeToString(sum(c.name)[:16]), "boot-id": c.name,
		"init": "systemd", "os-release": "ID=debian", "arch": "x86_64", "kernel": "6.1.0", "cpus": "2", "cgroup": "2",
		"controllers": "cpuset cpu io memory hugetlb pids", "memory": "MemTotal:        8388608 kB",
		"df": "/dev/vda1 104857600 1048576 103809024 1% /", "oom-score-adj": "yes",
		"mtu\teth0": "1500", "address": fmt.Sprintf("2: eth0    inet %s/16 scope global eth0", c.address),
	}
	maps.Copy(values, c.fleet.Facts[c.name])
	var b bytes.Buffer
	fact := func(key, value string) { fmt.Fprintf(&b, "%s\t%s\n", key, value) }
	fact("orrery-facts", "begin")
	clock := func() {
		now := time.Now().Add(c.fleet.Clock[c.name])
		fact("clock", fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond()))
	}
	clock()
	for key, value := range values {
		fact(key, value)
	}
	for _, tool := range []string{"apt-get", "bash", "tar", "mount", "modprobe", "nft", "iptables", "ip6tables", "conntrack", "ip"} {
		fact("tool", tool)
	}
	for _, path := range c.found(node.Dir + "/blobs/sha256/*") {
		fact("blob", filepath.Base(path))
	}
	for _, path := range c.found(facts.Traces...) {
		fact("trace", path)
	}
	for _, path := range c.found("/etc/kubernetes/*.conf", "/etc/kubernetes/pki", "/var/lib/etcd/member", "/var/lib/kubelet/pki") {
		fact("leftover", path)
	}
	if _, rest, ok := strings.Cut(string(script), "\netcd_log='"); ok {
		if log, _, _ := strings.Cut(rest, "'"); log != "" {
			fact("etcd-log", map[bool]string{true: "present", false: "absent"}[len(c.found(log+"/*.wal")) > 0])
		}
	}
	if _, err := os.Stat(filepath.Join(c.fleet.Root(c.name), node.AgentPath)); err != nil {
		for _, path := range c.found(node.Dir+"/state.json", node.Dir+"/state.json.bak") {
			record, err := os.ReadFile(filepath.Join(c.fleet.Root(c.name), path))
			if err != nil {
				return fmt.Errorf("host %s: %w", c.name, err)
			}
			fact("record", string(record))
		}
	} else {
		applied, err := c.node().Observe(ctx)
		if err != nil {
			return fmt.Errorf("host %s: %w", c.name, err)
		}
		if protocol, ok := c.protocol(); ok {
			applied.Protocol = protocol
		}
		line, err := json.Marshal(applied)
		if err != nil {
			return fmt.Errorf("host %s: %w", c.name, err)
		}
		fact("applied", string(line))
	}
	clock()
	fact("orrery-facts", "end")
	_, err = stdout.Write(b.Bytes())
	return err
}

// found lists the existing paths of the host that match one of the patterns.
func (c *conn) found(patterns ...string) []string {
	var paths []string
	for _, pattern := range patterns {
		matches, err := filepath.Glob(filepath.Join(c.fleet.Root(c.name), pattern))
		if err != nil {
			panic(err) // only a malformed pattern is an error
		}
		for _, match := range matches {
			paths = append(paths, strings.TrimPrefix(match, c.fleet.Root(c.name)))
		}
	}
	return paths
}

// protocol returns the protocol version of the host's agent, and true, if it differs from
// node.Protocol.
func (c *conn) protocol() (int, bool) {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	protocol, ok := c.fleet.Protocol[c.name]
	return protocol, ok
}

// sum returns the SHA-256 of s.
func sum(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}

// receive stores the agent's program at a path of the host; stdin has its content. digest is in
// hexadecimal digits.
func (c *conn) receive(path, digest string, stdin io.Reader) error {
	c.fleet.copied("sha256:" + digest)
	return c.place(path, digest, stdin)
}

// fetch stores the agent's program that another host serves. args are the path, the digest, the
// address and the port; stdin has the token.
func (c *conn) fetch(ctx context.Context, args []string, stdin io.Reader) error {
	token, err := bufio.NewReader(stdin).ReadString('\n')
	if err != nil {
		return fmt.Errorf("host %s: %w", c.name, err)
	}
	var dialer net.Dialer
	peer, err := dialer.DialContext(ctx, "tcp", loopback(args[3]))
	if err != nil {
		return &host.ExitError{Host: c.name, Command: "bash", Code: 1, Stderr: err.Error()}
	}
	defer peer.Close()
	if _, err := fmt.Fprintf(peer, "%s sha256:%s\n", strings.TrimSpace(token), args[1]); err != nil {
		return &host.ExitError{Host: c.name, Command: "bash", Code: 1, Stderr: err.Error()}
	}
	return c.place(args[0], args[1], peer)
}

// place stores the agent's program at a path of the host, after it has verified the digest. The
// host's agent then has the protocol version node.Protocol.
func (c *conn) place(path, digest string, content io.Reader) error {
	path = filepath.Join(c.fleet.Root(c.name), path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("host %s: %w", c.name, err)
	}
	got, err := io.ReadAll(content)
	if err != nil {
		return fmt.Errorf("host %s: %w", c.name, err)
	}
	if hex.EncodeToString(sum(string(got))) != digest {
		return &host.ExitError{Host: c.name, Command: "sh", Code: 1, Stderr: "the agent arrived damaged: its digest is wrong"}
	}
	if err := os.WriteFile(path, got, 0o755); err != nil {
		return fmt.Errorf("host %s: %w", c.name, err)
	}
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	delete(c.fleet.Protocol, c.name)
	return nil
}

// loopback returns the address of a port at the loopback interface.
func loopback(port string) string { return net.JoinHostPort("127.0.0.1", port) }

// apply performs a request with the code of package node, in this process. stdin has the request
// and the content of its streams.
func (c *conn) apply(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if protocol, ok := c.protocol(); ok {
		return &host.ExitError{Host: c.name, Command: node.AgentPath, Code: 1, Stderr: fmt.Sprintf("this agent speaks protocol %d", protocol)}
	}
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("host %s: read the request: %w", c.name, err)
	}
	var req node.Request
	if err := json.Unmarshal(line, &req); err != nil {
		return fmt.Errorf("host %s: read the request: %w", c.name, err)
	}
	for _, s := range req.Streams {
		c.fleet.copied(s.Digest)
	}
	for i := range req.Fetches {
		for j, source := range req.Fetches[i].Sources {
			_, port, err := net.SplitHostPort(source)
			if err != nil {
				return fmt.Errorf("host %s: %w", c.name, err)
			}
			req.Fetches[i].Sources[j] = loopback(port)
		}
	}
	if line, err = json.Marshal(req); err != nil {
		return fmt.Errorf("host %s: %w", c.name, err)
	}
	line = append(line, '\n')
	var said bytes.Buffer
	if err := c.node().Apply(ctx, io.MultiReader(bytes.NewReader(line), in), io.MultiWriter(stdout, &said)); err != nil {
		return err
	}
	if c.fleet.Applied != nil && !bytes.Contains(said.Bytes(), []byte(`"state":"Failed"`)) {
		c.fleet.Applied(c.name, req)
	}
	return nil
}
