package fleet

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"orrery.dev/orrery/internal/scheduler"
)

// Request is what each replica of an object requests of a node, as reservations compare it.
type Request struct {
	list corev1.ResourceList
	same string // alike for equal requests
}

// NewRequest returns a request, which must not be changed any more.
func NewRequest(list corev1.ResourceList) Request {
	var same []byte
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		same = append(append(append(append(same, name...), '='), q.String()...), ' ')
	}
	return Request{list: list, same: string(same)}
}

// reserved is what of a cluster's free capacity is not free any more, though nothing is there yet.
type reserved struct {
	requests map[string]*replicas // by what each of them requests
	doubts   int
}

type replicas struct {
	request corev1.ResourceList
	count   int64
}

// Reserve has replicas take room in a cluster, in all that is measured from now on; a negative
// number gives it back.
func (c *Cache) Reserve(cluster string, request Request, n int64) {
	c.reserve(cluster, func(r *reserved) {
		rs := r.requests[request.same]
		if rs == nil {
			rs = &replicas{request: request.list}
			r.requests[request.same] = rs
		}
		if rs.count += n; rs.count == 0 {
			delete(r.requests, request.same)
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
		r = &reserved{requests: map[string]*replicas{}}
		c.unmeasured.reserved[cluster] = r
	}
	change(r)
	if len(r.requests) == 0 && r.doubts == 0 {
		delete(c.unmeasured.reserved, cluster)
	}
	c.unmeasured.clusters.Insert(cluster)
}

// room is a cluster's free capacity without what is reserved there; nil: it is not known.
func (c *Cache) room(cluster string) scheduler.Room {
	var taken []replicas
	c.unmeasured.Lock()
	r := c.unmeasured.reserved[cluster]
	doubtful := r != nil && r.doubts > 0
	if r != nil {
		for _, same := range slices.Sorted(maps.Keys(r.requests)) {
			taken = append(taken, *r.requests[same])
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
	return measured.Without(func(yield func(corev1.ResourceList, int64) bool) {
		for _, rs := range taken {
			if !yield(rs.request, rs.count) {
				return
			}
		}
	})
}
