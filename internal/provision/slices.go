package provision

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

const (
	// sliceSteps is the maximum number of steps in an OperationSlice, which is an object that stores a
	// part of an Operation's steps. The API server accepts such an object even with the longest
	// messages.
	sliceSteps = 100
	// summarySteps is the maximum number of steps in the status of an Operation.
	summarySteps = 100
	// sliceRate is the maximum number of slices per second that a server writes for all Operations
	// together.
	sliceRate = 20
	// sliceEvery is the minimum time between two writes of the same slice during a run.
	sliceEvery = 5 * time.Second
	// pausePatience is how long a paused or interrupted run continues to write slices.
	pausePatience = 5 * time.Second
	// slicePage is the maximum number of slices in one page of a list.
	slicePage = 200

	// labelOperation is the label of an OperationSlice with the name of its Operation, if that is a
	// valid value.
	labelOperation = "lifecycle.orrery.dev/operation"
	// labelOperationUID is the label of an OperationSlice with the UID of its Operation.
	labelOperationUID = "lifecycle.orrery.dev/operation-uid"
)

// errSuperseded means that another server has taken over the run of an Operation. This server then
// stores nothing more about it.
var errSuperseded = errors.New("another server has taken it over")

// part identifies one slice of an Operation: the host whose steps it has, and its number among the
// slices of that host, from 0.
type part struct {
	host   string
	number int
}

// keptPart is what this process knows about a stored slice.
type keptPart struct {
	version string    // its resourceVersion; "" if the API server has always refused the slice
	digest  uint64    // of its steps; 0 if they must be written again
	written time.Time // when this process last wrote it; zero: never
}

// trail is what this process knows about the stored slices of an Operation that it runs.
// Store.Steps makes it, and only Store.Record changes it. Calls of Record for one Operation never
// overlap.
type trail struct {
	parts map[part]keptPart
	// before has the steps that an earlier version of Orrery stored in the status of the Operation.
	// They stay in the status until all of them are in slices. Then before is nil.
	before []lifecyclev1alpha1.StepRecord
	// over is not nil after another server has taken over the run: it wraps errSuperseded, and nothing
	// more is written.
	over error
}

// seed is the random seed of digest. Digests can therefore be compared only within this process.
var seed = maphash.MakeSeed()

// digest returns a hash of those steps whose indexes are in which. keepSteps compares it to find
// slices that have changed. Other processes compute other hashes.
func digest(steps []lifecyclev1alpha1.StepRecord, which []int) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, i := range which {
		maphash.WriteComparable(&h, steps[i])
	}
	return h.Sum64()
}

// Steps implements lifecycle.Store. It returns all recorded steps of op, from slices and from the
// status, and does not change op. From this call until the run has ended, Record stores the steps
// of op in slices.
func (s *Store) Steps(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.StepRecord, error) {
	found, err := s.slices(ctx, op)
	if err != nil {
		return nil, err
	}
	t := &trail{parts: make(map[part]keptPart, len(found))}
	steps := merge(op, found)
	if len(found) == 0 {
		t.before = op.Status.Steps
	}
	is := divide(steps)
	for _, o := range found {
		p := part{o.Host, int(o.Part)}
		t.parts[p] = keptPart{version: o.ResourceVersion}
		// Set no digest for a slice that differs from steps, so that it is written again.
		if which, ok := is[p]; ok && slices.EqualFunc(which, o.Steps, func(i int, r lifecyclev1alpha1.StepRecord) bool { return steps[i] == r }) {
			t.parts[p] = keptPart{version: o.ResourceVersion, digest: digest(steps, which)}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trails == nil {
		s.trails = map[types.UID]*trail{}
	}
	s.trails[op.UID] = t
	return steps, nil
}

// slices reads the stored slices of an Operation, without a cache. They are ordered by host and
// number.
func (s *Store) slices(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.OperationSlice, error) {
	var found []lifecyclev1alpha1.OperationSlice
	for next, more := "", true; more; more = next != "" {
		page := &lifecyclev1alpha1.OperationSliceList{}
		err := s.Client.List(ctx, page, client.MatchingLabels{labelOperationUID: string(op.UID)}, client.Limit(slicePage), client.Continue(next))
		if err != nil {
			return nil, fmt.Errorf("list the slices of operation %s: %w", op.Name, err)
		}
		found, next = append(found, page.Items...), page.Continue
	}
	slices.SortFunc(found, func(a, b lifecyclev1alpha1.OperationSlice) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Part, b.Part))
	})
	return found, nil
}

