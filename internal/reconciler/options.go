package reconciler

import "sigs.k8s.io/controller-runtime/pkg/controller"

// Options are what every controller is made with: so many workers, and a queue without priorities.
// The queue with priorities that controller-runtime v0.24 takes by default can deadlock while it is shut down
// (https://github.com/kubernetes-sigs/controller-runtime/issues/3538): it hands a key to a worker that has left, holding the lock
// that the others need to end, so that the manager never ends.
func Options[K comparable](workers int) controller.TypedOptions[K] {
	return controller.TypedOptions[K]{MaxConcurrentReconciles: workers, UsePriorityQueue: new(false)}
}
