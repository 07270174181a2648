package slots

import (
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// mostAddresses bounds the memory for addresses.
const mostAddresses = 4096

// Rate is how often something may be done: so many times a second, after a burst.
type Rate struct {
	PerSecond rate.Limit
	Burst     int
}

// Rates limits how often clients may do something, for each address and for all together. Behind a
// load balancer all clients have one address.
type Rates struct {
	each Rate
	all  *rate.Limiter

	mu sync.Mutex
	by map[netip.Prefix]*rate.Limiter
}

// NewRates returns the limits for all clients together, and for those of each address. The rate of
// an address should be a part of that of all: then one address leaves some for the others.
func NewRates(all, each Rate) *Rates {
	return &Rates{each: each, all: rate.NewLimiter(all.PerSecond, all.Burst), by: map[netip.Prefix]*rate.Limiter{}}
}

// Allow reports whether a client of the address IP:port may do it now, and counts that.
func (r *Rates) Allow(remote string) bool {
	from := Address(remote)
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.by[from]
	if of == nil {
		if len(r.by) >= mostAddresses {
			clear(r.by) // the limit for all addresses still holds
		}
		of = rate.NewLimiter(r.each.PerSecond, r.each.Burst)
		r.by[from] = of
	}
	return of.Allow() && r.all.Allow()
}
