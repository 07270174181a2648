package lifecycle

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/lifecycle/content"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// serving is a host that serves its files to other hosts while its session is open.
type serving struct {
	address string
	// stop asks the host to end. abort ends the session without waiting. ended is closed when the
	// session is over.
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
	case <-time.After(endTimeout): // the host does not answer any more
	}
	s.abort()
	<-s.ended
}

// carrier copies the agent and files to the hosts that miss them, in the order that Spread decides.
type carrier struct {
	*run
	*content.Spread

	token string
}

// distribute copies all files that their plans need to the hosts.
func (r *run) distribute(ctx context.Context, hosts []string) error {
	missing := map[string][]string{}
	for _, name := range hosts {
		need, err := r.needs(name)
		if err != nil {
			return err
		}
		missing[name] = need
	}
	c := &carrier{run: r, token: rand.Text(), Spread: content.NewSpread(hosts, missing, func(name string) bool { return r.conns[name] != nil })}
	for name, f := range r.facts {
		if f.Agent != "" {
			c.Gained(name, f.Agent)
		}
		for _, digest := range f.Blobs {
			c.Gained(name, digest)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	done := make(chan content.Delivery)
	for {
		stopped := r.rec.checkpoint()
		if stopped == nil {
			for _, d := range c.Next() {
				group.Go(func() error {
					err := c.carry(gctx, d)
					if err == nil {
						select {
						case done <- d:
						case <-gctx.Done():
						}
					}
					return err
				})
			}
		}
		if c.Idle() {
			return cmp.Or(group.Wait(), stopped)
		}
		select {
		case d := <-done:
			c.Done(d)
		case <-gctx.Done():
			return cmp.Or(group.Wait(), context.Cause(ctx))
		}
	}
}

// needs returns the digests that a host misses. The agent is the first of them.
func (r *run) needs(name string) ([]string, error) {
	f := r.facts[name]
	a, err := r.agent(f.Arch)
	if err != nil {
		return nil, err
	}
	var need []string
	if f.Agent != a.digest {
		need = append(need, a.digest)
	}
	changed := map[string]bool{}
	for _, i := range r.changes.Items {
		if i.Host == name {
			changed[i.Step] = true
		}
	}
	for _, s := range r.planned(name).Stages {
		for _, step := range s.Steps {
			if step.Artifact != nil && changed[step.ID] && !slices.Contains(f.Blobs, step.Artifact.Blob) && !slices.Contains(need, step.Artifact.Blob) {
				need = append(need, step.Artifact.Blob)
			}
		}
	}
	return need, nil
}

// carry lets the sources of a delivery serve their files, and then performs the delivery.
func (c *carrier) carry(ctx context.Context, d content.Delivery) error {
	group, gctx := errgroup.WithContext(ctx)
	for _, from := range d.From {
		group.Go(func() error { return c.serves(gctx, c.conns[from]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	conn := c.conns[d.Host]
	c.rec.stage(d.Host, "content")
	err := c.retry(ctx, conn, func(ctx context.Context) error { return c.deliver(ctx, conn, d) })
	c.rec.settle(d.Host, conn.trips.Load(), err)
	return err
}

// serves lets a host serve its files, unless it does already.
func (c *carrier) serves(ctx context.Context, conn *connection) error {
	conn.starts.Lock()
	defer conn.starts.Unlock()
	if conn.serving.Load() != nil {
		return nil
	}
	if err := c.bringAgent(ctx, conn); err != nil {
		return err
	}
	return c.serve(ctx, conn)
}

// serve starts the agent's file server on a host. The server runs until the connection is closed.
func (c *carrier) serve(ctx context.Context, conn *connection) error {
	open, stop := io.Pipe()
	out, said := io.Pipe()
	// The server outlives this delivery.
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &serving{
		ended: make(chan struct{}), abort: cancel,
		stop: func() { _ = stop.Close() }, // always nil
	}
	address := c.planned(conn.name).Address
	request, err := json.Marshal(node.ServeRequest{Token: c.token, Address: address})
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
	var serving node.Serving
	if err == nil {
		err = json.Unmarshal(line, &serving)
	}
	if err != nil {
		s.stop()
		s.abort()
		return fmt.Errorf("host %s: serve content to other hosts: %w", conn.name, err)
	}
	go io.Copy(io.Discard, out) //nolint:errcheck // it says nothing more
	s.address = net.JoinHostPort(address, strconv.Itoa(serving.Port))
	conn.serving.Store(s)
	return nil
}

// planned returns the plan of a host, or an empty one if the plan does not have the host.
func (r *run) planned(name string) (host plan.Host) {
	for _, h := range r.plan.Hosts {
		if h.Name == name {
			host = h
		}
	}
	return host
}

// deliver copies the assigned files to a host, from the sources given or from this machine. Files
// that a source did not deliver are assigned to this machine, for the next attempt.
func (c *carrier) deliver(ctx context.Context, conn *connection, d content.Delivery) error {
	agent, err := c.agent(c.facts[d.Host].Arch)
	if err != nil {
		return err
	}
	for _, digest := range d.Digests {
		if digest != agent.digest || c.Has(d.Host, digest) {
			continue
		}
		if err := c.deliverAgent(ctx, conn, agent, d.Sources[digest]); err != nil {
			return err
		}
		c.Gained(d.Host, digest)
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
	for _, digest := range d.Digests {
		if digest == agent.digest || c.Has(d.Host, digest) {
			continue
		}
		got = append(got, digest)
		if from := d.Sources[digest]; from != "" {
			req.Fetches = append(req.Fetches, node.Fetch{Digest: digest, Sources: c.addresses(digest, from), Token: c.token})
			continue
		}
		file, err := c.Env.Source(c.spec.Source).Open(ctx, c.files[digest], digest)
		if err != nil {
			return err
		}
		streams, files = append(streams, file), append(files, file)
		info, err := file.Stat()
		if err != nil {
			return fmt.Errorf("host %s: read %s: %w", d.Host, c.files[digest].Name, err)
		}
		req.Streams = append(req.Streams, node.Stream{Digest: digest, Size: info.Size()})
	}
	if len(got) == 0 {
		return nil
	}
	err = c.request(ctx, conn, req, streams...)
	var missing []string
	if step, ok := errors.AsType[*StepError](err); ok && len(step.missing) > 0 {
		// Perhaps a firewall is between the hosts, or a source stopped. This machine sends what is
		// missing.
		missing = step.missing
		conn.notef("could not be fetched from other hosts: %s", strings.Join(missing, ", "))
		for _, digest := range missing {
			d.Sources[digest] = ""
		}
	} else if err != nil {
		return err
	}
	for _, digest := range got {
		if !slices.Contains(missing, digest) {
			c.Gained(d.Host, digest)
		}
	}
	return err
}

// addresses returns up to three addresses that serve a digest, the assigned one first.
func (c *carrier) addresses(digest, first string) []string {
	list := []string{c.conns[first].serving.Load().address}
	for _, name := range c.Holders(digest) {
		if conn := c.conns[name]; name != first && conn != nil && conn.serving.Load() != nil && len(list) < 3 {
			list = append(list, conn.serving.Load().address)
		}
	}
	return list
}

// fetch is the script with which a host without agent fetches the agent from another host. $1 is
// the path, $2 the digest, $3 and $4 the address and port. The token is a line on standard input.
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

// deliverAgent copies the agent to a host: from another host if from is set and that succeeds, else
// from this machine.
func (c *carrier) deliverAgent(ctx context.Context, conn *connection, a agent, from string) error {
	conn.brings.Lock()
	defer conn.brings.Unlock()
	if conn.agent == a.digest {
		return nil
	}
	digest := strings.TrimPrefix(a.digest, "sha256:")
	if from != "" {
		h, port, err := net.SplitHostPort(c.conns[from].serving.Load().address)
		if err != nil {
			return fmt.Errorf("host %s: %w", conn.name, err)
		}
		err = conn.run(ctx, []string{"bash", "-c", fetch, "bash", node.AgentPath, digest, h, port}, strings.NewReader(c.token+"\n"), nil)
		if err == nil {
			conn.agent = a.digest
			return nil
		}
		conn.notef("the agent could not be fetched from host %s: %v", from, err)
	}
	return conn.sendAgent(ctx, a)
}

// stepsOf returns the steps of a stage of a host, or nil.
func stepsOf(h plan.Host, id plan.StageID) []plan.Step {
	for _, s := range h.Stages {
		if s.ID == id {
			return s.Steps
		}
	}
	return nil
}
