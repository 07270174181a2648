// Package content decides, with Spread, which host gets which release file from which other host,
// or from the machine that runs Orrery (the control machine). The engine (package lifecycle)
// performs what Spread decides. Fetch downloads manifests and charts from URLs. The package does
// not connect to hosts.
package content

import (
	"maps"
	"slices"
	"sync"
)

const (
	// maxCopies is how often the control machine sends the same file. Further hosts get the file from
	// other hosts.
	maxCopies = 2
	// fanOut is how many hosts one host sends files to in parallel.
	fanOut = 8
)

// Delivery is a set of files that one host needs next, by digest. Spread.Next makes it, and the
// caller reports its end to Spread.Done. Sources has the source of each digest: a host, or "" for
// the control machine.
type Delivery struct {
	Host    string
	Digests []string
	Sources map[string]string
	// From lists the hosts in Sources, each once.
	From []string
}

// Spread plans the distribution of files to hosts: it decides from where each host gets the files
// that it misses. A host that has a file passes the file on, so the control machine sends little,
// and a slow host does not delay others. A host has one delivery at a time, with everything that it
// misses. Spread is safe for use by several goroutines.
type Spread struct {
	hosts []string               // in the order in which they are served
	gives func(host string) bool // whether a host can send files to others

	mu      sync.Mutex
	missing map[string][]string        // host → digests of files that it lacks
	have    map[string]map[string]bool // digest → hosts that have the file
	copies  map[string]int             // digest → how often the control machine has sent it
	load    map[string]int             // host → number of hosts to which it sends now
	busy    map[string]bool            // hosts with a delivery under way
	forced  map[string]bool            // hosts to which the control machine sends everything
}

// NewSpread returns a Spread for hosts, which are served in this order. missing has the digests of
// the files that each host misses. Only hosts for which gives returns true send files to others.
// Next calls gives with its lock held, so gives must not call the Spread.
func NewSpread(hosts []string, missing map[string][]string, gives func(host string) bool) *Spread {
	return &Spread{
		hosts: hosts, missing: maps.Clone(missing), gives: gives,
		have: map[string]map[string]bool{}, copies: map[string]int{}, load: map[string]int{}, busy: map[string]bool{}, forced: map[string]bool{},
	}
}

// Gained records that a host now has the file with this digest, and so can send the file to others.
func (s *Spread) Gained(host, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[digest] == nil {
		s.have[digest] = map[string]bool{}
	}
	s.have[digest][host] = true
}

// Has reports whether a host has the file with this digest, according to Gained.
func (s *Spread) Has(host, digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[digest][host]
}

// Holders returns the hosts that have the file with this digest, sorted. It includes hosts that
// send no files to others.
func (s *Spread) Holders(digest string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.have[digest]))
}

// Next returns the deliveries to begin now, and counts them as under way until Done. It returns
// none if no host misses a file, or if all that can begin depends on deliveries under way. If no
// delivery is under way and no host can send the missing files, the control machine sends them, to
// one host at first.
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
	for _, name := range s.hosts { // no source is left, so the control machine sends
		if len(s.missing[name]) > 0 {
			s.forced[name] = true
			d, _ := s.delivery(name)
			return []Delivery{d}
		}
	}
	return nil
}

// Done records that a delivery has ended. Files of the delivery that the host lacks, because Gained
// was not called for them, are delivered again later.
func (s *Spread) Done(d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, d.Host)
	for _, from := range d.From {
		s.load[from]--
	}
	s.missing[d.Host] = slices.DeleteFunc(slices.Clone(s.missing[d.Host]), func(digest string) bool { return s.have[digest][d.Host] })
}

// Idle reports whether no delivery is under way. The distribution is then over, unless Next returns
// another one.
func (s *Spread) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.busy) == 0
}

// delivery returns the next delivery for a host, and counts it as under way. It returns false if
// the host misses nothing or already has a delivery under way, or if one of the files has no free
// source. The caller holds mu.
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

// source returns the host from which a file with this digest should come: the one that now sends to
// the fewest others. It returns false if no host with the file can send now. The caller holds mu.
func (s *Spread) source(digest string) (string, bool) {
	best, found := "", false
	for _, name := range slices.Sorted(maps.Keys(s.have[digest])) {
		if s.gives(name) && s.load[name] < fanOut && (!found || s.load[name] < s.load[best]) {
			best, found = name, true
		}
	}
	return best, found
}
