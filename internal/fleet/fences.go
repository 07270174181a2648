package fleet

// Fences is the fleet for who needs to know only which clusters the hub's namespaces may use.
type Fences struct{ *Cache }

// Allowed says whether a namespace of the hub may use a cluster.
func (f Fences) Allowed(namespace, cluster string) bool {
	return f.Snapshot().Allowed(namespace, cluster)
}

// SubscribeClusters calls g when namespaces may use a cluster that could not before, or the other way round, because the cluster
// is another or is labelled otherwise; what else changes that, SubscribeFences tells. g must not block.
func (f Fences) SubscribeClusters(g func(cluster string)) {
	f.Subscribe(func(c Change) {
		if c.What&(Membership|Labels) != 0 {
			g(c.Name)
		}
	})
}
