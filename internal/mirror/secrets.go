package mirror

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// keptData records for which Secrets of a cluster the store keeps the data. The zero value means
// unknown.
type keptData struct {
	known bool
	is    string
	end   context.CancelFunc // ends the goroutine that applies it
}

// secretData returns the filter of Secrets that are to be mirrored with data; nil: none.
func (c *cluster) secretData() *filter {
	return secretData(statements(c.source.Cluster(), *c.mirror.policies.Load()))
}

// keepData makes the store delete the data of Secrets that must no longer be mirrored, even while
// the cluster does not answer. It retries if the store fails. Before the call, a table with other
// data must be stopped, and its pending changes dropped.
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

// tryKeepData makes the store keep the data of the selected Secrets only. Data that the store
// cannot decrypt is read from the cluster again.
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

// WithoutData reports whether the mirror lacks the data of some Secrets of a cluster, or cannot
// confirm that it is stored.
func (m *Mirror) WithoutData(cluster string) bool {
	t, unlock := m.table(cluster, secrets)
	defer unlock()
	return t == nil || t.data == nil || t.data.narrow() || !t.complete()
}
