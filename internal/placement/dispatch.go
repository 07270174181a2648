package placement

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/binding"
)

// dispatchOrder makes concurrent workers decide templates by capacity in the order in which they
// were dequeued. So the last capacity goes to the template with the highest priority. It is safe
// for concurrent use.
type dispatchOrder struct {
	mu      sync.Mutex
	passed  *sync.Cond                  // signals that pass removed a template from numbers
	taken   uint64                      // number of templates that were dequeued so far
	numbers map[binding.Template]uint64 // position of each template that is not decided yet
}

func newDispatchOrder() *dispatchOrder {
	o := &dispatchOrder{numbers: map[binding.Template]uint64{}}
	o.passed = sync.NewCond(&o.mu)
	return o
}

// take records that a worker dequeued the template k. The work queue calls it.
func (o *dispatchOrder) take(k binding.Template) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken++
	o.numbers[k] = o.taken
}

// pass records that the template k is decided, or does not depend on the order. It must be called
// for each dequeued template, because wait blocks for those that were dequeued later. Further calls
// do nothing.
func (o *dispatchOrder) pass(k binding.Template) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.numbers[k]; ok {
		delete(o.numbers, k)
		o.passed.Broadcast()
	}
}

// wait blocks until pass was called for all templates that were dequeued before k. It returns at
// once if pass was called for k, or k was not dequeued.
func (o *dispatchOrder) wait(k binding.Template) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.behind(k) {
		o.passed.Wait()
	}
}

// any reports whether pass was not called yet for some dequeued template.
func (o *dispatchOrder) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.numbers) > 0
}

// behind reports whether pass was not called yet for a template that was dequeued before k. It is
// false if k was not dequeued, or pass was called for it. The caller holds mu.
func (o *dispatchOrder) behind(k binding.Template) bool {
	own, ok := o.numbers[k]
	for _, n := range o.numbers {
		if ok && n < own {
			return true
		}
	}
	return false
}

// waitList is a list of waiting templates, each once, in order of arrival.
type waitList struct {
	keys []binding.Template
	has  sets.Set[binding.Template]
}

func newWaitList() *waitList { return &waitList{has: sets.New[binding.Template]()} }

// add appends a template, unless the list has it.
func (l *waitList) add(k binding.Template) {
	if !l.has.Has(k) {
		l.has.Insert(k)
		l.keys = append(l.keys, k)
	}
}

// retryQueue requeues templates after a delay. All templates with the same delay that wait at the
// same time are requeued together with look, so that their priority decides and not their waiting
// time. It is safe for concurrent use.
type retryQueue struct {
	mu   sync.Mutex
	next map[time.Duration]*waitList    // by delay
	due  map[time.Time]*dueList         // by time
	at   map[binding.Template]time.Time // the time in due of each template in it
	look func(keys ...binding.Template) // requeues templates
}

// dueList has the templates that wait for one time, and the timer that requeues them.
type dueList struct {
	keys  sets.Set[binding.Template]
	timer *time.Timer
}

func newRetryQueue(look func(keys ...binding.Template)) *retryQueue {
	return &retryQueue{
		next: map[time.Duration]*waitList{}, due: map[time.Time]*dueList{}, at: map[binding.Template]time.Time{}, look: look,
	}
}

// setDue requeues a template at a time, rounded up to seconds, and at no other time that was set
// before; zero: at no time. All templates with the same time are requeued together.
func (q *retryQueue) setDue(k binding.Template, when time.Time) {
	if !when.IsZero() {
		when = when.UTC().Add(time.Second - 1).Truncate(time.Second)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if before, ok := q.at[k]; ok {
		if before.Equal(when) {
			return
		}
		list := q.due[before]
		delete(q.at, k)
		if list.keys.Delete(k); len(list.keys) == 0 {
			list.timer.Stop()
			delete(q.due, before)
		}
	}
	if when.IsZero() {
		return
	}
	list := q.due[when]
	if list == nil {
		list = &dueList{keys: sets.New[binding.Template]()}
		list.timer = time.AfterFunc(time.Until(when), func() { q.look(q.takeDue(when, list)...) })
		q.due[when] = list
	}
	list.keys.Insert(k)
	q.at[k] = when
}

// takeDue removes and returns the templates of the list, which waits for the time when; nil if the
// list was removed.
func (q *retryQueue) takeDue(when time.Time, list *dueList) []binding.Template {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.due[when] != list {
		return nil
	}
	delete(q.due, when)
	for k := range list.keys {
		delete(q.at, k)
	}
	return list.keys.UnsortedList()
}

// add requeues a template after the delay or, if other templates wait for the same delay already,
// together with these and so earlier.
func (q *retryQueue) add(k binding.Template, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next[after] == nil {
		q.next[after] = newWaitList()
		time.AfterFunc(after, func() { q.look(q.take(after)...) })
	}
	q.next[after].add(k)
}

// take removes and returns the templates that wait for the delay after.
func (q *retryQueue) take(after time.Duration) []binding.Template {
	q.mu.Lock()
	defer q.mu.Unlock()
	keys := q.next[after].keys
	delete(q.next, after)
	return keys
}

// barrier holds templates back after a start until the inputs of decisions by capacity are
// complete. Then it requeues all of them together, so that their priority decides. Once open, it
// stays open. It is safe for concurrent use.
type barrier struct {
	mu     sync.Mutex
	open   bool
	behind *waitList                      // nil: no template waits
	every  time.Duration                  // between calls of known
	known  func() bool                    // whether the inputs are complete
	look   func(keys ...binding.Template) // requeues templates
}

// passes reports whether the barrier is open, so that the template k may be decided. Otherwise k is
// requeued when the barrier opens. It does not block.
func (b *barrier) passes(k binding.Template) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return true
	}
	if b.behind == nil {
		b.behind = newWaitList()
		time.AfterFunc(b.every, b.try)
	}
	b.behind.add(k)
	return false
}

// try opens the barrier and requeues the waiting templates if the inputs are complete. Otherwise it
// calls itself again after the time b.every.
func (b *barrier) try() {
	b.mu.Lock()
	if b.open = b.known(); !b.open {
		time.AfterFunc(b.every, b.try)
		b.mu.Unlock()
		return
	}
	keys := b.behind.keys
	b.behind = nil
	b.mu.Unlock()
	b.look(keys...)
}
