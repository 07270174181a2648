package status

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

const (
	// settle is how long changes are collected before they are written, so that the answers of all
	// clusters become one write.
	settle = 100 * time.Millisecond
	// patience is how much longer the first write for a version waits for clusters that have not
	// answered.
	patience = 500 * time.Millisecond
	// pace is the minimal time between two writes of one binding, as rollouts change quickly.
	pace = time.Second
	// startPatience is how long after a start a status waits for the lists of clusters that
	// answer. startLook is the interval of these checks, as lists are no events of a binding.
	startPatience = time.Minute
	startLook     = 2 * time.Second
	// removalPatience is how long a deleted binding may take to go before its status says why it
	// stays.
	removalPatience = 3 * time.Second
)

// pacer decides when the status of a binding may be written. It remembers what this process has
// seen of each binding.
type pacer struct {
	mu   sync.Mutex
	seen map[types.UID]history
}

// history is what this process has seen of one binding.
type history struct {
	version    version
	edited     bool      // the template changed since this process first saw it
	since      time.Time // when this version was first seen
	written    time.Time
	deletedFor time.Time // when it was first seen to be deleted
}

// version identifies the state that a status describes.
type version struct {
	binding  int64
	template string // see template.Version; "": not known
}

func newPacer() *pacer { return &pacer{seen: map[types.UID]history{}} }

// see records a version. edited reports whether the template was edited since this process
// first saw it: the status of an earlier process is then about an earlier template.
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

// wait returns how long to delay a write: until the clusters have answered for this version, if
// answersDue, and until pace has passed since the last write. It is 0 or less if the status may
// be written now.
func (p *pacer) wait(b *workv1alpha2.ResourceBinding, answersDue bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[b.UID]
	if answersDue && time.Since(h.since) < patience {
		return settle
	}
	return time.Until(h.written.Add(pace))
}

// wrote records a write.
func (p *pacer) wrote(binding types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[binding]
	h.written = time.Now()
	p.seen[binding] = h
}

// removal returns how much longer a deleted binding may take to go before its status says why
// it stays.
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
