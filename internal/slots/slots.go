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

// clientBits is the length in bits of the IPv6 prefix that counts as one address. One client
// usually has all addresses of a /64.
const clientBits = 64

// logInterval is the minimum time between two log messages of a pool about closed connections.
const logInterval = time.Minute

// Address returns the part of a client's address by which slots and rates are counted. remote is
// IP:port. The result is the IPv4 address, or the /64 of the IPv6 address. For a text in another
// form, it is the zero value.
func Address(remote string) netip.Prefix {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	address := at.Addr().Unmap().WithZone("")
	return netip.PrefixFrom(address, min(clientBits, address.BitLen())).Masked()
}

// Options are the settings of a Pool: the number of its slots, and what it reports when it closes a
// connection.
type Options struct {
	// Limit is the number of slots, at least 1.
	Limit int
	// Closed is called for each connection that is closed because no slot is free. It must not
	// block. It may be nil.
	Closed func()
	Log    logr.Logger
}

// Pool is a limited number of slots for connections of clients that have not proven who they are.
// When no slot is free, a new connection takes the slot of another one, which is closed. It may be
// used from several goroutines.
type Pool struct {
	options Options
	clock   atomic.Uint64 // counts signs of life; see Slot.heard

	mu   sync.Mutex
	held map[*Slot]struct{}
	by   map[netip.Prefix]int // slots by address

	closed atomic.Uint64 // connections closed since the last log message
	log    rate.Sometimes
}

// Slot is held by one connection. Take returns it. The connection loses it with Release, or when
// another connection takes it. It may be used from several goroutines.
type Slot struct {
	pool    *Pool
	address netip.Prefix
	drop    func()
	// heard is the value of the pool's clock when the connection was used last. The least value is
	// that of the connection that was silent longest.
	heard atomic.Uint64
}

// New returns a Pool with Options.Limit free slots.
func New(o Options) *Pool {
	if o.Closed == nil {
		o.Closed = func() {}
	}
	return &Pool{options: o, held: map[*Slot]struct{}{}, by: map[netip.Prefix]int{}, log: rate.Sometimes{First: 1, Interval: logInterval}}
}

// Take returns a slot for a connection from the address remote, as IP:port. It never fails. If no
// slot is free, Take takes one from another connection, and calls the drop of that connection,
// which must close it. It chooses among the addresses with the most slots, and of their connections
// the one that was silent longest. If the new connection's address is among them, a connection of
// that address loses its slot. drop must not block.
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

// victim returns the slot that Take gives to a new connection from the address, as described at
// Take. It is never nil: if the address itself is among those with the most slots, it is a slot of
// that address. victim changes nothing. All slots must be taken. The caller holds p.mu.
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

// remove frees the slot s. The caller holds p.mu.
func (p *Pool) remove(s *Slot) {
	delete(p.held, s)
	if p.by[s.address]--; p.by[s.address] == 0 {
		delete(p.by, s.address)
	}
}

// report calls Options.Closed for a connection that lost its slot. It also logs that, at most once
// per logInterval. address is the address of that connection, and share the number of slots that
// the address had.
func (p *Pool) report(address netip.Prefix, share int) {
	p.options.Closed()
	p.closed.Add(1)
	p.log.Do(func() {
		p.options.Log.Info("All slots for new clients were taken: closed the connections that were silent longest",
			"closed", p.closed.Swap(0), "slots", p.options.Limit, "address", address.String(), "slotsOfAddress", share)
	})
}

// Len returns the number of slots that are taken by connections.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// Heard records that the connection was used just now. Take closes the connection first for which
// this was longest ago.
func (s *Slot) Heard() { s.heard.Store(s.pool.clock.Add(1)) }

// Held reports whether the connection still has its slot: it was not released, and no other
// connection took it.
func (s *Slot) Held() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	_, held := s.pool.held[s]
	return held
}

// Release frees the slot, when its connection has proven who it is or has ended. It does nothing if
// the connection no longer has the slot. It does not call drop.
func (s *Slot) Release() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if _, held := s.pool.held[s]; held {
		s.pool.remove(s)
	}
}
