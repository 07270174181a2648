package status

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

const (
	// settle is how long changes of a binding are collected before its status is computed, so that the
	// answers of all clusters become one write.
	settle = 100 * time.Millisecond
	// patience is how long the first write for a new version of the binding or template waits for
	// clusters that have not answered.
	patience = 500 * time.Millisecond
	// pace is the shortest time between two writes of the status of one binding, because rollouts
	// change quickly.
	pace = time.Second
	// startPatience is how long after a start no status is written while a cluster that answers is not
	// listed yet. startLook is the interval at which that is checked, because the end of a list is no
	// event of a binding.
	startPatience = time.Minute
	startLook     = 2 * time.Second
	// removalPatience is how long after its deletion a binding may still exist before its status says
	// why.
	removalPatience = 3 * time.Second
)

// pacer decides when the status of a binding may be written, so that changes which come together
// need one write. It may be used from several goroutines.
type pacer struct {
	mu   sync.Mutex
	seen map[types.UID]history // by UID of the binding
}

// history is what this process has seen of one binding, and when.
type history struct {
	version    version   // the last version that was seen
	edited     bool      // the template changed since this process first saw it
	since      time.Time // when this version was first seen
	written    time.Time // when the status was last written
	deletedFor time.Time // when the binding was first seen to be in deletion
}

// version identifies the binding and the template that a status describes.
type version struct {
	binding  int64  // generation of the binding
	template string // see template.Version; "": not known
}

func newPacer() *pacer { return &pacer{seen: map[types.UID]history{}} }

// see records the present version of the binding with this UID. edited is true if the template was
// edited since this process first saw it: then the status that an earlier process wrote is about an
// earlier template. An unknown version of the template ("") is no edit.
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

// wait returns how long to delay a write of the status of the binding b; 0 or less: write now.
// Writes of a binding are at least pace apart. If answersDue is true, clusters have not answered
// for this version yet; then its first write also waits for them, at most patience.
func (p *pacer) wait(b *workv1alpha2.ResourceBinding, answersDue bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[b.UID]
	if answersDue && time.Since(h.since) < patience {
		return settle
	}
	return time.Until(h.written.Add(pace))
}

// wrote records that the status of the binding with this UID was written now.
func (p *pacer) wrote(binding types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[binding]
	h.written = time.Now()
	p.seen[binding] = h
}

// removal returns how much longer a binding in deletion, with this UID, may exist before its status
// says why; 0 or less: no longer. The first call for a binding begins that time.
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

// forget removes what was recorded of the binding with this UID, which is gone.
func (p *pacer) forget(binding types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, binding)
}
