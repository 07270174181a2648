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

// maxDials bounds how many hosts a run connects to in parallel. Other requests to many hosts at
// once, such as those for leases, have the same bound.
const maxDials = 64

// connection is the SSH connection of a run to a host, with what the run knows of the agent and the
// lease there. Several goroutines use it, and the fields say which lock they need. The method facts
// sets arch before other goroutines use the connection.
type connection struct {
	name   string
	target host.Target
	dialer host.Dialer
	trips  atomic.Int32
	// leased is true while the host may hold a lease of this run. extends is held during a request
	// that extends the lease, and during a request that removes everything from the host.
	leased  atomic.Bool
	extends sync.Mutex
	// arch is the architecture of the host, and agent the digest of the agent executable there. Both
	// are "" until known, and agent is also "" if the host has no agent. brings guards agent, and is
	// held while the agent is installed.
	arch   string
	brings sync.Mutex
	agent  string
	log    io.WriteCloser // log of the host in the run; nil for a plan
	// etcdLog is the directory of etcd's write-ahead log, or "" for an external etcd.
	etcdLog string

	mu   sync.Mutex
	conn host.Conn
	// redials is held while a lost connection is replaced.
	redials sync.Mutex

	// serving is set while the host serves files to other hosts, and nil before and after. starts is
	// held while that session is set up.
	serving atomic.Pointer[serving]
	starts  sync.Mutex
}

// run runs a command on the host and returns its error. It counts the round trip in c.trips. stdin
// and stdout may be nil.
func (c *connection) run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	c.trips.Add(1)
	return c.current().Run(ctx, argv, stdin, stdout)
}

// current returns the SSH connection in use. The method again replaces it after a loss, so callers
// do not keep it. It takes c.mu.
func (c *connection) current() host.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// again reconnects to a host, and closes the connection that was lost. It does nothing if another
// caller has replaced that connection already. After an error the lost connection stays in use. It
// takes c.redials and c.mu.
func (c *connection) again(ctx context.Context, lost host.Conn) error {
	c.redials.Lock()
	defer c.redials.Unlock()
	if c.current() != lost {
		return nil
	}
	conn, err := c.dialer.Dial(ctx, c.target)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	_ = lost.Close() // an error of Close does not matter
	return nil
}

// close ends the session in which the host serves files, if there is one, and closes the connection
// and the host's log. It ignores errors. It may wait for endTimeout.
func (c *connection) close() {
	if s := c.serving.Load(); s != nil {
		s.end()
	}
	_ = c.current().Close() // an error of Close does not matter
	if c.log != nil {
		_ = c.log.Close()
	}
}

// notef writes a line to the log of the host in this run (c.log), with the time in UTC. If c.log is
// nil, as for a plan, it does nothing. Errors are ignored.
func (c *connection) notef(format string, args ...any) {
	if c.log != nil {
		fmt.Fprintf(c.log, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), fmt.Sprintf(format, args...)) //nolint:errcheck // a log
	}
}

// inspect connects to hosts in parallel and reads their facts into r.conns and r.facts. It skips
// hosts that are connected already. A host that cannot be reached or logged in to goes into r.away,
// which is no error. A host with another error goes into r.failed. inspect returns all errors in
// r.failed joined, or the cause if ctx has ended.
func (r *run) inspect(ctx context.Context, hosts []clusterv1alpha1.Host) error {
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
	_ = group.Wait() // no goroutine returns an error
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errorsOf(r.failed)
}

// errorsOf joins the errors of hosts, by host name, in the order of the names. It returns nil for
// an empty map.
func errorsOf(hosts map[string]error) error {
	errs := make([]error, 0, len(hosts))
	for _, name := range sortedKeys(hosts) {
		errs = append(errs, hosts[name])
	}
	return errors.Join(errs...)
}

// report adds to an error the problems that Preflight finds on the reached hosts, so that the user
// can correct everything at once. The result is wrong joined with a PreflightError. It is wrong
// alone if no finding would stop the run, or if the findings cannot be determined.
func (r *run) report(ctx context.Context, wrong error) error {
	if len(r.facts) == 0 || ctx.Err() != nil {
		return wrong
	}
	in, err := r.input(ctx)
	if err != nil {
		return wrong // only the first error is reported
	}
	if blocking := r.blocking(in); len(blocking) > 0 {
		return errors.Join(wrong, &PreflightError{Findings: blocking})
	}
	return wrong
}

