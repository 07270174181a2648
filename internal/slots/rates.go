package slots

import (
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// mostAddresses is the maximum number of addresses for which Rates has a limiter. When there are
// more, all addresses start again with a full burst.
const mostAddresses = 4096

// Rate is a limit on attempts: PerSecond attempts each second on average, and Burst attempts at
// once.
type Rate struct {
	PerSecond rate.Limit
	Burst     int
}

// Rates limits how often clients may attempt something, such as to join: for each address, and for
// all addresses together. Behind a load balancer, all clients have one address. It may be used from
// several goroutines.
type Rates struct {
	each Rate
	all  *rate.Limiter

	mu sync.Mutex
	by map[netip.Prefix]*rate.Limiter
}

// NewRates returns a Rates with the limit all for all clients together, and the limit each for the
// clients of one address. each should be lower than all, so that one address cannot use up all
// attempts.
func NewRates(all, each Rate) *Rates {
	return &Rates{each: each, all: rate.NewLimiter(all.PerSecond, all.Burst), by: map[netip.Prefix]*rate.Limiter{}}
}

// Allow reports whether a client may make an attempt now, and counts the attempt. remote is the
// client's address, as IP:port; all texts in another form count as one address. Allow does not
// wait. An attempt beyond the limit of its address does not count for all addresses. An attempt
// beyond the limit of all addresses counts for its own.
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
