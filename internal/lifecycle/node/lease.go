package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// leaseFile is the name of the file with the lease, in the directory of the agent's records.
const leaseFile = "lease.json"

// leaseError means that a request gets no lease, or that its lease was taken or released. A lease
// that has only expired is not lost. held is the lease that the host has now. reason is the text of
// the error.
type leaseError struct {
	held   plan.Lease
	reason string
}

func (e *leaseError) Error() string { return e.reason }

// takeLease stores the lease that a request wants, or extends it, even if another agent is at work
// on the host. An agent that thereby loses the lease notices this before its next step. ended are
// the RunIDs of runs that have ended: their leases are free.
//
// takeLease returns a leaseError if another run holds an unexpired lease, or if a later run has
// changed the host. At most one holder of an epoch changes the host. Two runs that inspected the
// host at the same time choose the same epoch. The second one is refused even after the first one
// has released its lease or let it expire. Its plan is older than the changes of the first one.
func (n *Node) takeLease(ctx context.Context, want plan.Lease, ended []string) error {
	unlock, err := lock(ctx, n.dir("lease.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	held, err := n.lease()
	if err != nil {
		return err
	}
	free := held.Operation == "" || sameRun(want, held) || !n.Now().Before(held.Expires) || slices.Contains(ended, held.RunID)
	switch {
	case want.Operation == "":
		return errors.New("request has a lease without an operation")
	case !free:
		return &leaseError{held, fmt.Sprintf("operation %s, run by %s, changes this host until %s; wait, or resume or cancel it",
			held.Operation, held.Holder, held.Expires.Format("15:04:05"))}
	case want.Epoch < held.Epoch:
		return &leaseError{held, fmt.Sprintf("epoch %d is over: a later run, %d, has changed this host; plan again", want.Epoch, held.Epoch)}
	case want.Epoch == held.Epoch && held.Epoch > 0 && !sameHolder(want, held):
		return &leaseError{held, fmt.Sprintf("epoch %d is over: another run or process of the same epoch has changed this host; plan again", want.Epoch)}
	}
	return n.writeChecked(n.dir(leaseFile), want)
}

// releaseLease releases the lease. The host keeps its epoch, run and holder, so that a run with an
// older plan is still refused. It returns a leaseError if the stored lease is no longer held.
func (n *Node) releaseLease(ctx context.Context, held plan.Lease) error {
	unlock, err := lock(ctx, n.dir("lease.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.holds(held); err != nil {
		return err
	}
	return n.writeChecked(n.dir(leaseFile), plan.Lease{Epoch: held.Epoch, RunID: held.RunID, Holder: held.Holder})
}

// holds returns nil if the stored lease is ours, even if it has expired. It returns a
// leaseError if another run has taken the lease, or if the lease was released.
func (n *Node) holds(ours plan.Lease) error {
	held, err := n.lease()
	if err != nil {
		return err
	}
	if !sameRun(held, ours) || held.Epoch != ours.Epoch {
		return &leaseError{held, fmt.Sprintf("operation %s, run by %s, took this host over", held.Operation, held.Holder)}
	}
	return nil
}

// sameRun reports whether two leases have the same Operation and RunID.
func sameRun(a, b plan.Lease) bool { return a.Operation == b.Operation && a.RunID == b.RunID }

// sameHolder reports whether the process that wants a lease also had the held lease, which may be
// released already.
func sameHolder(want, held plan.Lease) bool {
	return want.RunID == held.RunID && want.Holder == held.Holder && (held.Operation == "" || want.Operation == held.Operation)
}

// lease returns the stored lease, even if it has expired. It is empty if there is none or it is
// damaged.
func (n *Node) lease() (plan.Lease, error) {
	var held plan.Lease
	err := readChecked(n.dir(leaseFile), &held)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) { // damaged means missing
		return plan.Lease{}, nil
	}
	return held, err
}