// merge returns all recorded steps of op, each once: those in the slices found, and then those that
// only the status has. If both have a step, it returns the record that was changed later. The
// status may be newer after a server was killed.
func merge(op *lifecyclev1alpha1.Operation, found []lifecyclev1alpha1.OperationSlice) []lifecyclev1alpha1.StepRecord {
	var steps []lifecyclev1alpha1.StepRecord
	at := map[[2]string]int{}
	add := func(r lifecyclev1alpha1.StepRecord) {
		key := [2]string{r.Host, r.ID}
		i, ok := at[key]
		switch {
		case !ok:
			at[key] = len(steps)
			steps = append(steps, r)
		case changed(steps[i]).Before(changed(r)):
			steps[i] = r
		}
	}
	for _, o := range found {
		for _, r := range o.Steps {
			add(r)
		}
	}
	for _, r := range op.Status.Steps {
		add(r)
	}
	return steps
}

// changed returns when a step was last changed: when it ended, or when it began again after that.
func changed(r lifecyclev1alpha1.StepRecord) time.Time {
	if r.Finished.Before(&r.Started) {
		return r.Started.Time
	}
	return r.Finished.Time
}

// divide assigns steps to slices: for each slice it returns the indexes of its steps, ascending. A
// host's steps fill its slices in their order, with sliceSteps in each.
func divide(steps []lifecyclev1alpha1.StepRecord) map[part][]int {
	counts, parts := map[string]int{}, map[part][]int{}
	for i := range steps {
		host := steps[i].Host
		p := part{host, counts[host] / sliceSteps}
		counts[host]++
		parts[p] = append(parts[p], i)
	}
	return parts
}

// summary returns those steps that are stored in the status of an Operation: at most summarySteps,
// in their order. If there are more, it prefers failed steps, then running and pending ones, then
// the latest in the list.
func summary(steps []lifecyclev1alpha1.StepRecord) []lifecyclev1alpha1.StepRecord {
	if len(steps) <= summarySteps {
		return steps
	}
	rank := func(r lifecyclev1alpha1.StepRecord) int {
		switch r.State {
		case lifecyclev1alpha1.StepFailed:
			return 0
		case lifecyclev1alpha1.StepRunning, lifecyclev1alpha1.StepPending:
			return 1
		case lifecyclev1alpha1.StepUnchanged, lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepReverted:
		}
		return 2
	}
	var kept []int
	for want := range 3 {
		for i := len(steps) - 1; i >= 0 && len(kept) < summarySteps; i-- {
			if rank(steps[i]) == want {
				kept = append(kept, i)
			}
		}
	}
	slices.Sort(kept)
	said := make([]lifecyclev1alpha1.StepRecord, 0, len(kept))
	for _, i := range kept {
		said = append(said, steps[i])
	}
	return said
}

// trail returns the trail of an Operation: what this process knows about its slices. It is nil if
// Steps was not called for the Operation, or its run has ended.
func (s *Store) trail(op *lifecyclev1alpha1.Operation) *trail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trails[op.UID]
}

// leave deletes the trail of an Operation, because its run in this process has ended.
func (s *Store) leave(op *lifecyclev1alpha1.Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.trails, op.UID)
}

// keepSteps writes the slices whose steps have changed, for Record. It begins with those that were
// written longest ago. left is the number of changed slices that are not written.
//
// During a run it writes as many as sliceEvery and sliceRate allow, and does not wait. At the end
// of a run it waits for the rate limit and writes all of them. For a paused run it stops after
// pausePatience.
//
// A slice that the API server refuses as invalid or too large is logged and counts as written. If
// another server has taken over the run, the error wraps errSuperseded, and later calls with t
// return it again.
func (s *Store) keepSteps(ctx context.Context, op *lifecyclev1alpha1.Operation, t *trail) (left int, err error) {
	if t.over != nil {
		return 0, t.over
	}
	steps := op.Status.Steps
	want, digests := divide(steps), map[part]uint64{}
	for p, which := range want {
		d := digest(steps, which)
		if kept, ok := t.parts[p]; !ok || kept.digest != d {
			digests[p] = d
		}
	}
	if len(digests) == 0 {
		return 0, nil
	}
	stale := slices.SortedFunc(maps.Keys(digests), func(a, b part) int {
		return cmp.Or(t.parts[a].written.Compare(t.parts[b].written), strings.Compare(a.host, b.host), cmp.Compare(a.number, b.number))
	})
	running, paused := op.Status.Phase == lifecyclev1alpha1.PhaseRunning, op.Status.Phase == lifecyclev1alpha1.PhasePaused
	deadline := s.now().Add(pausePatience)
	for n, p := range stale {
		if n%sliceRate == 0 {
			if err := s.fence(ctx, op); err != nil {
				return len(stale) - n, t.end(err)
			}
		}
		switch {
		case running && (s.now().Sub(t.parts[p].written) < sliceEvery || !s.throttle().TryAccept()),
			paused && s.now().After(deadline):
			return len(stale) - n, nil // the slices that follow were written later
		case !running:
			if err := s.throttle().Wait(ctx); err != nil {
				return len(stale) - n, err
			}
		}
		records := make([]lifecyclev1alpha1.StepRecord, 0, len(want[p]))
		for _, i := range want[p] {
			records = append(records, steps[i])
		}
		version, err := s.writeSlice(ctx, op, p, records, t.parts[p].version)
		if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
			// The API server would refuse the slice forever, and the run must not wait for that.
			ctrl.LoggerFrom(ctx).Error(err, "record steps", "operation", op.Name, "host", p.host)
			version, err = t.parts[p].version, nil
		}
		if err != nil {
			return len(stale) - n, t.end(err)
		}
		t.parts[p] = keptPart{version: version, digest: digests[p], written: s.now()}
	}
	return 0, nil
}

