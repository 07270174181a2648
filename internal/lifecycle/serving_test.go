package lifecycle

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/content"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// servingHost is a host whose file server writes says, and runs until lost is closed, stdin ends or
// ctx ends.
type servingHost struct {
	host.Conn

	says string
	lost chan struct{}
	runs int
}

// Run implements host.Conn.
func (h *servingHost) Run(ctx context.Context, _ []string, stdin io.Reader, stdout io.Writer) error {
	h.runs++
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(closed)
	}()
	if _, err := io.WriteString(stdout, h.says); err != nil {
		return err
	}
	select {
	case <-h.lost:
		return errors.New("the connection was lost")
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements host.Conn.
func (*servingHost) Close() error { return nil }

// newCarrier returns a carrier without hosts, and a connection to the host h.
func newCarrier(h *servingHost) (*carrier, *connection) {
	const digest = "sha256:agent"
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Attempts: 1}}
	r := &run{
		Engine: &Engine{}, op: op, rec: newRecorder(&Engine{}, op), state: &State{}, spec: &clusterv1alpha1.Provision{}, plan: &plan.Plan{},
		agents: agents{read: map[string]agent{"amd64": {digest: digest}}},
	}
	conn := &connection{name: "h-1", conn: h, arch: "amd64", agent: digest}
	r.conns = map[string]*connection{"h-1": conn}
	return &carrier{run: r, token: "token", Spread: content.NewSpread(nil, nil, nil)}, conn
}

// TestFileServerEnds: when the session of a file server has ended, its address is used no more, and
// the next delivery starts the server again. No goroutine of a session outlives it: synctest checks
// that all have ended.
func TestFileServerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &servingHost{says: `{"port":8080}` + "\n", lost: make(chan struct{})}
		c, conn := newCarrier(h)
		c.Gained("h-1", "sha256:a")
		c.serves(t.Context(), conn)
		if got := c.addresses("sha256:a", "h-1"); len(got) != 1 {
			t.Fatalf("addresses %q, want one", got)
		}
		close(h.lost)
		synctest.Wait()
		if got := c.addresses("sha256:a", "h-1"); len(got) != 0 {
			t.Errorf("addresses %q after the session has ended", got)
		}
		h.lost = make(chan struct{})
		c.serves(t.Context(), conn)
		if got := c.addresses("sha256:a", "h-1"); len(got) != 1 || h.runs != 2 {
			t.Errorf("addresses %q after %d starts, want one after two", got, h.runs)
		}
		conn.close()
	})
}

// TestFileServerThatTalksNonsense: a file server that does not say where it listens is stopped, and
// the host is no source any more.
func TestFileServerThatTalksNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &servingHost{says: "hello\nand more, which nobody reads", lost: make(chan struct{})}
		c, conn := newCarrier(h)
		c.serves(t.Context(), conn)
		if !c.isMute("h-1") || conn.serving.Load() != nil {
			t.Error("the host is a source")
		}
	})
}
