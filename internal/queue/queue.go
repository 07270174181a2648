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

// Next is what a Work returns: when the queue works on the key again, even if the key is not added
// again. The zero value means that it works on the key only after the key was added again.
type Next struct {
	// After is the delay; 0: only after the key was added again.
	After time.Duration
	// Backoff repeats the work after a delay that grows with each backoff in a row. It takes
	// precedence over After.
	Backoff bool
}

// Work does the work for a key, and returns when to repeat it. It logs its own failures. The queue
// calls it for several keys at once, but never twice at the same time for one key.
type Work[K comparable] func(ctx context.Context, key K) Next

// Queue holds keys until a Work is called for them. New creates it, and Run calls the Work. It is
// safe for concurrent use.
type Queue[K comparable] struct {
	keys    workqueue.TypedDelayingInterface[K]
	limiter workqueue.TypedRateLimiter[K]
	workers int
	work    Work[K]
}

// New returns a queue that calls work for at most workers keys at once, while Run runs. first is
// the delay of the first backoff (Next.Backoff) of a key. It doubles with each further backoff in a
// row, up to last.
func New[K comparable](workers int, first, last time.Duration, work Work[K]) *Queue[K] {
	return &Queue[K]{
		keys:    workqueue.NewTypedDelayingQueue[K](),
		limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, last),
		workers: workers, work: work,
	}
}

// Add queues a key. If the key is already queued, it is worked on only once. If work on it is in
// progress, it is worked on again afterwards.
func (q *Queue[K]) Add(key K) { q.keys.Add(key) }

// AddAfter queues a key after a delay, or at once if the delay is 0 or negative. If it is called
// several times for a key, the earliest time counts.
func (q *Queue[K]) AddAfter(key K, after time.Duration) { q.keys.AddAfter(key, after) }

// Retries returns how many times in a row the work for a key has returned Next.Backoff. Work that
// returns no backoff resets the number to 0.
func (q *Queue[K]) Retries(key K) int { return q.limiter.NumRequeues(key) }

// Close ends the queue, and does not wait. Keys that are added later are dropped, and so are keys
// with a delay. Run still works on the keys that are queued, unless its ctx has ended. Close may be
// called several times.
func (q *Queue[K]) Close() { q.keys.ShutDown() }

// Run calls the Work for queued keys until ctx ends or Close is called. It returns when no work is
// in progress. The end of ctx closes the queue, and drops the keys that are queued. Run must be
// called once.
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
