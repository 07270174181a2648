package lifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/facts"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// maxDials bounds how many hosts are connected to at the same time.
const maxDials = 64

// connection is the connection to a host that was reached.
type connection struct {
	name   string
	target host.Target
	dialer host.Dialer
	trips  atomic.Int32
	// leased is true while the host may hold a lease of this run. Requests that extend or release the
	// lease require the lock extends.
	leased  atomic.Bool
	extends sync.Mutex
	// arch of the host, and the digest of the agent on it. Both are empty until known. Changing the
	// agent requires the lock brings.
	arch   string
	brings sync.Mutex
	agent  string
	log    io.WriteCloser // nil when nothing is recorded
	// etcdLog is the directory with the write-ahead log of etcd, or empty.
	etcdLog string

	mu   sync.Mutex
	conn host.Conn

	// serving is set while the host serves files to other hosts. starts is held while it is set up.
	serving atomic.Pointer[serving]
	starts  sync.Mutex
}

// run runs a command on the host and counts the round trip.
func (c *connection) run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	c.trips.Add(1)
	return c.current().Run(ctx, argv, stdin, stdout)
}

func (c *connection) current() host.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// again replaces a connection that was lost.
func (c *connection) again(ctx context.Context) error {
	conn, err := c.dialer.Dial(ctx, c.target)
	if err != nil {
		return err
	}
	c.mu.Lock()
	old := c.conn
	c.conn = conn
	c.mu.Unlock()
	_ = old.Close() // it is lost
	return nil
}

func (c *connection) close() {
	if s := c.serving.Load(); s != nil {
		s.end()
	}
	_ = c.current().Close() // nothing is lost with it
	if c.log != nil {
		_ = c.log.Close()
	}
}

// notef writes a line to the host's log, with the time. Without a log it does nothing.
func (c *connection) notef(format string, args ...any) {
	if c.log != nil {
		fmt.Fprintf(c.log, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), fmt.Sprintf(format, args...)) //nolint:errcheck // a log
	}
}

// survey connects to hosts in parallel and reads their facts. A host that cannot be reached or
// logged in to goes into r.away. All other errors are returned together. Hosts that are connected
// already are skipped.
func (r *run) survey(ctx context.Context, hosts []clusterv1alpha1.Host) error {
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDials)
	unknown := slices.DeleteFunc(slices.Clone(hosts), func(h clusterv1alpha1.Host) bool { return r.conns[h.Name] != nil })
	for _, h := range unknown {
		group.Go(func() error {
			c, f, reach, err := r.connect(gctx, h)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				r.conns[h.Name], r.facts[h.Name] = c, f
			case reach == intent.Reached:
				r.failed[h.Name] = err
			default:
				r.away[h.Name] = away{reach, err}
			}
			return nil
		})
	}
	_ = group.Wait() // it returns none
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errorsOf(r.failed)
}

// errorsOf joins the errors of hosts, in the order of their names. It is nil without errors.
func errorsOf(hosts map[string]error) error {
	errs := make([]error, 0, len(hosts))
	for _, name := range sortedKeys(hosts) {
		errs = append(errs, hosts[name])
	}
	return errors.Join(errs...)
}

// report adds the blocking preflight findings of the reached hosts to the error wrong, so that the
// user can correct everything at once.
func (r *run) report(ctx context.Context, wrong error) error {
	if len(r.facts) == 0 || ctx.Err() != nil {
		return wrong
	}
	in, err := r.input(ctx)
	if err != nil {
		return wrong // the first error is the one to report
	}
	if blocking := r.blocking(in); len(blocking) > 0 {
		return errors.Join(wrong, &PreflightError{Findings: blocking})
	}
	return wrong
}

