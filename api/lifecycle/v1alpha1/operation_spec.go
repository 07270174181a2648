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

// Unflatten brings a spec of an earlier version to the form of this one: what its flat fields say is said by the member of its
// action. What that action does not take had no meaning there. Everything that reads an Operation that was stored calls it.
func (s *OperationSpec) Unflatten() {
	flat := s.FlatSpec
	if len(flat.FlatHosts) == 0 && flat.FlatUnreachable == "" && flat.FlatMaxUnavailable == 0 && flat.FlatPauseBetween == nil && flat.FlatHaltAfter == 0 && flat.FlatDrainTimeout == nil {
		return
	}
	s.FlatSpec = FlatSpec{}
	s.SetMember(flat.FlatHosts, flat.FlatUnreachable, Rollout{
		MaxUnavailable: flat.FlatMaxUnavailable, PauseBetween: flat.FlatPauseBetween, HaltAfter: flat.FlatHaltAfter, DrainTimeout: flat.FlatDrainTimeout,
	})
}
