package placement

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/binding"
)

// turns has what several workers took from the queue decided on in the order in which they took it, where that matters: the last room
// is for the most urgent.
type turns struct {
	mu      sync.Mutex
	passed  *sync.Cond
	taken   uint64
	numbers map[binding.Template]uint64 // of those whose turn is not over
}

func newTurns() *turns {
	t := &turns{numbers: map[binding.Template]uint64{}}
	t.passed = sync.NewCond(&t.mu)
	return t
}

// take begins a turn. The queue calls it.
func (t *turns) take(k binding.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken++
	t.numbers[k] = t.taken
}

// pass ends a turn, if it has not ended.
func (t *turns) pass(k binding.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.numbers[k]; ok {
		delete(t.numbers, k)
		t.passed.Broadcast()
	}
}

// wait returns when all turns are over that began earlier; at once when this one is.
func (t *turns) wait(k binding.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.behind(k) {
		t.passed.Wait()
	}
}

// any is true while any turn lasts.
func (t *turns) any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.numbers) > 0
}

// behind is true while a turn lasts that began earlier. There are as many as workers.
func (t *turns) behind(k binding.Template) bool {
	own, ok := t.numbers[k]
	for _, n := range t.numbers {
		if ok && n < own {
			return true
		}
	}
	return false
}

// line is templates that wait, each once, in the order in which they came.
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

// rounds are templates that are looked at again after a time, with all others that wait as long: who waited longest is not who gets
// what they all wait for.
type rounds struct {
	mu   sync.Mutex
	next map[time.Duration]*line
	look func(keys ...binding.Template)
}

func newRounds(look func(keys ...binding.Template)) *rounds {
	return &rounds{next: map[time.Duration]*line{}, look: look}
}

// add has a template looked at again after a time, or earlier.
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

// gate keeps templates back while something is about to be known that they all depend on: then they come through together, the most
// urgent first.
type gate struct {
	mu     sync.Mutex
	open   bool
	behind *line // nil: nobody came
	every  time.Duration
	known  func() bool
	look   func(keys ...binding.Template)
}

// passes is true when the gate is open. A template that comes before is looked at when it opens.
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
