package queue

import (
	"container/heap"

	"k8s.io/client-go/util/workqueue"
)

// NewOrdered returns a work queue for a controller. It returns the key with the highest priority
// first, and keys of equal priority in order of arrival. priority returns the priority of a key. It
// is called when a key is added, also when a waiting key is added again. A new priority moves the
// waiting key, but its arrival stays. taken is called with each key that the queue returns, in that
// order. Neither function may block or use the queue, which is locked during the calls. name is the
// name of the queue in metrics, and limiter delays retries.
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

// ordered keeps the waiting keys of a work queue in the order of their priority. The work queue
// locks it.
type ordered[K comparable] struct {
	priority func(K) int32
	taken    func(K)
	waiting  map[K]*waiting[K]
	next     order[K]
	arrived  uint64
}

// waiting is one waiting key, with its priority and the number of its arrival.
type waiting[K comparable] struct {
	key      K
	priority int32
	arrived  uint64
	at       int // index in the heap
}

// Len implements workqueue.Queue: it returns the number of waiting keys.
func (q *ordered[K]) Len() int { return len(q.next) }

// Push implements workqueue.Queue: it adds a key, which is not in q yet, with its present priority.
func (q *ordered[K]) Push(key K) {
	q.arrived++
	w := &waiting[K]{key: key, priority: q.priority(key), arrived: q.arrived}
	q.waiting[key] = w
	heap.Push(&q.next, w)
}

// Touch implements workqueue.Queue: it is called when a waiting key is added again. It asks for the
// priority again, and moves the key if that has changed.
func (q *ordered[K]) Touch(key K) {
	if w := q.waiting[key]; w != nil {
		if p := q.priority(key); p != w.priority {
			w.priority = p
			heap.Fix(&q.next, w.at)
		}
	}
}

// Pop implements workqueue.Queue: it removes and returns the key with the highest priority, and
// calls q.taken with it. q must not be empty.
func (q *ordered[K]) Pop() K {
	w, _ := heap.Pop(&q.next).(*waiting[K])
	delete(q.waiting, w.key)
	q.taken(w.key)
	return w.key
}

// order is a heap of waiting keys. Its first element is the key that Pop returns next.
type order[K comparable] []*waiting[K]

// Len implements heap.Interface: it returns the number of waiting keys.
func (o order[K]) Len() int { return len(o) }

// Less implements heap.Interface: the element with the higher priority or, if both are equal, the
// earlier arrival, is less.
func (o order[K]) Less(i, j int) bool {
	if o[i].priority != o[j].priority {
		return o[i].priority > o[j].priority
	}
	return o[i].arrived < o[j].arrived
}

// Swap implements heap.Interface: it exchanges two elements, and updates their index.
func (o order[K]) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].at, o[j].at = i, j
}

// Push implements heap.Interface: it appends a *waiting[K] at the end. heap.Push calls it and then
// moves the element.
func (o *order[K]) Push(x any) {
	w, _ := x.(*waiting[K])
	w.at = len(*o)
	*o = append(*o, w)
}

// Pop implements heap.Interface: it removes and returns the last element. heap.Pop calls it after
// it has moved the first element to the end.
func (o *order[K]) Pop() any {
	last := len(*o) - 1
	w := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return w
}
