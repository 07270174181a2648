// Package queue works off keys: each one at a time, several at once, and again when the work
// says so. It is the one worker loop of the rooms that are not controllers of one kind. It also
// has the queue for a controller that works on what is most urgent first.
package queue

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Next says when to work on a key again, unless it is added before.
type Next struct {
	// After is the time until then; 0: not before it is added.
	After time.Duration
	// Backoff works on it again after a time that grows with each backoff in a row.
	Backoff bool
}

// Work does what there is to do for a key. It logs its own failures.
type Work[K comparable] func(ctx context.Context, key K) Next

// Queue holds keys until they are worked on.
type Queue[K comparable] struct {
	keys    workqueue.TypedDelayingInterface[K]
	limiter workqueue.TypedRateLimiter[K]
	workers int
	work    Work[K]
}

// New returns a queue that works on as many keys at once as there are workers. Backoff starts
// at first and ends at last.
func New[K comparable](workers int, first, last time.Duration, work Work[K]) *Queue[K] {
	return &Queue[K]{
		keys:    workqueue.NewTypedDelayingQueue[K](),
		limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, last),
		workers: workers, work: work,
	}
}

// Add has a key worked on. One that is waiting already is worked on once; one that is being
// worked on is worked on again.
func (q *Queue[K]) Add(key K) { q.keys.Add(key) }

// AddAfter has a key worked on after a time.
func (q *Queue[K]) AddAfter(key K, after time.Duration) { q.keys.AddAfter(key, after) }

// Retries is how many backoffs in a row a key has had.
func (q *Queue[K]) Retries(key K) int { return q.limiter.NumRequeues(key) }

// Close ends the queue. What is being worked on is finished; nothing else is.
func (q *Queue[K]) Close() { q.keys.ShutDown() }

// Run works until ctx ends or the queue is closed, and returns when nothing is being worked on.
func (q *Queue[K]) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, q.keys.ShutDown)()
	// A goroutine for each key that is being worked on, rather than idle workers: there may be
	// thousands of queues, and few are busy.
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
