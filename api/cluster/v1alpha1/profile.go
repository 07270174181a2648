package v1alpha1

import "slices"

// Profile returns the profile that limits what the hub may do in the cluster. It is
// spec.agent.profile of a cluster with syncMode Pull, if that is set. In all other cases it is
// AgentProfileAll.
func (s *ClusterSpec) Profile() AgentProfile {
	if s.SyncMode != Pull || s.Agent == nil || s.Agent.Profile == "" {
		return AgentProfileAll
	}
	return s.Agent.Profile
}

// PlacementNamespaces returns the only namespaces in which the hub may place workloads and read
// Secrets with the profile Placement. It is nil for the other profiles, also for All, which has
// no such limit.
func (s *ClusterSpec) PlacementNamespaces() []string {
	if s.Profile() != AgentProfilePlacement {
		return nil
	}
	return s.Agent.Namespaces
}

// MayPlace reports whether the hub may place objects in a namespace of the cluster. It is always
// true with the profile All, and always false with Mirror. With Placement it is true for the
// namespaces in spec.agent.namespaces. The namespace "" stands for objects without a namespace.
func (s *ClusterSpec) MayPlace(namespace string) bool {
	return s.Profile() == AgentProfileAll || slices.Contains(s.PlacementNamespaces(), namespace)
}
