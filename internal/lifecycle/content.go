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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/lifecycle/content"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// serving is a running session of the agent's file server on a host. In the session, other hosts
// fetch files from this host.
type serving struct {
	// address is the host:port of the file server on the host.
	address string
	// stop asks the host to end the session. abort ends the session at once. ended is closed when
	// the session is over.
	stop  func()
	abort context.CancelFunc
	ended chan struct{}
}

// endTimeout is how long connection.close waits for a host to stop serving files. Then it aborts
// the session.
const endTimeout = 2 * time.Second

// end asks the host to end the session and waits until it is over. If that takes longer than
// endTimeout, end aborts the session.
func (s *serving) end() {
	s.stop()
	select {
	case <-s.ended:
	case <-time.After(endTimeout): // the host does not answer
	}
	s.abort()
	<-s.ended
}

// carrier copies the agent and the release files to the hosts that miss them. Spread decides which
// host gets a file from which source. token is the secret with which hosts fetch files from each
// other during this run of distribute. mute has the names of hosts that could not start their file
// server: they are no sources any more.
type carrier struct {
	*run
	*content.Spread

	token string
	mute  sync.Map
}

// distribute copies the agent, and the files of all changed steps, to those of the hosts that miss
// them. Every reached host may serve its files to other hosts, until its connection is closed. A
// host that cannot is left out as a source.
//
// If the Operation is paused or canceled, distribute begins no more deliveries, waits for the
// running ones, and returns ErrPaused or ErrCanceled. If a delivery fails, it cancels the others
// and returns the error.
func (r *run) distribute(ctx context.Context, hosts []string) error {
	missing := map[string][]string{}
	for _, name := range hosts {
		need, err := r.missingDigests(name)
		if err != nil {
			return err
		}
		missing[name] = need
	}
	c := &carrier{run: r, token: rand.Text()}
	c.Spread = content.NewSpread(hosts, missing, func(name string) bool { return r.conns[name] != nil && !c.isMute(name) })
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

// missingDigests returns the digests (sha256:HEX) of the files that a host still needs, according
// to its facts: the agent first, then the files of changed steps. Each digest is listed once.
func (r *run) missingDigests(name string) ([]string, error) {
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

// carry performs a delivery: it starts the file server on each source host, and then copies the
// files, with retries. For the receiving host it records the stage "content" and the result. If a
// source host cannot serve, this machine sends its files.
func (c *carrier) carry(ctx context.Context, d content.Delivery) error {
	var starts sync.WaitGroup
	for _, from := range d.From {
		starts.Go(func() { c.serves(ctx, c.conns[from]) })
	}
	starts.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for digest, from := range d.Sources {
		if from != "" && c.isMute(from) {
			d.Sources[digest] = ""
		}
	}
	conn := c.conns[d.Host]
	c.rec.stage(d.Host, "content")
	err := c.retry(ctx, conn, func(ctx context.Context) error { return c.deliver(ctx, conn, d) })
	c.rec.settle(d.Host, conn.trips.Load(), err)
	return err
}

// isMute reports whether the host with this name could not start its file server.
func (c *carrier) isMute(name string) bool {
	_, mute := c.mute.Load(name)
	return mute
}

// serves starts the file server on a host, with retries, unless it runs already. It first installs
// this version's agent if the host has another one or none. If the server cannot be started, serves
// adds the host to c.mute. It takes conn.starts.
func (c *carrier) serves(ctx context.Context, conn *connection) {
	conn.starts.Lock()
	defer conn.starts.Unlock()
	if conn.serving.Load() != nil || c.isMute(conn.name) {
		return
	}
	err := c.retry(ctx, conn, func(ctx context.Context) error {
		if err := c.bringAgent(ctx, conn); err != nil {
			return err
		}
		return c.serve(ctx, conn)
	})
	if err != nil && ctx.Err() == nil {
		conn.notef("sends no files to other hosts: %v", err)
		c.mute.Store(conn.name, true)
	}
}

// serve starts the agent's file server on a host and sets conn.serving. It returns when the server
// listens. The server runs until the connection of the host is closed or lost, even if ctx ends
// earlier. serve clears conn.serving then. The caller holds conn.starts.
func (c *carrier) serve(ctx context.Context, conn *connection) error {
	open, stop := io.Pipe()
	out, said := io.Pipe()
	// The server runs on after this delivery, for the deliveries to other hosts.
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &serving{
		ended: make(chan struct{}), abort: cancel,
		stop: func() { _ = stop.Close() }, // closing a pipe returns nil
	}
	address := c.planned(conn.name).Address
	request, err := json.Marshal(node.ServeRequest{Token: c.token, Address: address})
	if err != nil {
		return fmt.Errorf("host %s: marshal: %w", conn.name, err)
	}
	go func() {
		err := conn.run(sctx, []string{node.AgentPath, "node", "serve"},
			io.MultiReader(strings.NewReader(string(request)+"\n"), open), said)
		s.stop() // run may have left a goroutine that reads open
		cancel()
		_ = said.CloseWithError(errors.Join(err, io.EOF)) // closing a pipe returns nil
		close(s.ended)
		conn.serving.CompareAndSwap(s, nil)
	}()
	defer context.AfterFunc(ctx, s.abort)()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var serving node.Serving
	if err == nil {
		err = json.Unmarshal(line, &serving)
	}
	if err != nil {
		_ = out.Close() // the server could otherwise wait until its output is read
		s.stop()
		s.abort()
		<-s.ended
		return fmt.Errorf("host %s: serve content to other hosts: %w", conn.name, err)
	}
	go io.Copy(io.Discard, out) //nolint:errcheck // the server writes only one line
	s.address = net.JoinHostPort(address, strconv.Itoa(serving.Port))
	conn.serving.Store(s)
	select {
	case <-s.ended: // maybe before conn.serving was set
		conn.serving.CompareAndSwap(s, nil)
	default:
	}
	return nil
}

// planned returns the part of r.plan for a host, or an empty Host if the plan does not have the
// host.
func (r *run) planned(name string) (host plan.Host) {
	for _, h := range r.plan.Hosts {
		if h.Name == name {
			host = h
		}
	}
	return host
}

// deliver makes one attempt at a delivery: it copies the files to the host, each from the host in
// d.Sources or, for "", from this machine. Files that the host already has are skipped. If the host
// cannot fetch some files from their sources, deliver returns a StepError. It sets d.Sources so
// that the next attempt sends those files from this machine.
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
			_ = f.Close() // a file that is only read
		}
	}()
	for _, digest := range d.Digests {
		if digest == agent.digest || c.Has(d.Host, digest) {
			continue
		}
		got = append(got, digest)
		if sources := c.addresses(digest, d.Sources[digest]); len(sources) > 0 {
			req.Fetches = append(req.Fetches, node.Fetch{Digest: digest, Sources: sources, Token: c.token})
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
		// The host could not fetch some files. A firewall may be between the hosts, or a source stopped.
		// The next attempt sends these files from this machine.
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

// addresses returns up to three addresses (host:port) of file servers that run on hosts with the
// file with this digest. The address of the host named first comes first. If first is "", which
// stands for this machine, addresses returns none.
func (c *carrier) addresses(digest, first string) []string {
	if first == "" {
		return nil
	}
	var list []string
	for _, name := range slices.Concat([]string{first}, c.Holders(digest)) {
		if address := c.addressOf(name); address != "" && !slices.Contains(list, address) && len(list) < 3 {
			list = append(list, address)
		}
	}
	return list
}

// addressOf returns the address (host:port) of the file server on a host, or "" if none runs there.
func (c *carrier) addressOf(name string) string {
	if conn := c.conns[name]; conn != nil {
		if s := conn.serving.Load(); s != nil {
			return s.address
		}
	}
	return ""
}

// fetch is the bash script with which a host without an agent fetches the agent from another host.
// $1 is the path, $2 the SHA-256 digest in hex without sha256:, and $3 and $4 are the address and
// port of the file server. The script reads the token, one line, from standard input. It fails if
// the content has another digest.
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

// deliverAgent installs the agent on a host, unless the host has it already. The host fetches the
// agent from the host named from. If that fails, or no file server runs there, this machine sends
// the agent. from may be "", which stands for this machine.
// deliverAgent sets conn.agent, the digest of the installed agent, and takes conn.brings.
func (c *carrier) deliverAgent(ctx context.Context, conn *connection, a agent, from string) error {
	conn.brings.Lock()
	defer conn.brings.Unlock()
	if conn.agent == a.digest {
		return nil
	}
	digest := strings.TrimPrefix(a.digest, "sha256:")
	if address := c.addressOf(from); address != "" {
		h, port, err := net.SplitHostPort(address)
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

// stepsOf returns the steps of one stage of the plan of a host, or nil if the host does not have
// the stage.
func stepsOf(h plan.Host, id plan.StageID) []plan.Step {
	for _, s := range h.Stages {
		if s.ID == id {
			return s.Steps
		}
	}
	return nil
}
