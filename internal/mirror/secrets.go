package mirror

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// keptData is of which Secrets of a cluster the store keeps the data; the zero value: that is not known yet.
type keptData struct {
	known bool
	is    string
	end   context.CancelFunc // of what makes it so
}

// secretData says of which Secrets of the cluster the data is to be mirrored now; nil: of none.
func (c *cluster) secretData() *filter {
	return secretData(statements(c.source.Cluster(), *c.mirror.policies.Load()))
}

// keepData has the store drop the data of Secrets that is not to be mirrored any more, also while the cluster cannot be asked. A follower that had
// other data is stopped, and nothing of it waits to be stored. A store that fails is asked again.
func (c *cluster) keepData(ctx context.Context, running *sync.WaitGroup, data *filter) {
	if is := dataOf(data); !c.kept.known || c.kept.is != is {
		if c.kept.end != nil {
			c.kept.end()
		}
		c.kept.known, c.kept.is = true, is
	} else {
		return
	}
	ctx, c.kept.end = context.WithCancel(ctx)
	running.Go(func() {
		for delay := recallDelay; ; delay = min(2*delay, recallLongest) {
			err := c.tryKeepData(ctx, data)
			if err == nil {
				return
			}
			logr.FromContextOrDiscard(ctx).Info("the store cannot look after the data of Secrets; it is asked again", "error", err.Error())
			select {
			case <-time.After(delay + rand.N(delay)/2): //nolint:gosec // spreads load, guards nothing
			case <-ctx.Done():
				return
			}
		}
	})
}

// tryKeepData has the store keep the data of these Secrets and of no others. What it could not open is read from the cluster again.
func (c *cluster) tryKeepData(ctx context.Context, data *filter) error {
	lost, err := c.mirror.store.KeepData(ctx, c.name, func(namespace string, labels map[string]string) bool {
		switch {
		case data == nil:
			return false
		case labels == nil:
			return data.hasAny(namespace)
		default:
			return data.has(namespace, labels)
		}
	})
	if err != nil || lost == 0 {
		return err
	}
	c.mu.Lock()
	t := c.tables[secrets]
	if t != nil {
		t.forgetStored()
	}
	c.mu.Unlock()
	if t != nil {
		t.again()
	}
	return nil
}

// WithoutData is true when of some Secrets of a cluster the data is not mirrored, or is not known to be stored.
func (m *Mirror) WithoutData(cluster string) bool {
	t, unlock := m.table(cluster, secrets)
	defer unlock()
	return t == nil || t.data == nil || t.data.narrow() || !t.complete()
}