// blocking returns the findings that prevent the run. A run that only adds or removes hosts is not
// prevented by what has changed on another host since that joined the cluster.
func (r *run) blocking(in plan.Input) []plan.Finding {
	moves := r.op != nil && (r.op.Spec.Action == lifecyclev1alpha1.ActionAddNode || r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode)
	return slices.DeleteFunc(plan.Preflight(in), func(f plan.Finding) bool {
		return f.Severity != plan.SeverityError || moves && r.state.IsPart(f.Host) && f.IsOfTheHostAlone()
	})
}

// connect connects to one host, opens its log and reads its facts. If the host was Reached, an
// error is about its facts or about this machine. With an error, the connection is closed.
func (r *run) connect(ctx context.Context, h clusterv1alpha1.Host) (_ *connection, _ plan.Facts, reach intent.Reach, err error) {
	target, err := r.Env.Target(ctx, h)
	if err != nil { // without credentials there is no login
		return nil, plan.Facts{}, intent.Refused, fmt.Errorf("host %s: %w", h.Name, err)
	}
	conn, err := r.Dialer.Dial(ctx, target)
	if _, gone := errors.AsType[*host.Unreachable](err); gone {
		return nil, plan.Facts{}, intent.Unreachable, err
	}
	if err != nil {
		return nil, plan.Facts{}, intent.Refused, err
	}
	c := &connection{name: h.Name, target: target, dialer: r.Dialer, conn: conn, etcdLog: plan.EtcdLog(r.spec)}
	defer func() {
		if err != nil {
			c.notef("facts: %v", err)
			c.close()
		}
	}()
	if r.rec != nil {
		if c.log, err = r.Env.Log(r.op.Name, h.Name); err != nil {
			return nil, plan.Facts{}, intent.Reached, err
		}
		c.notef("connected; operation %s attempt %d", r.op.Name, r.op.Status.Attempt)
	}
	f, err := c.facts(ctx)
	return c, f, reachOf(err), err
}

// facts reads the facts of the host. It returns an error also if the agent is newer than this
// orrery.
func (c *connection) facts(ctx context.Context) (plan.Facts, error) {
	var out bytes.Buffer
	asked := time.Now()
	if err := c.run(ctx, []string{"sh"}, strings.NewReader(facts.Script(node.AgentPath, c.etcdLog)), &out); err != nil {
		return plan.Facts{}, fmt.Errorf("ask for facts: %w", err)
	}
	f, err := facts.Parse(out.Bytes(), asked, time.Now())
	if err != nil {
		return plan.Facts{}, fmt.Errorf("host %s: read its facts: %w", c.name, err)
	}
	c.arch = f.Arch
	c.brings.Lock()
	defer c.brings.Unlock()
	c.agent = f.Agent
	return f, speaks(c.name, f.Applied.Protocol)
}

// StepError is the failure of a step on a host. Step is empty if the whole request failed.
type StepError struct {
	Host, Step, Message string
	// final is true if another attempt cannot succeed, and held if another run has the lease of the
	// host. missing lists the files that the host could not fetch from other hosts.
	final, held bool
	missing     []string
}

// Error names the host and the step.
func (e *StepError) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("host %s: %s", e.Host, e.Message)
	}
	return fmt.Sprintf("host %s: %s: %s", e.Host, e.Step, e.Message)
}

// request sends a request to the agent of a host and records its events. It first installs the
// agent if needed. streams follow the request on standard input.
func (r *run) request(ctx context.Context, c *connection, req node.Request, streams ...io.Reader) error {
	if err := r.bringAgent(ctx, c); err != nil {
		return err
	}
	req.Version = r.spec.Kubernetes.Version
	return r.send(ctx, c, req, streams...)
}

