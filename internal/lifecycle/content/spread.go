// Package content decides which host gets which file from which source, and downloads manifests and
// charts. It does not connect to hosts. The engine performs what Spread decides.
package content

import (
	"maps"
	"slices"
	"sync"
)

const (
	// maxCopies is how often the control machine sends a file. Further hosts get it from other hosts.
	maxCopies = 2
	// fanOut is how many hosts one host serves in parallel.
	fanOut = 8
)

// Delivery is a set of files for a host. The source of a digest is a host, or "" for the control
// machine.
type Delivery struct {
	Host    string
	Digests []string
	Sources map[string]string
	// From lists the hosts among the sources.
	From []string
}

// Spread assigns sources, so that a slow host does not delay others and the control machine sends
// little. Hosts with a file pass it on. A host has one delivery at a time, with everything that it
// misses. Spread is safe for concurrent use.
type Spread struct {
	hosts []string               // in the order of service
	gives func(host string) bool // whether a host can serve others

	mu      sync.Mutex
	missing map[string][]string        // host → digests
	have    map[string]map[string]bool // digest → hosts
	copies  map[string]int             // digest → copies that the control machine sends
	load    map[string]int             // host → hosts that it serves now
	busy    map[string]bool            // hosts with a delivery under way
	forced  map[string]bool            // hosts that cannot fetch: the control machine sends all
}

// NewSpread returns a Spread for hosts, in their order. missing has the digests that each misses.
// Only hosts for which gives returns true serve others.
func NewSpread(hosts []string, missing map[string][]string, gives func(host string) bool) *Spread {
	return &Spread{
		hosts: hosts, missing: maps.Clone(missing), gives: gives,
		have: map[string]map[string]bool{}, copies: map[string]int{}, load: map[string]int{}, busy: map[string]bool{}, forced: map[string]bool{},
	}
}

// Gained records that a host has a file.
func (s *Spread) Gained(host, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[digest] == nil {
		s.have[digest] = map[string]bool{}
	}
	s.have[digest][host] = true
}

// Has reports whether a host has a file.
func (s *Spread) Has(host, digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[digest][host]
}

// Holders returns the hosts that have a file.
func (s *Spread) Holders(digest string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.have[digest]))
}

// Next returns the deliveries to begin now. It is empty if no host misses anything, or if the next
// ones depend on deliveries under way.
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
	for _, name := range s.hosts { // the sources are gone: the control machine sends
		if len(s.missing[name]) > 0 {
			s.forced[name] = true
			d, _ := s.delivery(name)
			return []Delivery{d}
		}
	}
	return nil
}

// Done records that a delivery has ended. Files that the host did not get are assigned again.
func (s *Spread) Done(d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, d.Host)
	for _, from := range d.From {
		s.load[from]--
	}
	s.missing[d.Host] = slices.DeleteFunc(slices.Clone(s.missing[d.Host]), func(digest string) bool { return s.have[digest][d.Host] })
}

// Idle reports whether no delivery is under way.
func (s *Spread) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.busy) == 0
}

// delivery returns the next delivery for a host. It returns false if the host has one under way, or
// if a missing file has no free source.
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

// source returns the least loaded host that can serve a digest.
func (s *Spread) source(digest string) (string, bool) {
	best, found := "", false
	for _, name := range slices.Sorted(maps.Keys(s.have[digest])) {
		if s.gives(name) && s.load[name] < fanOut && (!found || s.load[name] < s.load[best]) {
			best, found = name, true
		}
	}
	return best, found
}
