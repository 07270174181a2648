package lifecycle

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// maxCopies is how often a file leaves the control machine; from then on hosts have it from hosts.
	maxCopies = 2
	// fanOut is how many hosts one host serves at a time.
	fanOut = 8
)

// serving is a host that serves its content to others, for as long as the session is open.
type serving struct {
	address string
	// stop asks it to end, and abort does not wait for an answer.
	stop  func()
	abort context.CancelFunc
	ended chan struct{}
}

// endTimeout is how long a host may take to stop serving.
const endTimeout = 2 * time.Second

func (s *serving) end() {
	s.stop()
	select {
	case <-s.ended:
	case <-time.After(endTimeout): // a host that does not answer any more
	}
	s.abort()
	<-s.ended
}

// content brings the agent and the files to the hosts that miss them, in rounds: who has something after one round gives
// it to others in the next.
type content struct {
	*run
	token  string
	agents map[string]agent // by architecture

	mu     sync.Mutex
	copies map[string]int             // digest → copies sent by us
	have   map[string]map[string]bool // digest → hosts
	forced map[string]bool            // hosts that cannot fetch: we send them all they miss
}

// agent is a file of our agent.
type agent struct{ path, digest string }

// distribute brings hosts all that their plan needs.
func (r *run) distribute(ctx context.Context, hosts []string) error {
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return fmt.Errorf("make a token: %w", err)
	}
	c := &content{
		run: r, token: hex.EncodeToString(token), agents: map[string]agent{},
		copies: map[string]int{}, have: map[string]map[string]bool{}, forced: map[string]bool{},
	}
	for name, f := range r.facts {
		if f.Agent != "" {
			c.gained(name, f.Agent)
		}
		for _, digest := range f.Blobs {
			c.gained(name, digest)
		}
	}
	missing := map[string][]string{}
	for _, name := range hosts {
		need, err := c.needs(name)
		if err != nil {
			return err
		}
		if len(need) > 0 {
			missing[name] = need
		}
	}
	for len(missing) > 0 {
		if err := r.rec.checkpoint(); err != nil {
			return err
		}
		round := c.assign(hosts, missing)
		if err := c.runRound(ctx, round); err != nil {
			return err
		}
		for name := range missing {
			if missing[name] = slices.DeleteFunc(missing[name], func(d string) bool { return c.have[d][name] }); len(missing[name]) == 0 {
				delete(missing, name)
			}
		}
	}
	return nil
}

// needs lists the digests that a host misses. The agent comes first.
func (c *content) needs(name string) ([]string, error) {
	f := c.facts[name]
	a, ok := c.agents[f.Arch]
	if !ok {
		var err error
		if a, err = c.agentOf(name); err != nil {
			return nil, err
		}
		c.agents[f.Arch] = a
	}
	var need []string
	if f.Agent != a.digest {
		need = append(need, a.digest)
	}
	changed := map[string]bool{}
	for _, i := range c.changes.Items {
		if i.Host == name {
			changed[i.Step] = true
		}
	}
	for _, h := range c.plan.Hosts {
		if h.Name != name {
			continue
		}
		for _, s := range h.Stages {
			for _, step := range s.Steps {
				if step.Artifact != nil && changed[step.ID] && !slices.Contains(f.Blobs, step.Artifact.Blob) && !slices.Contains(need, step.Artifact.Blob) {
					need = append(need, step.Artifact.Blob)
				}
			}
		}
	}
	return need, nil
}

// agentOf is our agent for the architecture of a host.
func (r *run) agentOf(name string) (agent, error) {
	path, err := r.Agent(r.facts[name].Arch)
	if err != nil {
		return agent{}, fmt.Errorf("host %s: %w", name, err)
	}
	digest, err := fileDigest(path)
	return agent{path: path, digest: digest}, err
}

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func (c *content) gained(name, digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have[digest] == nil {
		c.have[digest] = map[string]bool{}
	}
	c.have[digest][name] = true
}

// delivery is what a host gets in one round, and from whom: an empty source is us.
type delivery struct {
	host    string
	sources map[string]string
	digests []string
}