// blocking returns the findings of Preflight that stop the run: those with SeverityError. A run
// that only adds or removes hosts must not fail for a problem of another host. It leaves out
// findings about hosts already in the cluster for which IsOfTheHostAlone is true.
func (r *run) blocking(in plan.Input) []plan.Finding {
	moves := r.op != nil && (r.op.Spec.Action == lifecyclev1alpha1.ActionAddNode || r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode)
	return slices.DeleteFunc(plan.Preflight(in), func(f plan.Finding) bool {
		return f.Severity != plan.SeverityError || moves && r.state.IsPart(f.Host) && f.IsOfTheHostAlone()
	})
}

// connect connects to a host, opens its log for this run and reads its facts. A plan (r.rec is nil)
// opens no log. reach is intent.Unreachable or intent.Refused if the host cannot be connected to or
// logged in to, or has no credentials. If an error comes with intent.Reached, reading the facts or
// opening the log failed. With any error, the connection is closed and must not be used.
func (r *run) connect(ctx context.Context, h clusterv1alpha1.Host) (_ *connection, _ plan.Facts, reach intent.Reach, err error) {
	target, err := r.Env.Target(ctx, h)
	if err != nil { // without credentials no login is possible
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

// facts runs the facts script on the host and returns the facts. It sets c.arch, and c.agent, the
// digest of the installed agent. It returns an error if the agent on the host is newer than this
// Orrery.
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
	return f, checkProtocol(c.name, f.Applied.Protocol)
}

// StepError means that a step failed on a host, as the agent there reports. Step is its ID. Step is
// "" if the agent refused the whole request, for instance because another run holds the lease of
// the host.
type StepError struct {
	Host, Step, Message string
	// final is true if another attempt cannot succeed, and held if another run has the lease of the
	// host. missing has the digests of the files that the host could not fetch from other hosts.
	final, held bool
	missing     []string
}

// Error returns the host, the step unless it is "", and the message.
func (e *StepError) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("host %s: %s", e.Host, e.Message)
	}
	return fmt.Sprintf("host %s: %s: %s", e.Host, e.Step, e.Message)
}

// request sends a request to the agent of a host and records the events that the agent reports. It
// first installs this version's agent if the host has no agent or another one. It sets req.Version,
// the version of Kubernetes. streams are sent on standard input after the request. A step that
// fails is a StepError, see send.
func (r *run) request(ctx context.Context, c *connection, req node.Request, streams ...io.Reader) error {
	if err := r.bringAgent(ctx, c); err != nil {
		return err
	}
	req.Version = r.spec.Kubernetes.Version
	return r.send(ctx, c, req, streams...)
}

// send sends a request to the installed agent of a host, records the events that the agent reports,
// and returns when the agent has ended. It sets the protocol, the cluster and the lease in req.
// Each request takes or extends the lease of the host, and an empty request does only that.
//
// send returns a StepError if a step failed or another run has the lease, even if the connection
// failed afterwards. It sets c.leased, and clears it after a release. leaseKeeper calls send in
// parallel to the run, so send reads nothing that a run changes.
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
		_ = read.CloseWithError(err) // closing a pipe returns nil
		said <- err
	}()
	stdin := io.MultiReader(append([]io.Reader{bytes.NewReader(append(line, '\n'))}, streams...)...)
	ran := c.run(ctx, []string{node.AgentPath, "node", "apply"}, stdin, write)
	_ = write.Close() // closing a pipe returns nil
	heard := <-said
	if _, ok := errors.AsType[*StepError](heard); ok {
		return heard
	}
	if ran != nil {
		return ran
	}
	return heard
}

// listen reads the events of the agent on a host until the stream ends, and records them as steps.
// It returns a StepError if a step failed or another run holds the lease of the host. After several
// failures it returns the last one. A stream without any event is an error.
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
			if l.Operation == "" || l.Operation == r.op.Name || !time.Now().Before(l.Expires) {
				other := "a later run"
				if l.Epoch == r.op.Status.Epoch { // both runs read the hosts before one changed them
					other = "another run"
				}
				message = fmt.Sprintf("%s, of epoch %d, has changed this host, and this one, of epoch %d, changes nothing any more; see %q where that one is run",
					other, l.Epoch, r.op.Status.Epoch, "orrery operation list")
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

// retry calls do until it succeeds. It gives up if the attempts of the Operation are used up, if do
// returns a final StepError, or if ctx ends. It then returns the last error of do. If ctx has ended
// and that error is no StepError, it returns the cause of ctx instead. After attempt N it waits N
// seconds. If the connection was lost, it reconnects before the next attempt, and returns the error
// if that fails.
func (r *run) retry(ctx context.Context, c *connection, do func(context.Context) error) error {
	for attempt := int32(1); ; attempt++ {
		used := c.current()
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
		case <-time.After(time.Duration(attempt) * time.Second): // one second more after each attempt
		}
		if _, ok := errors.AsType[*host.Unreachable](err); ok {
			if e := c.again(ctx, used); e != nil {
				return e
			}
		}
	}
}