// send sends a request to the agent that a host has, and records its events. An empty request
// takes or extends the lease of the host. It is sent in parallel to the run, and so must read
// nothing that a run changes. A StepError from the agent comes before an error of the
// connection.
func (r *run) send(ctx context.Context, c *connection, req node.Request, streams ...io.Reader) (err error) {
	req.Protocol, req.Cluster, req.ClusterID = node.Protocol, r.Cluster, r.state.ID
	req.Lease, req.Ended = r.lease(), r.ended
	line, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("host %s: marshal the request: %w", c.name, err)
	}
	c.leased.Store(true)
	defer func() {
		if err == nil && req.Release {
			c.leased.Store(false)
		}
	}()
	read, write := io.Pipe()
	said := make(chan error, 1)
	go func() {
		err := r.listen(c, read)
		_ = read.CloseWithError(err) // always nil
		said <- err
	}()
	stdin := io.MultiReader(append([]io.Reader{bytes.NewReader(append(line, '\n'))}, streams...)...)
	ran := c.run(ctx, []string{node.AgentPath, "node", "apply"}, stdin, write)
	_ = write.Close() // always nil
	heard := <-said
	if _, ok := errors.AsType[*StepError](heard); ok {
		return heard
	}
	if ran != nil {
		return ran
	}
	return heard
}

// listen records the events of the agent until the stream ends. It returns a StepError if a step
// failed or another run holds the lease.
func (r *run) listen(c *connection, events io.Reader) error {
	decoder := json.NewDecoder(events)
	var failed error
	held := false
	for {
		var e node.Event
		err := decoder.Decode(&e)
		switch {
		case errors.Is(err, io.EOF) && failed == nil && !held:
			return fmt.Errorf("host %s: the agent ended without a word", c.name)
		case errors.Is(err, io.EOF):
			return failed
		case err != nil:
			return errors.Join(failed, fmt.Errorf("host %s: read what the agent says: %w", c.name, err))
		}
		held = true
		c.notef("%s %s %s", e.State, e.Step, e.Message)
		if e.Output != "" {
			c.notef("%s printed: %s", e.Step, e.Output)
		}
		if e.LeaseHeld != nil {
			l := e.LeaseHeld
			message := fmt.Sprintf(
				"operation %s, run by %s, works on this host until %s at least: wait for it, or cancel it there; if it was killed, resume it",
				l.Operation, l.Holder, l.Expires.UTC().Format(time.RFC3339))
			if l.Operation == "" || l.Operation == r.op.Name {
				message = fmt.Sprintf("a later run, of epoch %d, has changed this host, and this one, of epoch %d, changes nothing any more; see %q where that one is run",
					l.Epoch, r.op.Status.Epoch, "orrery operation list")
			}
			failed = &StepError{Host: c.name, final: true, held: true, Message: message}
			continue
		}
		if e.State == lifecyclev1alpha1.StepFailed {
			failed = &StepError{Host: c.name, Step: e.Step, Message: e.Message, missing: e.Missing}
		}
		if e.Step == "" {
			continue
		}
		record := lifecyclev1alpha1.StepRecord{Host: c.name, ID: e.Step, State: e.State, InputHash: e.InputHash, Message: e.Message}
		if e.State == lifecyclev1alpha1.StepRunning {
			record.Started = metav1.NewMicroTime(e.Time)
		} else {
			record.Finished = metav1.NewMicroTime(e.Time)
		}
		r.rec.step(record)
	}
}

// retry calls do until it succeeds, the attempts of the Operation are used up, or the error is
// final. Between attempts it waits longer each time, and reconnects if the host was unreachable.
func (r *run) retry(ctx context.Context, c *connection, do func(context.Context) error) error {
	for attempt := int32(1); ; attempt++ {
		err := do(ctx)
		if err == nil {
			return nil
		}
		var step *StepError
		final := errors.As(err, &step) && step.final
		if final || attempt >= r.attempts() || ctx.Err() != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.As(err, &step) {
				return cause
			}
			return err
		}
		c.notef("attempt %d failed: %v", attempt, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(attempt) * time.Second): // seconds, growing with each attempt
		}
		if _, ok := errors.AsType[*host.Unreachable](err); ok {
			if e := c.again(ctx); e != nil {
				return e
			}
		}
	}
}
