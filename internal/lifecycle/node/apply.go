package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// session is one call of Apply, with one request, or one call of Observe. It is used by one
// goroutine. Observe sets only Node and state.
type session struct {
	*Node
	request Request
	events  *json.Encoder
	state   *state
	content *arrivals
	// units has the status of recorded units by name, as observed first. A unit is removed when a step
	// changes it. The map is nil until the first observation.
	units map[string]unit.Status
	// dirty is true if state has a completed step that is not on disk. The next write stores it, at
	// the latest when the next step begins. If the agent is killed before, the next request repeats
	// the step.
	dirty bool
}

// Apply does the work of `orrery node apply`. It reads a Request from r, as one line, and the
// content of the request's streams after that. It performs the request and writes Events to w.
// Failures are reported as events, also the end of ctx and a request with another protocol. The
// error means that the request cannot be read, or that an event cannot be written.
func (n *Node) Apply(ctx context.Context, r io.Reader, w io.Writer) error {
	in := bufio.NewReader(r)
	line, err := in.ReadBytes('\n')
	if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
		return fmt.Errorf("read request: %w", err)
	}
	s := &session{Node: n, events: json.NewEncoder(w)}
	if s.request, err = parseRequest(line); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if p := s.request.Protocol; p != Protocol {
		return s.emit(failure("", fmt.Errorf("the agent on this host speaks protocol %d, and was asked in %d: a newer orrery, or an older one, "+
			"works on this cluster, too; use the newest of them alone", Protocol, p)))
	}
	if err := s.run(ctx, in); err != nil {
		if failed, ok := errors.AsType[*eventError](err); ok {
			return failed
		}
		return s.emit(failure("", err))
	}
	return nil
}

// parseRequest decodes the line with a request. An unknown field is an error, since the agent would
// not do what the field asks for. For a request with another protocol it returns only the protocol,
// without an error.
func parseRequest(line []byte) (Request, error) {
	var said struct {
		Protocol int `json:"protocol"`
	}
	if err := json.Unmarshal(line, &said); err != nil || said.Protocol != Protocol {
		return Request{Protocol: said.Protocol}, err
	}
	var req Request
	strict := json.NewDecoder(bytes.NewReader(line))
	strict.DisallowUnknownFields()
	err := strict.Decode(&req)
	return req, err
}

// eventError means that an event could not be written, usually because the engine has disconnected.
type eventError struct{ err error }

func (e *eventError) Error() string { return "write event: " + e.err.Error() }
func (e *eventError) Unwrap() error { return e.err }

// emit sets the time of an event to the present and writes the event. The error is an *eventError.
func (s *session) emit(e Event) error {
	e.Time = s.Now()
	if err := s.events.Encode(e); err != nil {
		return &eventError{err}
	}
	return nil
}

// failure returns the event with state Failed for err. step is the ID of the failed step, or "" for
// the request as a whole. The event also has what err contains: the lease of another run
// (leaseError), the output of a script (scriptError), and missing digests (missingError).
func failure(step string, err error) Event {
	e := Event{Step: step, State: lifecyclev1alpha1.StepFailed, Message: err.Error()}
	if held, ok := errors.AsType[*leaseError](err); ok {
		e.LeaseHeld = &held.held
	}
	if failed, ok := errors.AsType[*scriptError](err); ok {
		e.Output = failed.said
	}
	if missing, ok := errors.AsType[*missingError](err); ok {
		e.Missing = missing.digests
	}
	return e
}