// assign says who gets what from whom in the next round. A host takes part when everything that it misses can be had, so
// that it is asked once.
func (c *content) assign(hosts []string, missing map[string][]string) []delivery {
	load := map[string]int{}
	sent := map[string]int{}
	var round []delivery
	for _, name := range hosts {
		d := delivery{host: name, sources: map[string]string{}, digests: missing[name]}
		if len(d.digests) == 0 {
			continue
		}
		complete, picked := true, map[string]bool{}
		for _, digest := range d.digests {
			from, ok := c.source(digest, load)
			switch {
			case c.forced[name]:
				d.sources[digest] = ""
			case ok:
				d.sources[digest], picked[from] = from, true
			case len(c.have[digest]) == 0 && c.copies[digest]+sent[digest] < maxCopies:
				d.sources[digest] = ""
			default:
				complete = false
			}
		}
		if !complete {
			continue
		}
		for digest, from := range d.sources {
			if from == "" && !c.forced[name] {
				sent[digest]++
			}
		}
		for from := range picked {
			load[from]++
		}
		round = append(round, d)
	}
	if len(round) == 0 { // the sources of what is missed are gone: we send it
		for _, name := range hosts {
			if len(missing[name]) > 0 {
				c.forced[name] = true
				return c.assign([]string{name}, missing)
			}
		}
	}
	return round
}

// source picks the host that serves a digest and has the least to do.
func (c *content) source(digest string, load map[string]int) (string, bool) {
	best, found := "", false
	for _, name := range sortedKeys(c.have[digest]) {
		if c.conns[name] == nil || load[name] >= fanOut {
			continue
		}
		if !found || load[name] < load[best] {
			best, found = name, true
		}
	}
	return best, found
}

