package fleet

import "orrery.dev/orrery/internal/scheduler"

// reserved is the part of a cluster's free capacity that is reserved for pods that decisions placed
// there and that do not exist yet. The lock of Cache.unmeasured guards it.
type reserved struct {
	claims map[string]*scheduler.Taken // by Claim.Same
	doubts int                         // see Cache.Doubt
}

// Reserve reserves free capacity of a cluster for a number of replicas and a number of new objects.
// claim is what each replica requires; quotas count the objects. Later results of Measured have
// less free capacity. Negative numbers release a reservation, and the caller must release as much
// as it reserved. Claims with equal Claim.Same are added up. The cluster need not be known.
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

// Doubt adds n, which may be negative, to the number of doubts about a cluster. A doubt means that
// the caller does not know which of the replicas that decisions placed in the cluster exist there.
// While the number is not 0, Measured returns a nil free capacity for the cluster: it is unknown.
func (c *Cache) Doubt(cluster string, n int) {
	c.reserve(cluster, func(r *reserved) { r.doubts += n })
}

// reserve calls change with the reservations of a cluster, while it holds their lock. The next
// Measured then computes the free capacity of the cluster again.
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

// freeCapacity returns the measured free capacity of a cluster less what is reserved. It is nil
// while the capacity is unknown, or the cluster has doubts, see Doubt.
func (c *Cache) freeCapacity(cluster string) scheduler.FreeCapacity {
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
	// The reservations are read before the measurement. So a pod that is created in between is
	// subtracted twice, rather than not at all.
	measured := c.source.FreeCapacity(cluster)
	switch {
	case measured == nil, doubtful:
		return nil
	case len(taken) == 0:
		return measured
	}
	return measured.Without(taken)
}
