package agent

import (
	"context"
	"net/http"
	"time"

	"orrery.dev/orrery/internal/tunnel"
)

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/" + tunnel.Namespace + "/leases/" + Name

// claim is the spec of a Lease.
type claim struct {
	Holder      *string    `json:"holderIdentity"`
	Seconds     *int       `json:"leaseDurationSeconds"`
	Acquired    *microTime `json:"acquireTime"`
	Renewed     *microTime `json:"renewTime"`
	Transitions *int       `json:"leaseTransitions"`
}

// microTime is a time as Leases have it.
type microTime struct{ time.Time }

const microLayout = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(microLayout) + `"`), nil
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// seen is what an agent has seen of a Lease, and since when by its own clock: clocks of other machines are not trusted.
type seen struct {
	holder  string
	renewed time.Time
	since   time.Time
}

// judge decides what a Lease means: what has been seen of it now, and what it is to become; nil: it stays, and whoever has it leads.
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
		return current, nil // an agent that was started anew finds its own, and renews it at once
	case current.holder == me:
	case current.holder == "" || now.Sub(current.since) > max(duration, time.Duration(value(is.Seconds))*time.Second):
		next.Acquired, next.Transitions = next.Renewed, new(value(is.Transitions)+1)
	default:
		return current, nil
	}
	return current, next
}

// election is who of the agents of a cluster speaks for it: the one that has the Lease.
type election struct {
	me       string
	duration time.Duration
	last     seen
	until    time.Time // we lead; zero: we do not
}

// leads says whether this agent leads now.
func (e *election) leads(now time.Time) bool { return now.Before(e.until) }

// hold renews the Lease if it is ours, and takes it if it is nobody's any more.
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
	if answered(err, http.StatusConflict) { // somebody was faster, or wrote something else: it is looked at again
		return nil
	}
	if err != nil {
		return err
	}
	// Others take it after the whole duration.
	e.until = now.Add(e.duration * 2 / 3)
	return nil
}

// release lets the next one begin at once.
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
