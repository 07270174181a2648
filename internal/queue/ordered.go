package queue

import (
	"container/heap"

	"k8s.io/client-go/util/workqueue"
)

// NewOrdered returns a work queue for a controller that returns the key with the highest priority
// first, and keys of equal priority in order of arrival. priority is called when a key is added,
// and again each time it is added while it waits. taken is called with each dequeued key, in that
// order. Neither may block or use the queue, which is locked during the calls.
func NewOrdered[K comparable](
	name string, limiter workqueue.TypedRateLimiter[K], priority func(K) int32, taken func(K),
) workqueue.TypedRateLimitingInterface[K] {
	// controller-runtime also has a queue with priorities. Its shutdown can deadlock: see
	// reconciler.Options.
	keys := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{
		Name: name, Queue: &ordered[K]{priority: priority, taken: taken, waiting: map[K]*waiting[K]{}},
	})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[K]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Name: name, Queue: keys}),
	})
}

// ordered is the waiting part of a work queue, which locks it.
type ordered[K comparable] struct {
	priority func(K) int32
	taken    func(K)
	waiting  map[K]*waiting[K]
	next     order[K]
	arrived  uint64
}

// waiting is a key in the queue.
type waiting[K comparable] struct {
	key      K
	priority int32
	arrived  uint64
	at       int // index in the heap
}

// Len implements workqueue.Queue.
func (q *ordered[K]) Len() int { return len(q.next) }

// Push implements workqueue.Queue.
func (q *ordered[K]) Push(key K) {
	q.arrived++
	w := &waiting[K]{key: key, priority: q.priority(key), arrived: q.arrived}
	q.waiting[key] = w
	heap.Push(&q.next, w)
}

// Touch implements workqueue.Queue. It is called when a waiting key is added again.
func (q *ordered[K]) Touch(key K) {
	if w := q.waiting[key]; w != nil {
		if p := q.priority(key); p != w.priority {
			w.priority = p
			heap.Fix(&q.next, w.at)
		}
	}
}

// Pop implements workqueue.Queue.
func (q *ordered[K]) Pop() K {
	w, _ := heap.Pop(&q.next).(*waiting[K])
	delete(q.waiting, w.key)
	q.taken(w.key)
	return w.key
}

// order is a heap of waiting keys.
type order[K comparable] []*waiting[K]

// Len implements heap.Interface.
func (o order[K]) Len() int { return len(o) }

// Less implements heap.Interface.
func (o order[K]) Less(i, j int) bool {
	if o[i].priority != o[j].priority {
		return o[i].priority > o[j].priority
	}
	return o[i].arrived < o[j].arrived
}

// Swap implements heap.Interface.
func (o order[K]) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].at, o[j].at = i, j
}

// Push implements heap.Interface.
func (o *order[K]) Push(x any) {
	w, _ := x.(*waiting[K])
	w.at = len(*o)
	*o = append(*o, w)
}

// Pop implements heap.Interface.
func (o *order[K]) Pop() any {
	last := len(*o) - 1
	w := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return w
}
