package fleet

// Fences is the fleet for callers that read only which clusters the hub's namespaces may use.
type Fences struct{ *Cache }

// Allowed reports whether ClusterAccess lets a namespace of the hub use a cluster.
func (f Fences) Allowed(namespace, cluster string) bool {
	return f.Snapshot().Allowed(namespace, cluster)
}

// SubscribeClusters calls g when the membership or the labels of a cluster changed, so that
// other namespaces may be allowed to use it. SubscribeFences reports the other causes. g must
// not block.
func (f Fences) SubscribeClusters(g func(cluster string)) {
	f.Subscribe(func(c Change) {
		if c.What&(Membership|Labels) != 0 {
			g(c.Name)
		}
	})
}
