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

// session is one run of the agent. It performs one request.
type session struct {
	*Node
	request Request
	events  *json.Encoder
	state   *state
	content *arrivals
	// units has the first observed status of units, without those that were changed since.
	units map[string]unit.Status
	// dirty is true if the state has a completed step that is not on disk. It is written together with
	// the beginning of the next step. An agent that is killed before repeats the step.
	dirty bool
}

// Apply reads a Request and the content of its streams, performs the request, and writes Events.
// Failures are reported as events. The error is about an unreadable request, or events that cannot
// be written.
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

// parseRequest reads a request. From a request with another protocol it reads only the protocol. An
// unknown field is an error, since the agent would not do what it asks for.
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

// eventError means that an event could not be written, because nobody reads it.
type eventError struct{ err error }

func (e *eventError) Error() string { return "write event: " + e.err.Error() }
func (e *eventError) Unwrap() error { return e.err }

func (s *session) emit(e Event) error {
	e.Time = s.Now()
	if err := s.events.Encode(e); err != nil {
		return &eventError{err}
	}
	return nil
}

// failure returns the event for an error.
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

// run performs the request. It returns errors about the request as a whole. Failed steps are
// events.
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
	// Content is useful even after a failure, because the request will be repeated.
	if err := s.await(ctx, s.content.all); err != nil || !ok {
		return err
	}
	return s.end(ctx)
}

// makeDir creates the directory of the agent, and returns the parents that it created.
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

// nothingToDo reports whether the agent has no directory on the host, and the request brings
// nothing there: it takes or releases a lease, and perhaps removes steps.
func (s *session) nothingToDo() bool {
	_, err := os.Lstat(s.dir())
	r := s.request
	return errors.Is(err, fs.ErrNotExist) && !r.RemoveAll && len(r.Steps)+len(r.Streams)+len(r.Fetches) == 0
}

// leaseOnly reports whether the request only takes or extends a lease.
func (s *session) leaseOnly() bool {
	r := s.request
	return !r.RemoveAll && !r.Release && len(r.Steps)+len(r.Remove)+len(r.Streams)+len(r.Fetches) == 0
}

// extend takes or extends the lease. It does not wait for another agent of the same run that works
// on the host, and changes nothing else.
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

// checkCluster refuses a request for another cluster.
func (s *session) checkCluster() error {
	if s.state.ClusterID == "" || s.state.ClusterID == s.request.ClusterID {
		return nil
	}
	return fmt.Errorf("host belongs to cluster %s (authority %s); delete that cluster, or this host of it, first",
		s.state.Cluster, s.state.ClusterID)
}

// begin loads the state and refuses a request for another cluster. made lists created directories.
func (s *session) begin(made []string) (err error) {
	if err := s.holds(s.request.Lease); err != nil { // taken by another run during the wait?
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

// steps undoes and does steps until one fails. A failed step is reported as an event.
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

// step calls do between the two events of a step.
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

// do performs step i of the request.
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
	if step.Artifact != nil { // before the step begins: the present file is useful until then
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

// allMissing lists all missing content for the steps from i, if err is about missing content.
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

// revert undoes an applied step and removes its record.
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

func (s *session) write() error {
	s.dirty = false
	return s.save(s.state)
}

func (s *session) flush() error {
	if !s.dirty {
		return nil
	}
	return s.write()
}

// end finishes a request all of whose steps succeeded.
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

// leave removes the files of the agent, and the agent itself. Other files in its directories stay.
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

// missing returns an error that lists the content that did not arrive, or nil.
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

// Observe returns what was applied, and how the host differs from it. It changes nothing.
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

// paths adds the root to paths of the host.
func (n *Node) paths(paths []string) []string {
	at := make([]string, 0, len(paths))
	for _, path := range paths {
		at = append(at, n.path(path))
	}
	return at
}
