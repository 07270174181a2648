package v1alpha1

// NamedHosts are the hosts that an Operation adds or takes out, as its spec names them.
func (s *OperationSpec) NamedHosts() []string {
	switch {
	case s.AddNode != nil:
		return s.AddNode.Hosts
	case s.DeleteNode != nil:
		return s.DeleteNode.Hosts
	}
	return nil
}

// Forgets reports whether hosts that cannot be reached are given up: what is on them stays.
func (s *OperationSpec) Forgets() bool {
	return s.DeleteNode != nil && s.DeleteNode.Unreachable == UnreachableForget ||
		s.Delete != nil && s.Delete.Unreachable == UnreachableForget
}

// Order is in which order hosts are changed. Where the spec does not say it, or the action has none, all of it is unset.
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

// SetMember sets the member of the action to as much of hosts, policy and order as the action takes.
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