// runRound delivers to all hosts of a round at once.
func (c *content) runRound(ctx context.Context, round []delivery) error {
	servers := map[string]bool{}
	for _, d := range round {
		for _, from := range d.sources {
			if from != "" {
				servers[from] = true
			}
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	for name := range servers {
		if conn := c.conns[name]; conn.serving == nil {
			group.Go(func() error { return c.serve(gctx, conn) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	group, gctx = errgroup.WithContext(ctx)
	for _, d := range round {
		group.Go(func() error {
			conn := c.conns[d.host]
			c.rec.stage(d.host, "content")
			err := c.retry(gctx, conn, func(ctx context.Context) error { return c.deliver(ctx, conn, d) })
			c.rec.settle(d.host, conn.trips.Load(), err)
			return err
		})
	}
	return group.Wait()
}

// serve has a host serve its content until its connection is closed.
func (c *content) serve(ctx context.Context, conn *connection) error {
	open, stop := io.Pipe()
	out, said := io.Pipe()
	// It outlives the round.
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &serving{
		ended: make(chan struct{}), abort: cancel,
		stop: func() { _ = stop.Close() }, // always nil
	}
	request, err := json.Marshal(node.ServeRequest{Token: c.token, Address: c.address(conn.name)})
	if err != nil {
		return fmt.Errorf("host %s: marshal: %w", conn.name, err)
	}
	go func() {
		defer close(s.ended)
		err := conn.run(sctx, []string{node.AgentPath, "node", "serve"},
			io.MultiReader(strings.NewReader(string(request)+"\n"), open), said)
		_ = said.CloseWithError(errors.Join(err, io.EOF)) // always nil
	}()
	defer context.AfterFunc(ctx, s.abort)()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		s.stop()
		s.abort()
		return fmt.Errorf("host %s: serve content to other hosts: %w", conn.name, err)
	}
	go io.Copy(io.Discard, out) //nolint:errcheck // it says nothing more
	var serving node.Serving
	if err := json.Unmarshal(line, &serving); err != nil {
		s.stop()
		s.abort()
		return fmt.Errorf("host %s: serve content to other hosts: %w", conn.name, err)
	}
	s.address = net.JoinHostPort(c.address(conn.name), strconv.Itoa(serving.Port))
	conn.serving = s
	return nil
}

// address is the internal address of a host.
func (r *run) address(name string) string {
	for _, h := range r.plan.Hosts {
		if h.Name == name {
			return h.Address
		}
	}
	return ""
}

// deliver brings a host what was assigned to it.
func (c *content) deliver(ctx context.Context, conn *connection, d delivery) error {
	agent := c.agents[c.facts[d.host].Arch]
	for _, digest := range d.digests {
		if digest != agent.digest || c.has(d.host, digest) {
			continue
		}
		if err := c.deliverAgent(ctx, conn, agent, d.sources[digest]); err != nil {
			return err
		}
		c.gained(d.host, digest)
	}
	var req node.Request
	var streams []io.Reader
	var files []io.Closer
	var got []string
	defer func() {
		for _, f := range files {
			_ = f.Close() // only read
		}
	}()
	for _, digest := range d.digests {
		if digest == agent.digest || c.has(d.host, digest) {
			continue
		}
		got = append(got, digest)
		if from := d.sources[digest]; from != "" {
			req.Fetches = append(req.Fetches, node.Fetch{Digest: digest, Sources: c.addresses(digest, from), Token: c.token})
			continue
		}
		file, err := c.Source(c.spec.Source).Open(ctx, c.files[digest], digest)
		if err != nil {
			return err
		}
		streams, files = append(streams, file), append(files, file)
		info, err := file.Stat()
		if err != nil {
			return fmt.Errorf("host %s: read %s: %w", d.host, c.files[digest].Name, err)
		}
		req.Streams = append(req.Streams, node.Stream{Digest: digest, Size: info.Size()})
		c.sent(digest)
	}
	if len(got) == 0 {
		return nil
	}
	err := c.request(ctx, conn, req, streams...)
	var step *StepError
	if errors.As(err, &step) && len(step.missing) > 0 {
		// A firewall between the hosts, or a source that went away: what is missing comes from us.
		conn.notef("could not be fetched from other hosts: %s", strings.Join(step.missing, ", "))
		for _, digest := range step.missing {
			d.sources[digest] = ""
		}
		for _, digest := range got {
			if !slices.Contains(step.missing, digest) {
				c.gained(d.host, digest)
			}
		}
	}
	if err != nil {
		return err
	}
	for _, digest := range got {
		c.gained(d.host, digest)
	}
	return nil
}

func (c *content) has(name, digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.have[digest][name]
}

func (c *content) sent(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copies[digest]++
}

// addresses of hosts that serve a digest, the assigned one first.
func (c *content) addresses(digest, first string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []string{c.conns[first].serving.address}
	for _, name := range sortedKeys(c.have[digest]) {
		if conn := c.conns[name]; name != first && conn != nil && conn.serving != nil && len(list) < 3 {
			list = append(list, conn.serving.address)
		}
	}
	return list
}

// receive is the script that puts the agent in its place; its content follows on standard input. $1 is the path and $2 the
// digest.
const receive = `set -eu
umask 022
mkdir -p "$(dirname "$1")"
cat >"$1.incoming"
[ "$(sha256sum "$1.incoming" | cut -d' ' -f1)" = "$2" ] || { rm -f "$1.incoming"; echo "the agent arrived damaged: its digest is wrong" >&2; exit 1; }
chmod 0755 "$1.incoming"
mv -f "$1.incoming" "$1"
`

// fetch is the script with which a host that has no agent yet fetches it from another: $1 is the path, $2 the digest, $3 and
// $4 the address and port. The token is a line on standard input.
const fetch = `set -eu
umask 022
read -r token
mkdir -p "$(dirname "$1")"
exec 3<>"/dev/tcp/$3/$4"
printf '%s sha256:%s\n' "$token" "$2" >&3
cat <&3 >"$1.incoming"
[ "$(sha256sum "$1.incoming" | cut -d' ' -f1)" = "$2" ] || { rm -f "$1.incoming"; echo "the agent arrived damaged: its digest is wrong" >&2; exit 1; }
chmod 0755 "$1.incoming"
mv -f "$1.incoming" "$1"
`

// deliverAgent brings a host the agent.
func (c *content) deliverAgent(ctx context.Context, conn *connection, a agent, from string) error {
	digest := strings.TrimPrefix(a.digest, "sha256:")
	if from != "" {
		h, port, err := net.SplitHostPort(c.conns[from].serving.address)
		if err != nil {
			return fmt.Errorf("host %s: %w", conn.name, err)
		}
		err = conn.run(ctx, []string{"bash", "-c", fetch, "bash", node.AgentPath, digest, h, port}, strings.NewReader(c.token+"\n"), nil)
		if err == nil {
			return nil
		}
		conn.notef("the agent could not be fetched from host %s: %v", from, err)
	}
	c.sent(a.digest)
	return conn.sendAgent(ctx, a)
}

// sendAgent brings a host the agent from here.
func (c *connection) sendAgent(ctx context.Context, a agent) error {
	file, err := os.Open(a.path)
	if err != nil {
		return fmt.Errorf("read the agent: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	digest := strings.TrimPrefix(a.digest, "sha256:")
	if err := c.run(ctx, []string{"sh", "-c", receive, "sh", node.AgentPath, digest}, file, nil); err != nil {
		return fmt.Errorf("bring the agent: %w", err)
	}
	return nil
}

// stepsOf returns the steps of a host's stage.
func stepsOf(h plan.Host, id plan.StageID) []plan.Step {
	for _, s := range h.Stages {
		if s.ID == id {
			return s.Steps
		}
	}
	return nil
}
