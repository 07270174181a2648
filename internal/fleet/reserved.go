package fleet

import "orrery.dev/orrery/internal/scheduler"

// reserved is the part of a cluster's free capacity that is reserved for pods that do not exist
// yet.
type reserved struct {
	claims map[string]*scheduler.Taken // by Claim.Same
	doubts int
}

// Reserve reserves capacity in a cluster for a number of replicas with a claim, and for a
// number of objects that are not there yet. Later results of Measured have less capacity.
// Negative numbers release it.
func (c *Cache) Reserve(cluster string, claim *scheduler.Claim, replicas, objects int64) {
	c.reserve(cluster, func(r *reserved) {
		t := r.claims[claim.Same()]
		if t == nil {
			t = &scheduler.Taken{Claim: claim}
			r.claims[claim.Same()] = t
		}
		t.Replicas += replicas
		if t.Objects += objects; t.Replicas == 0 && t.Objects == 0 {
			delete(r.claims, claim.Same())
		}
	})
}

// Doubt adds n to the doubts about a cluster; negative numbers remove doubts. While there are
// doubts, the cluster's free capacity is unknown: it is unknown which of the decided replicas
// exist.
func (c *Cache) Doubt(cluster string, n int) {
	c.reserve(cluster, func(r *reserved) { r.doubts += n })
}

func (c *Cache) reserve(cluster string, change func(*reserved)) {
	c.unmeasured.Lock()
	defer c.unmeasured.Unlock()
	r := c.unmeasured.reserved[cluster]
	if r == nil {
		r = &reserved{claims: map[string]*scheduler.Taken{}}
		c.unmeasured.reserved[cluster] = r
	}
	change(r)
	if len(r.claims) == 0 && r.doubts == 0 {
		delete(c.unmeasured.reserved, cluster)
	}
	c.unmeasured.clusters.Insert(cluster)
}

// room returns a cluster's free capacity less the reservations; nil: unknown.
func (c *Cache) room(cluster string) scheduler.Room {
	var taken []scheduler.Taken
	c.unmeasured.Lock()
	r := c.unmeasured.reserved[cluster]
	doubtful := r != nil && r.doubts > 0
	if r != nil && !doubtful {
		taken = make([]scheduler.Taken, 0, len(r.claims))
		for _, t := range r.claims {
			taken = append(taken, *t)
		}
	}
	c.unmeasured.Unlock()
	// The reservations are read before the measurement: pods that start in between count twice,
	// rather than not at all.
	measured := c.source.Room(cluster)
	switch {
	case measured == nil, doubtful:
		return nil
	case len(taken) == 0:
		return measured
	}
	return measured.Without(taken)
}
