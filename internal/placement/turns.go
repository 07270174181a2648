package placement

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/binding"
)

// turns makes concurrent workers decide by capacity in dequeue order, so that the last capacity
// goes to the template with the highest priority.
type turns struct {
	mu      sync.Mutex
	passed  *sync.Cond
	taken   uint64
	numbers map[binding.Template]uint64 // of the templates that are not decided yet
}

func newTurns() *turns {
	t := &turns{numbers: map[binding.Template]uint64{}}
	t.passed = sync.NewCond(&t.mu)
	return t
}

// take records that a worker dequeued a template. The queue calls it.
func (t *turns) take(k binding.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken++
	t.numbers[k] = t.taken
}

// pass records that the template is decided, or needs no order. Later calls do nothing.
func (t *turns) pass(k binding.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.numbers[k]; ok {
		delete(t.numbers, k)
		t.passed.Broadcast()
	}
}

// wait blocks until all templates that were dequeued before k have passed. It returns at once if k
// has passed.
func (t *turns) wait(k binding.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.behind(k) {
		t.passed.Wait()
	}
}

// any reports whether a dequeued template has not passed.
func (t *turns) any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.numbers) > 0
}

// behind reports whether a template that was dequeued before k has not passed. There are at most as
// many as workers. The caller holds mu.
func (t *turns) behind(k binding.Template) bool {
	own, ok := t.numbers[k]
	for _, n := range t.numbers {
		if ok && n < own {
			return true
		}
	}
	return false
}

// line is a list of waiting templates, each once, in order of arrival.
type line struct {
	keys []binding.Template
	has  sets.Set[binding.Template]
}

func newLine() *line { return &line{has: sets.New[binding.Template]()} }

func (l *line) add(k binding.Template) {
	if !l.has.Has(k) {
		l.has.Insert(k)
		l.keys = append(l.keys, k)
	}
}

// rounds requeues templates after a delay. Templates with the same delay are requeued together, so
// that priority and not waiting time decides.
type rounds struct {
	mu   sync.Mutex
	next map[time.Duration]*line
	look func(keys ...binding.Template)
}

func newRounds(look func(keys ...binding.Template)) *rounds {
	return &rounds{next: map[time.Duration]*line{}, look: look}
}

// add requeues a template after the delay, or earlier with others of the same delay.
func (r *rounds) add(k binding.Template, after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next[after] == nil {
		r.next[after] = newLine()
		time.AfterFunc(after, func() { r.look(r.take(after)...) })
	}
	r.next[after].add(k)
}

func (r *rounds) take(after time.Duration) []binding.Template {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := r.next[after].keys
	delete(r.next, after)
	return keys
}

// gate holds templates back until the inputs of their decisions are complete. Then it requeues all
// of them together, so that priority decides.
type gate struct {
	mu     sync.Mutex
	open   bool
	behind *line // nil: no template waits
	every  time.Duration
	known  func() bool
	look   func(keys ...binding.Template)
}

// passes reports whether the inputs are complete. If not, the template is requeued when they
// are.
func (g *gate) passes(k binding.Template) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return true
	}
	if g.behind == nil {
		g.behind = newLine()
		time.AfterFunc(g.every, g.try)
	}
	g.behind.add(k)
	return false
}

func (g *gate) try() {
	g.mu.Lock()
	if g.open = g.known(); !g.open {
		time.AfterFunc(g.every, g.try)
		g.mu.Unlock()
		return
	}
	keys := g.behind.keys
	g.behind = nil
	g.mu.Unlock()
	g.look(keys...)
}