// end returns err. If err wraps errSuperseded, end first stores it in t.over, so that nothing more
// is written.
func (t *trail) end(err error) error {
	if errors.Is(err, errSuperseded) {
		t.over = err
	}
	return err
}

// fence reads the stored Operation, and returns an error that wraps errSuperseded if another server
// has taken over the run of op.
func (s *Store) fence(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	now := &lifecyclev1alpha1.Operation{}
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(op), now); err != nil {
		return err
	}
	return superseded(op, now.UID, now.Status.Attempt, now.Status.Epoch)
}

// superseded returns an error that wraps errSuperseded if a stored object belongs to a later run
// than op, or to another Operation of that name. uid is that of the stored Operation; attempt and
// epoch are those of the stored object. Otherwise it returns nil.
func superseded(op *lifecyclev1alpha1.Operation, uid types.UID, attempt int32, epoch int64) error {
	switch {
	case uid != op.UID:
		return fmt.Errorf("%w: it was deleted, and another of its name was made", errSuperseded)
	case attempt > op.Status.Attempt || epoch > op.Status.Epoch:
		return fmt.Errorf("%w (attempt %d, epoch %d)", errSuperseded, attempt, epoch)
	}
	return nil
}

// writeSlice creates or replaces the slice p of an Operation, and returns its new resourceVersion.
// version is the resourceVersion that this process knows; "" means that the slice does not exist
// yet.
//
// If the stored slice has another version, it is replaced, provided that an earlier or this run
// wrote it. If a later run wrote it, it stays, and the error wraps errSuperseded.
func (s *Store) writeSlice(ctx context.Context, op *lifecyclev1alpha1.Operation, p part, steps []lifecyclev1alpha1.StepRecord, version string) (string, error) {
	const tries = 5
	var err error
	for range tries {
		o := newSlice(op, p, steps)
		o.ResourceVersion = version
		if version == "" {
			err = s.Client.Create(ctx, o)
		} else {
			err = s.Client.Update(ctx, o)
		}
		switch {
		case err == nil:
			return o.ResourceVersion, nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return "", fmt.Errorf("write operationslice %s: %w", o.Name, err)
		}
		is := &lifecyclev1alpha1.OperationSlice{}
		switch e := s.Client.Get(ctx, client.ObjectKeyFromObject(o), is); {
		case apierrors.IsNotFound(e): // somebody has deleted the slice: create it
		case e != nil:
			return "", fmt.Errorf("read operationslice %s: %w", o.Name, e)
		default:
			if e := superseded(op, op.UID, is.Attempt, is.Epoch); e != nil {
				return "", fmt.Errorf("operationslice %s: %w", o.Name, e)
			}
		}
		version = is.ResourceVersion
	}
	return "", fmt.Errorf("write operationslice %s: %w", sliceName(op, p), err)
}

// newSlice returns the OperationSlice p with these steps. The Operation owns it, so that both are
// deleted together.
func newSlice(op *lifecyclev1alpha1.Operation, p part, steps []lifecyclev1alpha1.StepRecord) *lifecyclev1alpha1.OperationSlice {
	labels := map[string]string{
		"app.kubernetes.io/part-of": "orrery", labelCluster: op.Spec.Cluster, labelHost: p.host, labelOperationUID: string(op.UID),
	}
	if len(validation.IsValidLabelValue(op.Name)) == 0 {
		labels[labelOperation] = op.Name
	}
	return &lifecyclev1alpha1.OperationSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: sliceName(op, p), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: lifecyclev1alpha1.GroupVersion.String(), Kind: "Operation", Name: op.Name, UID: op.UID,
			}},
		},
		Operation: op.Name, Host: p.host, Part: int32(p.number), //nolint:gosec // tens
		Attempt: op.Status.Attempt, Epoch: op.Status.Epoch, Steps: steps,
	}
}

// sliceName returns the name of the slice p: OPERATION.HOST-HASH, cut to the maximum length. The
// hash distinguishes the slices of a host. It also distinguishes Operations that had the same name
// one after the other, and names in which a dot may belong to either part.
func sliceName(op *lifecyclev1alpha1.Operation, p part) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", op.UID, p.host, p.number))
	hash := hex.EncodeToString(sum[:5])
	readable := op.Name + "." + p.host
	if most := validation.DNS1123SubdomainMaxLength - len(hash) - 1; len(readable) > most {
		readable = readable[:most]
	}
	return strings.TrimRight(readable, "-.") + "-" + hash
}
