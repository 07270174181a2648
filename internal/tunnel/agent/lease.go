package agent

import (
	"context"
	"net/http"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

// leasePath is the path of the Lease with which the agents of a cluster elect a leader.
const leasePath = "/apis/coordination.k8s.io/v1/namespaces/" + tunnel.Namespace + "/leases/" + Name

// claim is the spec of the agents' Lease, or the part of the spec that the agent writes. Absent
// fields are nil.
type claim struct {
	Holder      *string    `json:"holderIdentity"`
	Seconds     *int       `json:"leaseDurationSeconds"`
	Acquired    *microTime `json:"acquireTime"`
	Renewed     *microTime `json:"renewTime"`
	Transitions *int       `json:"leaseTransitions"`
}

// microTime is a time in the format of Leases.
type microTime struct{ time.Time }

// microLayout is the layout of such times, for time.Format.
const microLayout = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(microLayout) + `"`), nil
}

// value returns what p points to, or the zero value for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// seen is the last observed state of the agents' Lease. since is when the agent first observed that
// state, by the clock of its own machine. The agent does not trust the clocks of other machines.
type seen struct {
	holder  string
	renewed time.Time
	since   time.Time
}

// judge decides whether the agent with the name me takes or renews the Lease. The claim is the spec
// of the Lease now, and last what judge returned before. judge returns the new observation, and the
// spec that the agent must write. That spec is nil if the Lease stays as it is: another agent holds
// it, or me has just renewed it. judge sends no request.
func judge(now time.Time, last seen, is claim, me string, duration time.Duration) (seen, *claim) {
	current := seen{holder: value(is.Holder), renewed: value(is.Renewed).Time, since: now}
	if current.holder == last.holder && current.renewed.Equal(last.renewed) {
		current.since = last.since
	}
	next := &claim{
		Holder: new(me), Seconds: new(int((duration + time.Second - 1) / time.Second)),
		Acquired: is.Acquired, Renewed: new(microTime{now}), Transitions: new(value(is.Transitions)),
	}
	switch {
	case current.holder == me && last.holder == me && now.Sub(current.renewed).Abs() < duration/3:
		return current, nil // a restarted agent finds its own Lease, and renews it at once (next case)
	case current.holder == me:
	case current.holder == "" || now.Sub(current.since) > max(duration, time.Duration(value(is.Seconds))*time.Second):
		next.Acquired, next.Transitions = next.Renewed, new(value(is.Transitions)+1)
	default:
		return current, nil
	}
	return current, next
}

// election is the state of the election of a leader among the agents of a cluster: the holder of
// the Lease leads. Only one goroutine may use it.
type election struct {
	me       string
	duration time.Duration
	last     seen
	until    time.Time // this agent leads until then; zero: it does not lead
}

// leads reports whether this agent leads at now. It leads for a limited time after a call of hold
// that has taken or renewed the Lease.
func (e *election) leads(now time.Time) bool { return now.Before(e.until) }

// hold renews the Lease if this agent has it, and takes it if it is free or expired. nil does not
// mean that this agent leads; leads reports that. After an error, this agent still leads until the
// time that an earlier hold set.
func (e *election) hold(ctx context.Context, c *cluster) error {
	var lease struct {
		Metadata metadata `json:"metadata"`
		Spec     claim    `json:"spec"`
	}
	now := time.Now()
	if err := c.do(ctx, http.MethodGet, leasePath, nil, &lease); err != nil {
		return err
	}
	was, next := judge(now, e.last, lease.Spec, e.me, e.duration)
	e.last = was
	if next == nil {
		if was.holder != e.me {
			e.until = time.Time{}
		}
		return nil
	}
	err := c.do(ctx, http.MethodPatch, leasePath, map[string]any{
		"metadata": map[string]any{"resourceVersion": lease.Metadata.ResourceVersion}, "spec": next,
	}, nil)
	if answered(err, http.StatusConflict) { // another agent wrote first: the next call reads again
		return nil
	}
	if err != nil {
		return err
	}
	// The agent leads for two thirds of the duration. Other agents take the Lease after the whole
	// duration.
	e.until = now.Add(e.duration * 2 / 3)
	return nil
}

// release clears the holder of the Lease, so that another agent leads at once. It does nothing if
// this agent does not lead. The agent calls it before it ends.
func (e *election) release(ctx context.Context, c *cluster) error {
	if !e.leads(time.Now()) {
		return nil
	}
	e.until = time.Time{}
	var lease struct {
		Metadata metadata `json:"metadata"`
		Spec     claim    `json:"spec"`
	}
	if err := c.do(ctx, http.MethodGet, leasePath, nil, &lease); err != nil || value(lease.Spec.Holder) != e.me {
		return err
	}
	return c.do(ctx, http.MethodPatch, leasePath, map[string]any{
		"metadata": map[string]any{"resourceVersion": lease.Metadata.ResourceVersion}, "spec": map[string]any{"holderIdentity": ""},
	}, nil)
}
