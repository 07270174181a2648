package reconciler

import "sigs.k8s.io/controller-runtime/pkg/controller"

// Options returns the common options of all controllers of Orrery: the number of workers, and a
// queue without priorities. The priority queue, which controller-runtime v0.24 uses by default, can
// deadlock during shutdown (https://github.com/kubernetes-sigs/controller-runtime/issues/3538). It
// hands a key to a worker that has ended, while it holds the lock that the other workers wait for.
// Then the manager never ends.
func Options[K comparable](workers int) controller.TypedOptions[K] {
	return controller.TypedOptions[K]{MaxConcurrentReconciles: workers, UsePriorityQueue: new(false)}
}
