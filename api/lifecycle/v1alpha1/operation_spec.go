package v1alpha1

// NamedHosts returns the names of the hosts that the action AddNode or DeleteNode adds or deletes.
// It is nil for other actions, and for AddNode without hosts.
func (s *OperationSpec) NamedHosts() []string {
	switch {
	case s.AddNode != nil:
		return s.AddNode.Hosts
	case s.DeleteNode != nil:
		return s.DeleteNode.Hosts
	}
	return nil
}

// Forgets reports whether the Operation continues without the hosts to delete that cannot be
// reached. What is installed on these hosts stays. It is true only for the actions DeleteNode and
// Delete with UnreachableForget.
func (s *OperationSpec) Forgets() bool {
	return s.DeleteNode != nil && s.DeleteNode.Unreachable == UnreachableForget ||
		s.Delete != nil && s.Delete.Unreachable == UnreachableForget
}

// Order returns the Rollout of the action: in which order, and how many at once, hosts are changed.
// For RenewCertificates it has only MaxUnavailable. It is the zero value for Delete, and if the
// spec has no action.
func (s *OperationSpec) Order() Rollout {
	switch {
	case s.Create != nil:
		return s.Create.Rollout
	case s.Apply != nil:
		return s.Apply.Rollout
	case s.AddNode != nil:
		return s.AddNode.Rollout
	case s.DeleteNode != nil:
		return s.DeleteNode.Rollout
	case s.RenewCertificates != nil:
		return Rollout{MaxUnavailable: s.RenewCertificates.MaxUnavailable}
	}
	return Rollout{}
}

// SetMember sets the member of the spec that belongs to s.Action, and clears the members of other
// actions. hosts, unreachable and order are values for the member; those that the action does not
// have are ignored. For an unknown action it clears all members.
func (s *OperationSpec) SetMember(hosts []string, unreachable UnreachablePolicy, order Rollout) {
	s.Create, s.Apply, s.AddNode, s.DeleteNode, s.Delete, s.RenewCertificates = nil, nil, nil, nil, nil, nil
	switch s.Action {
	case ActionCreate:
		s.Create = &CreateAction{Rollout: order}
	case ActionApply:
		s.Apply = &ApplyAction{Rollout: order}
	case ActionAddNode:
		s.AddNode = &AddNodeAction{Hosts: hosts, Rollout: order}
	case ActionDeleteNode:
		s.DeleteNode = &DeleteNodeAction{Hosts: hosts, Unreachable: unreachable, Rollout: order}
	case ActionDelete:
		s.Delete = &DeleteAction{Unreachable: unreachable}
	case ActionRenewCertificates:
		s.RenewCertificates = &RenewCertificatesAction{MaxUnavailable: order.MaxUnavailable}
	}
}
