// Package slots limits how many connections clients can hold before they prove who they are. It is
// fair between addresses: when no slot is free, a connection of the address that holds most of them
// is closed, the one that was silent longest. So one address cannot keep others out. Rates does the
// same for attempts.
package slots

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
)

// clientBits is the length of the IPv6 prefix that counts as one address. One client usually has
// all addresses of a /64.
const clientBits = 64

// logInterval is the least time between two log lines of a pool.
const logInterval = time.Minute

// Address returns what counts as one address: the IPv4 address or the /64 of the IPv6 address in a
// text IP:port. Texts in another form count as one address, the zero value.
func Address(remote string) netip.Prefix {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	address := at.Addr().Unmap().WithZone("")
	return netip.PrefixFrom(address, min(clientBits, address.BitLen())).Masked()
}

// Options of a Pool.
type Options struct {
	// Limit is the number of slots.
	Limit int
	// Closed is called for each connection that is closed because no slot is free. It must not
	// block. It may be nil.
	Closed func()
	Log    logr.Logger
}

// Pool is a number of slots.
type Pool struct {
	options Options
	clock   atomic.Uint64 // counts signs of life; see Slot.heard

	mu   sync.Mutex
	held map[*Slot]struct{}
	by   map[netip.Prefix]int // slots by address

	closed atomic.Uint64 // since the last log line
	log    rate.Sometimes
}

// Slot is the place of one connection.
type Slot struct {
	pool    *Pool
	address netip.Prefix
	drop    func()
	// heard is the value of the pool's clock when the connection was used last. The least value is
	// that of the connection that was silent longest.
	heard atomic.Uint64
}

// New returns a Pool whose slots are all free.
func New(o Options) *Pool {
	if o.Closed == nil {
		o.Closed = func() {}
	}
	return &Pool{options: o, held: map[*Slot]struct{}{}, by: map[netip.Prefix]int{}, log: rate.Sometimes{First: 1, Interval: logInterval}}
}

// Take returns a slot for a connection from the address IP:port. If none is free, another
// connection loses its slot, and its drop is called: of the addresses with most slots, the
// connection that was silent longest. If the new connection's own address is one of them, it is
// a connection of that address. drop must not block.
func (p *Pool) Take(remote string, drop func()) *Slot {
	s := &Slot{pool: p, address: Address(remote), drop: drop}
	s.Heard()
	p.mu.Lock()
	var victim *Slot
	share := 0
	if len(p.held) >= p.options.Limit {
		victim = p.victim(s.address)
		share = p.by[victim.address]
		p.remove(victim)
	}
	p.held[s] = struct{}{}
	p.by[s.address]++
	p.mu.Unlock()
	if victim != nil {
		p.report(victim.address, share)
		victim.drop()
	}
	return s
}

// victim returns the slot that is taken from its connection for one from the address. The caller
// holds mu, and every slot is taken.
func (p *Pool) victim(address netip.Prefix) *Slot {
	most := 0
	for _, n := range p.by {
		most = max(most, n)
	}
	own := p.by[address] == most
	var victim *Slot
	for s := range p.held {
		if p.by[s.address] < most || own && s.address != address {
			continue
		}
		if victim == nil || s.heard.Load() < victim.heard.Load() {
			victim = s
		}
	}
	return victim
}

// remove frees a slot. The caller holds mu.
func (p *Pool) remove(s *Slot) {
	delete(p.held, s)
	if p.by[s.address]--; p.by[s.address] == 0 {
		delete(p.by, s.address)
	}
}

// report counts and logs that a connection of an address was closed, which had share slots.
func (p *Pool) report(address netip.Prefix, share int) {
	p.options.Closed()
	p.closed.Add(1)
	p.log.Do(func() {
		p.options.Log.Info("All slots for new clients were taken: closed the connections that were silent longest",
			"closed", p.closed.Swap(0), "slots", p.options.Limit, "address", address.String(), "slotsOfAddress", share)
	})
}

// Len returns how many slots are taken.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// Heard records that the connection was used just now.
func (s *Slot) Heard() { s.heard.Store(s.pool.clock.Add(1)) }

// Held reports whether the connection still has its slot.
func (s *Slot) Held() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	_, held := s.pool.held[s]
	return held
}

// Release frees the slot. It does nothing if the slot is free.
func (s *Slot) Release() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if _, held := s.pool.held[s]; held {
		s.pool.remove(s)
	}
}
