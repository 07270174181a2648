package fleet

import "orrery.dev/orrery/internal/scheduler"

// reserved is what of a cluster's free capacity is not free any more, though nothing is there yet.
type reserved struct {
	claims map[string]*scheduler.Taken // by what each replica claims
	doubts int
}

// Reserve has replicas with a claim take room in a cluster, and as many objects as are not there yet, in all
// that is measured from now on; negative numbers give it back.
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

// Doubt has a cluster's free capacity count as unknown until as much doubt is taken back: nobody
// knows yet how much of what was decided is there.
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

// room is a cluster's free capacity without what is reserved there; nil: it is not known.
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
	// What is reserved is read first: pods that come meanwhile count twice rather than not at all.
	measured := c.source.Room(cluster)
	switch {
	case measured == nil, doubtful:
		return nil
	case len(taken) == 0:
		return measured
	}
	return measured.Without(taken)
}
