package v1alpha1

import "slices"

// Profile is what the hub may do in a cluster. It is All unless an agent gives it less.
func (s *ClusterSpec) Profile() AgentProfile {
	if s.SyncMode != Pull || s.Agent == nil || s.Agent.Profile == "" {
		return AgentProfileAll
	}
	return s.Agent.Profile
}

// PlacementNamespaces are the only namespaces in which the hub may place workloads, and read Secrets, with the profile Placement.
func (s *ClusterSpec) PlacementNamespaces() []string {
	if s.Profile() != AgentProfilePlacement {
		return nil
	}
	return s.Agent.Namespaces
}

// MayPlace says whether the hub may place objects in a namespace, "" for those that have none.
func (s *ClusterSpec) MayPlace(namespace string) bool {
	return s.Profile() == AgentProfileAll || slices.Contains(s.PlacementNamespaces(), namespace)
}
