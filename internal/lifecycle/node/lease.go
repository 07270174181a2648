package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

const leaseFile = "lease.json"

// leaseError means that a lease is refused. held is the lease on the host.
type leaseError struct {
	held   plan.Lease
	reason string
}

func (e *leaseError) Error() string { return e.reason }

// takeLease takes or extends the lease, even if another agent is working on the host. An agent that
// lost the lease notices before its next step. Leases of the runs in ended are free.
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
	case want.Epoch < held.Epoch || want.Epoch == held.Epoch && !sameRun(want, held):
		// Also one with the same epoch, which began and ended after this run had read the host.
		return &leaseError{held, fmt.Sprintf("epoch %d is over: a later run, %d, has changed this host; plan again", want.Epoch, held.Epoch)}
	}
	return n.writeChecked(n.dir(leaseFile), want)
}

// releaseLease releases the lease and keeps its epoch.
func (n *Node) releaseLease(ctx context.Context, held plan.Lease) error {
	unlock, err := lock(ctx, n.dir("lease.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.holds(held); err != nil {
		return err
	}
	return n.writeChecked(n.dir(leaseFile), plan.Lease{Epoch: held.Epoch})
}

// holds returns a leaseError if another run has taken the lease.
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

// sameRun reports whether two leases belong to the same run.
func sameRun(a, b plan.Lease) bool { return a.Operation == b.Operation && a.RunID == b.RunID }

// lease returns the stored lease, even if it has expired. It is empty if there is none or it is
// damaged.
func (n *Node) lease() (plan.Lease, error) {
	var held plan.Lease
	err := readChecked(n.dir(leaseFile), &held)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) { // a damaged lease counts as none
		return plan.Lease{}, nil
	}
	return held, err
}
