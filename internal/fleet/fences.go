package fleet

// Fences is a Cache for callers that only need to know which clusters the namespaces of the hub may
// use.
type Fences struct{ *Cache }

// Allowed reports whether the ClusterAccesses allow a namespace of the hub to use a cluster. It is
// false until the cache is synced. For a cluster that does not exist it is true only if no
// ClusterAccess restricts the namespace.
func (f Fences) Allowed(namespace, cluster string) bool {
	return f.Snapshot().Allowed(namespace, cluster)
}

// SubscribeClusters registers g to be called when a cluster joined or left or its labels changed,
// so that other namespaces may be allowed to use it. SubscribeFences reports all other causes. g
// must not block.
func (f Fences) SubscribeClusters(g func(cluster string)) {
	f.Subscribe(func(c Change) {
		if c.What&(Membership|Labels) != 0 {
			g(c.Name)
		}
	})
}
