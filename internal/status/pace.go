package status

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

const (
	// settle is how long changes are collected before they are written, so that the
	// answers of all clusters become one write.
	settle = 100 * time.Millisecond
	// patience is how much longer a version that nothing is written of yet waits for clusters
	// that have not answered.
	patience = 500 * time.Millisecond
	// pace is the least time between two writes of one binding: rollouts change quickly.
	pace = time.Second
	// startPatience is how long after a start a status waits for the lists of clusters that answer, and startLook how
	// often it looks, for lists are no events of a binding.
	startPatience = time.Minute
	startLook     = 2 * time.Second
	// removalPatience is how long a deleted binding may take to go without saying why.
	removalPatience = 3 * time.Second
)

// pacer says when a binding's status may be written. It remembers what this process has seen
// of each binding.
type pacer struct {
	mu   sync.Mutex
	seen map[types.UID]history
}

// history of one binding in this process.
type history struct {
	version    version
	edited     bool      // the template is not what it was when this process first saw it
	since      time.Time // this version was first seen
	written    time.Time
	deletedFor time.Time // since when it is deleted
}

// version identifies what a status speaks of.
type version struct {
	binding  int64
	template string // see template.Version; empty: not known
}

func newPacer() *pacer { return &pacer{seen: map[types.UID]history{}} }

// see takes note of a version. It says whether the template was edited since this process
// first saw it: what an earlier process wrote is about the past then.
func (p *pacer) see(binding types.UID, v version) (edited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[binding]
	if h.version.template != "" && v.template != "" && h.version.template != v.template {
		h.edited = true
	}
	if v.template == "" {
		v.template = h.version.template
	}
	if h.since.IsZero() || h.version != v {
		h.version, h.since = v, time.Now()
	}
	p.seen[binding] = h
	return h.edited
}

// wait is how long a write is put off: for clusters that are about to answer for this version
// for the first time, and to leave some time between two writes.
func (p *pacer) wait(b *workv1alpha2.ResourceBinding, answersDue bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[b.UID]
	if answersDue && time.Since(h.since) < patience {
		return settle
	}
	return time.Until(h.written.Add(pace))
}

// wrote takes note of a write.
func (p *pacer) wrote(binding types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[binding]
	h.written = time.Now()
	p.seen[binding] = h
}

// removal is how much longer a deleted binding may take to go without saying why.
func (p *pacer) removal(binding types.UID) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[binding]
	if h.deletedFor.IsZero() {
		h.deletedFor = time.Now()
		p.seen[binding] = h
	}
	return time.Until(h.deletedFor.Add(removalPatience))
}

func (p *pacer) forget(binding types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, binding)
}