// run performs s.request, whose protocol is checked already. in has the content of its streams. The
// error is about the request as a whole, or about an event that could not be written. A step that
// fails is reported as an event, and run returns nil.
func (s *session) run(ctx context.Context, in io.Reader) error {
	if s.nothingToDo() {
		return s.emit(Event{State: lifecyclev1alpha1.StepRunning})
	}
	if s.leaseOnly() {
		return s.extend(ctx)
	}
	made, err := s.makeDir()
	if err != nil {
		return err
	}
	if err := s.takeLease(ctx, s.request.Lease, s.request.Ended); err != nil {
		return err
	}
	unlock, err := lock(ctx, s.dir("lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.begin(made); err != nil {
		return err
	}
	if err := s.emit(Event{State: lifecyclev1alpha1.StepRunning}); err != nil {
		return err
	}
	arrive, stop := context.WithCancel(ctx)
	defer stop()
	if s.content, err = s.receive(arrive, in, s.request); err != nil {
		return err
	}
	ok, err := s.steps(ctx)
	if err = errors.Join(err, s.flush()); err != nil {
		return err
	}
	// Wait for the content of the request even after a failed step: a repeated request can use it.
	if err := s.await(ctx, s.content.all); err != nil || !ok {
		return err
	}
	return s.end(ctx)
}

// makeDir creates Dir, the directory of the agent's records, if it is missing. made are the parents
// of Dir that it created, the innermost first. The caller records them in the state, so that
// removing the agent removes them too.
func (n *Node) makeDir() (made []string, err error) {
	for dir := filepath.Dir(Dir); dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(n.path(dir)); err == nil {
			break
		}
		made = append(made, dir)
	}
	for _, dir := range slices.Backward(made) {
		if err := os.Mkdir(n.path(dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as /var/lib is
			return nil, full(n.path(dir), err)
		}
	}
	if err := os.Mkdir(n.dir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, full(n.dir(), err)
	}
	return made, nil
}

// nothingToDo reports whether the host has no directory of records, and the request has no steps,
// no content and not RemoveAll. Such a request only takes or releases a lease, or removes steps
// that were never applied. run then changes nothing on the host.
func (s *session) nothingToDo() bool {
	_, err := os.Lstat(s.dir())
	r := s.request
	return errors.Is(err, fs.ErrNotExist) && !r.RemoveAll && len(r.Steps)+len(r.Streams)+len(r.Fetches) == 0
}

// leaseOnly reports whether the request only takes or extends a lease: it has no steps, removals,
// content or release.
func (s *session) leaseOnly() bool {
	r := s.request
	return !r.RemoveAll && !r.Release && len(r.Steps)+len(r.Remove)+len(r.Streams)+len(r.Fetches) == 0
}

// extend performs a request that only takes or extends the lease. It does not wait for the lock,
// because another agent of the same run may be at work on the host. It returns an error if the host
// belongs to another cluster, or a leaseError if another run has the lease.
func (s *session) extend(ctx context.Context) (err error) {
	if s.state, err = s.load(); err != nil {
		return err
	}
	if err := s.checkCluster(); err != nil {
		return err
	}
	if err := s.takeLease(ctx, s.request.Lease, s.request.Ended); err != nil {
		return err
	}
	return s.emit(Event{State: lifecyclev1alpha1.StepRunning})
}

// checkCluster returns an error if the host belongs to another cluster than the request names. A
// host without a cluster is accepted. s.state must be loaded.
func (s *session) checkCluster() error {
	if s.state.ClusterID == "" || s.state.ClusterID == s.request.ClusterID {
		return nil
	}
	return fmt.Errorf("host belongs to cluster %s (authority %s); delete that cluster, or this host of it, first",
		s.state.Cluster, s.state.ClusterID)
}

// begin prepares s for the steps. The caller holds the lock of the host. begin checks the lease
// again, loads the state into s.state, and refuses a request for another cluster. It allocates the
// reserve file, and stores the stamp of the agent.
//
// made are the directories that makeDir created; begin adds them to the state. If the host joins
// the cluster with this request, begin saves the state. Else a later write includes made.
func (s *session) begin(made []string) (err error) {
	if err := s.holds(s.request.Lease); err != nil { // another run may have taken the lease meanwhile
		return err
	}
	if s.state, err = s.load(); err != nil {
		return err
	}
	if err := s.checkCluster(); err != nil {
		return err
	}
	s.reserve()
	s.stampAgent()
	s.state.Made = union(s.state.Made, made)
	if !s.request.RemoveAll && (s.state.Cluster != s.request.Cluster || s.state.ClusterID != s.request.ClusterID) {
		s.state.Cluster, s.state.ClusterID = s.request.Cluster, s.request.ClusterID
		return s.save(s.state)
	}
	return nil
}

// steps undoes the recorded steps that the request removes, the latest first. Then it does the
// requested steps in their order, except for RemoveAll. It ends at the first step that fails, which
// is reported as an event: ok is false and err is nil then. err means that an event could not be
// written.
func (s *session) steps(ctx context.Context) (ok bool, err error) {
	var gone []*record
	for _, r := range slices.Backward(s.state.Steps) {
		if s.request.RemoveAll || slices.Contains(s.request.Remove, r.Step.ID) {
			gone = append(gone, r)
		}
	}
	for _, r := range gone {
		if ok, err := s.step(ctx, r.Step.ID, r.Hash, func() (lifecyclev1alpha1.StepState, string, error) {
			return s.revert(ctx, r)
		}); !ok || err != nil {
			return false, err
		}
	}
	if s.request.RemoveAll {
		return true, nil
	}
	for i, step := range s.request.Steps {
		if ok, err := s.step(ctx, step.ID, step.Hash(), func() (lifecyclev1alpha1.StepState, string, error) {
			return s.do(ctx, i)
		}); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// step performs one step. It emits the event that the step begins, calls do, and emits the event
// with the result. id and hash identify the step in both events. If ctx has ended or the lease is
// lost, the step fails without a call of do.
//
// do returns the state and the message for the second event. ok reports whether the step succeeded.
// err means that an event could not be written.
func (s *session) step(ctx context.Context, id, hash string, do func() (lifecyclev1alpha1.StepState, string, error)) (ok bool, err error) {
	if err := s.emit(Event{Step: id, InputHash: hash, State: lifecyclev1alpha1.StepRunning}); err != nil {
		return false, err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else {
		err = s.holds(s.request.Lease)
	}
	e := Event{Step: id}
	if err == nil {
		e.State, e.Message, err = do()
	}
	if err != nil {
		e = failure(id, err)
	}
	e.InputHash = hash
	return err == nil, s.emit(e)
}

// do performs step i of the request, and returns the state and the message for its event. It leaves
// a step alone that is recorded as complete with the same hash and shows no drift: the state is
// Unchanged. It does so only if the step is not in request.Again.
//
// A probe is always performed. If it was complete with the same hash, the state is Unchanged, too.
// Before do applies a step, it captures what the step will change, and writes the state. The
// completion is only in memory until the next write, see session.dirty.
func (s *session) do(ctx context.Context, i int) (lifecyclev1alpha1.StepState, string, error) {
	step := s.request.Steps[i]
	k, err := kindOf(step)
	if err != nil {
		return "", "", err
	}
	hash := step.Hash()
	r := s.state.find(step.ID)
	same := r != nil && r.Complete && r.Hash == hash
	if same && step.Probe == nil && !slices.Contains(s.request.Again, step.ID) {
		applied, err := kindOf(r.Step)
		if err != nil {
			return "", "", err
		}
		drift, err := applied.observe(ctx, s, r)
		if err != nil {
			return "", "", err
		}
		if drift == "" {
			return lifecyclev1alpha1.StepUnchanged, "", nil
		}
	}
	if step.Artifact != nil { // get the new content before the step begins
		if _, err := s.need(ctx, step.Artifact.Blob); err != nil {
			return "", "", s.allMissing(ctx, i, err)
		}
	}
	if r == nil {
		r = &record{}
	}
	if was := r.Step.Artifact; was != nil && step.Artifact != nil && r.Complete && was.Blob != step.Artifact.Blob {
		r.Previous = was.Blob
	}
	r.Step, r.Hash, r.Complete = known(step), hash, false
	if err := k.capture(ctx, s, r); err != nil {
		return "", "", err
	}
	if s.state.find(step.ID) == nil {
		s.state.Steps = append(s.state.Steps, r)
	}
	if err := s.write(); err != nil {
		return "", "", err
	}
	if err := s.fault("step/begun"); err != nil {
		return "", "", err
	}
	if err := k.apply(ctx, s, r); err != nil {
		s.dirty = true
		return "", "", err
	}
	r.Complete, s.dirty = true, true
	if err := s.fault("step/done"); err != nil {
		return "", "", err
	}
	if same && step.Probe != nil {
		return lifecyclev1alpha1.StepUnchanged, "", nil
	}
	return lifecyclev1alpha1.StepChanged, strings.Join(r.notes, "; "), nil
}

// allMissing completes a missingError, so that the engine can send all missing content at once. If
// err is a missingError, the result lists all digests that the host lacks for the steps from i on.
// Steps that are complete with the same hash need no content. Other errors, and nil, are returned
// as they are.
func (s *session) allMissing(ctx context.Context, i int, err error) error {
	var missing *missingError
	if !errors.As(err, &missing) {
		return err
	}
	all := &missingError{err: missing.err}
	for _, step := range s.request.Steps[i:] {
		if step.Artifact == nil || slices.Contains(all.digests, step.Artifact.Blob) {
			continue
		}
		if r := s.state.find(step.ID); r != nil && r.Complete && r.Hash == step.Hash() {
			continue
		}
		var one *missingError
		if _, err := s.need(ctx, step.Artifact.Blob); errors.As(err, &one) {
			all.digests = append(all.digests, step.Artifact.Blob)
		}
	}
	return all
}

// revert undoes an applied step and removes its record. It removes directories that the agent
// created as parents and that are empty now, and writes the state. It returns the state Reverted
// and the notes of the step, such as a file that could not be restored.
func (s *session) revert(ctx context.Context, r *record) (lifecyclev1alpha1.StepState, string, error) {
	k, err := kindOf(r.Step)
	if err != nil {
		return "", "", err
	}
	if err := k.revert(ctx, s, r); err != nil {
		return "", "", err
	}
	if err := s.fault("step/reverted"); err != nil {
		return "", "", err
	}
	s.state.forget(r.Step.ID)
	if err := s.removeMade(); err != nil {
		return "", "", err
	}
	if err := s.write(); err != nil {
		return "", "", err
	}
	return lifecyclev1alpha1.StepReverted, strings.Join(r.notes, "; "), s.fault("step/forgotten")
}

// write saves s.state to disk, even if s.dirty is false, and clears s.dirty.
func (s *session) write() error {
	s.dirty = false
	return s.save(s.state)
}

// flush saves s.state to disk if s.dirty is true.
func (s *session) flush() error {
	if !s.dirty {
		return nil
	}
	return s.write()
}

// end finishes a request after all its steps have succeeded. For RemoveAll it only removes the
// agent, see leave. Otherwise it saves the state and removes unused backups. For Release it then
// removes unused blobs and releases the lease. Without Release it returns a missingError if content
// of the request did not arrive.
func (s *session) end(ctx context.Context) error {
	if s.request.RemoveAll {
		return s.leave()
	}
	if s.request.Version != "" && s.state.Version != s.request.Version && len(s.request.Steps) > 0 {
		s.state.Version, s.dirty = s.request.Version, true
	}
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.dropBackups(); err != nil {
		return err
	}
	if s.request.Release {
		if err := s.dropUnused(s.state); err != nil {
			return err
		}
		return s.releaseLease(ctx, s.request.Lease)
	}
	return s.content.missing()
}

// leave removes the agent's program and the directory of its records with everything in it. It then
// removes parent directories that are empty: those of both, and those that the agent created.
func (s *session) leave() error {
	made := s.state.Made
	if err := os.RemoveAll(s.path(Dir)); err != nil {
		return err
	}
	if err := s.fault("leave/removed"); err != nil {
		return err
	}
	if err := errors.Join(disk.Remove(s.path(AgentPath)), disk.Remove(s.path(AgentPath+".incoming"))); err != nil {
		return err
	}
	bin := filepath.Dir(AgentPath)
	for _, dir := range union([]string{bin, filepath.Dir(bin), filepath.Dir(Dir)}, made) {
		if _, err := removeEmpty(s.path(dir)); err != nil {
			return err
		}
	}
	return s.fault("leave/removed")
}

// missing returns a missingError that lists the content of the request that did not arrive, or nil.
// It may be called only after a.all is closed.
func (a *arrivals) missing() error {
	all := &missingError{}
	var errs []error
	for digest, b := range a.blobs {
		if b.err != nil {
			all.digests, errs = append(all.digests, digest), append(errs, b.err)
		}
	}
	if errs == nil {
		return nil
	}
	slices.Sort(all.digests)
	all.err = errors.Join(errs...)
	return all
}

// Observe returns the record of the host: its cluster, agent and lease, and the applied steps, each
// with its drift. The drift describes how the host differs from the step; "" means that it does
// not. Observe changes nothing and takes no lease. The returned lease may have expired.
//
// A step that cannot be observed has the error as its drift. An incomplete step has no drift. The
// error means that the record or the lease cannot be read, or has a step of an unknown kind.
func (n *Node) Observe(ctx context.Context) (plan.Applied, error) {
	s := &session{Node: n}
	var err error
	if s.state, err = n.load(); err != nil {
		return plan.Applied{}, err
	}
	agent, _ := n.agentNow()
	applied := plan.Applied{Protocol: Protocol, Agent: agent.Digest, Cluster: s.state.Cluster, ClusterID: s.state.ClusterID, Version: s.state.Version}
	if applied.Lease, err = n.lease(); err != nil {
		return plan.Applied{}, err
	}
	for _, r := range s.state.Steps {
		one := plan.AppliedStep{ID: r.Step.ID, Hash: r.Hash, Complete: r.Complete}
		if r.Complete {
			k, err := kindOf(r.Step)
			if err != nil {
				return plan.Applied{}, err
			}
			if one.Drift, err = k.observe(ctx, s, r); err != nil {
				one.Drift = "cannot be observed: " + err.Error()
			}
		}
		applied.Steps = append(applied.Steps, one)
	}
	return applied, nil
}

// paths returns the paths with Root before each.
func (n *Node) paths(paths []string) []string {
	at := make([]string, 0, len(paths))
	for _, path := range paths {
		at = append(at, n.path(path))
	}
	return at
}
