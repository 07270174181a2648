// Package queue runs work for keys: one call at a time for each key, several keys at once, with
// retries. It is the common worker loop of packages that are not controllers of one kind.
// NewOrdered returns a queue for a controller that works by priority.
package queue

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Next says when to work on a key again, if it is not added earlier.
type Next struct {
	// After is the delay; 0: not before the key is added.
	After time.Duration
	// Backoff repeats the work after a delay that grows with each backoff in a row. It takes
	// precedence over After.
	Backoff bool
}

// Work does the work for a key. It logs its own failures.
type Work[K comparable] func(ctx context.Context, key K) Next

// Queue holds keys until they are worked on. It is safe for concurrent use.
type Queue[K comparable] struct {
	keys    workqueue.TypedDelayingInterface[K]
	limiter workqueue.TypedRateLimiter[K]
	workers int
	work    Work[K]
}

// New returns a queue that works on at most workers keys at once. The delay of a backoff grows from
// first to last.
func New[K comparable](workers int, first, last time.Duration, work Work[K]) *Queue[K] {
	return &Queue[K]{
		keys:    workqueue.NewTypedDelayingQueue[K](),
		limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, last),
		workers: workers, work: work,
	}
}

// Add queues a key. A key that already waits is worked on once. A key that is being worked on is
// worked on again.
func (q *Queue[K]) Add(key K) { q.keys.Add(key) }

// AddAfter queues a key after a delay.
func (q *Queue[K]) AddAfter(key K, after time.Duration) { q.keys.AddAfter(key, after) }

// Retries returns the number of backoffs in a row of a key.
func (q *Queue[K]) Retries(key K) int { return q.limiter.NumRequeues(key) }

// Close ends the queue: keys that are added later, and delayed ones, are dropped. Run still works
// on the keys that wait already, unless its ctx has ended.
func (q *Queue[K]) Close() { q.keys.ShutDown() }

// Run works until ctx ends or the queue is closed, and returns when no work is in progress.
func (q *Queue[K]) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, q.keys.ShutDown)()
	// There is a goroutine for each key in progress, and no idle workers: there may be thousands of
	// queues, and few are busy.
	slots := make(chan struct{}, q.workers)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		slots <- struct{}{}
		key, closed := q.keys.Get()
		if closed || ctx.Err() != nil {
			return
		}
		running.Go(func() {
			defer func() { <-slots }()
			defer q.keys.Done(key)
			q.do(ctx, key)
		})
	}
}

func (q *Queue[K]) do(ctx context.Context, key K) {
	switch next := q.work(ctx, key); {
	case next.Backoff:
		q.keys.AddAfter(key, q.limiter.When(key))
	case next.After > 0:
		q.limiter.Forget(key)
		q.keys.AddAfter(key, next.After)
	default:
		q.limiter.Forget(key)
	}
}
