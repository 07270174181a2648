package mirror

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// keptData records for which Secrets of a cluster the store was last requested to keep the data.
// The zero value means that no request was made yet.
type keptData struct {
	known bool               // a request was made
	is    string             // the filter of the request, as dataOf
	end   context.CancelFunc // ends the goroutine that makes the request
}

// secretData returns which Secrets of the cluster are mirrored with their data, by the present
// settings; nil: none.
func (c *cluster) secretData() *filter {
	return secretData(statements(c.source.Cluster(), *c.mirror.policies.Load()))
}

// keepData makes the store delete the data of all Secrets of the cluster that the filter data does
// not select; nil: of all. It works even while the cluster does not answer, in the background, as
// part of running, and retries while the store fails. It does nothing if the last call had an equal
// filter. Only run calls it. Before the call, a table of Secrets with another filter must be
// stopped, and its pending changes dropped.
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

// tryKeepData makes the store delete the data of all Secrets of the cluster that the filter data
// does not select; nil: of all. If the store cannot decrypt data that it should keep, the Secrets
// are read from the cluster again. It takes the cluster's lock.
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

// WithoutData reports whether the store may lack the data of some Secrets of a cluster: the
// settings do not select all data, or it is not certain that all is stored. It is true for a
// cluster that is not mirrored.
func (m *Mirror) WithoutData(cluster string) bool {
	t, unlock := m.table(cluster, secrets)
	defer unlock()
	return t == nil || t.data == nil || t.data.narrow() || !t.complete()
}
