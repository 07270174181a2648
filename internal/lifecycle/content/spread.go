// Package content says which host gets which file from whom, and reads what is named by URL: manifests and charts. It speaks to no
// host: the engine does what is decided here.
package content

import (
	"maps"
	"slices"
	"sync"
)

const (
	// maxCopies is how often a file leaves the control machine; from then on hosts have it from hosts.
	maxCopies = 2
	// fanOut is how many hosts one host serves at a time.
	fanOut = 8
)

// Delivery is what a host gets at a time. The source of a digest is a host, or the control machine if it is empty.
type Delivery struct {
	Host    string
	Digests []string
	Sources map[string]string
	// From are the hosts among the sources.
	From []string
}

// Spread decides who gets what from whom, so that a slow host holds up no other and little leaves the control machine: a host that has
// a file gives it to others. A host gets one delivery at a time, with everything that it misses. It may be used concurrently.
type Spread struct {
	hosts []string               // in the order in which they are served
	gives func(host string) bool // whether a host can serve others

	mu      sync.Mutex
	missing map[string][]string        // host → digests
	have    map[string]map[string]bool // digest → hosts
	copies  map[string]int             // digest → copies that leave us
	load    map[string]int             // host → hosts that it serves now
	busy    map[string]bool            // hosts that something is brought to now
	forced  map[string]bool            // hosts that cannot fetch: we send them all they miss
}

// NewSpread plans for hosts, in their order, what each misses. Only hosts that give serve others.
func NewSpread(hosts []string, missing map[string][]string, gives func(host string) bool) *Spread {
	return &Spread{
		hosts: hosts, missing: maps.Clone(missing), gives: gives,
		have: map[string]map[string]bool{}, copies: map[string]int{}, load: map[string]int{}, busy: map[string]bool{}, forced: map[string]bool{},
	}
}

// Gained notes that a host has something.
func (s *Spread) Gained(host, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[digest] == nil {
		s.have[digest] = map[string]bool{}
	}
	s.have[digest][host] = true
}

// Has reports whether a host has something.
func (s *Spread) Has(host, digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[digest][host]
}

// Holders are the hosts that have something.
func (s *Spread) Holders(digest string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.have[digest]))
}

// Next is what is to be delivered now. It is empty if that depends on deliveries under way, or if no host misses anything.
func (s *Spread) Next() []Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Delivery
	for _, name := range s.hosts {
		if d, ok := s.delivery(name); ok {
			all = append(all, d)
		}
	}
	if len(all) > 0 || len(s.busy) > 0 {
		return all
	}
	for _, name := range s.hosts { // the sources of what is missed are gone: we send it
		if len(s.missing[name]) > 0 {
			s.forced[name] = true
			d, _ := s.delivery(name)
			return []Delivery{d}
		}
	}
	return nil
}

// Done notes that a delivery has ended.
func (s *Spread) Done(d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, d.Host)
	for _, from := range d.From {
		s.load[from]--
	}
	s.missing[d.Host] = slices.DeleteFunc(slices.Clone(s.missing[d.Host]), func(digest string) bool { return s.have[digest][d.Host] })
}

// Idle reports whether nothing is under way.
func (s *Spread) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.busy) == 0
}

// delivery is what a host gets now, unless something that it misses cannot be had, or it gets something already.
func (s *Spread) delivery(name string) (Delivery, bool) {
	if len(s.missing[name]) == 0 || s.busy[name] {
		return Delivery{}, false
	}
	d := Delivery{Host: name, Sources: map[string]string{}, Digests: slices.Clone(s.missing[name])}
	for _, digest := range d.Digests {
		from, ok := s.source(digest)
		switch {
		case s.forced[name]:
			d.Sources[digest] = ""
		case ok:
			d.Sources[digest] = from
		case len(s.have[digest]) == 0 && s.copies[digest] < maxCopies:
			d.Sources[digest] = ""
		default:
			return Delivery{}, false
		}
	}
	for digest, from := range d.Sources {
		switch {
		case from == "":
			s.copies[digest]++
		case !slices.Contains(d.From, from):
			d.From = append(d.From, from)
			s.load[from]++
		}
	}
	s.busy[name] = true
	return d, true
}

// source picks the host that serves a digest and has the least to do.
func (s *Spread) source(digest string) (string, bool) {
	best, found := "", false
	for _, name := range slices.Sorted(maps.Keys(s.have[digest])) {
		if s.gives(name) && s.load[name] < fanOut && (!found || s.load[name] < s.load[best]) {
			best, found = name, true
		}
	}
	return best, found
}
