package node

import (
	"context"
	"slices"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// process is the kind of step that performs a plan.Unit: it installs and starts a systemd unit.
type process struct{ *plan.Unit }

// observe implements kind. It checks that the unit is installed as the step defines it, enabled,
// and running.
func (p process) observe(ctx context.Context, s *session, _ *record) (string, error) {
	status, err := s.unit(ctx, p.Name)
	switch {
	case err != nil:
		return "", err
	case !status.Installed:
		return "unit " + p.Name + " is missing", nil
	case status.DefinitionHash != unit.Hash(*p.Unit):
		return "unit " + p.Name + " was changed", nil
	case !status.Running:
		return "unit " + p.Name + " does not run: " + status.Detail, nil
	}
	return "", nil
}

// capture implements kind. It records the name of the unit, which undoing removes.
func (p process) capture(_ context.Context, _ *session, r *record) error {
	if !slices.Contains(r.Before.Units, p.Name) {
		r.Before.Units = append(r.Before.Units, p.Name)
	}
	return nil
}

// apply implements kind. It installs the unit and always restarts it. It is called if the unit or
// its input has changed, or if the unit does not run. It is also called if an earlier agent may
// have been killed before the restart. It removes units that only an earlier version of the step
// had.
func (p process) apply(ctx context.Context, s *session, r *record) error {
	for _, name := range slices.Clone(r.Before.Units) {
		if name == p.Name {
			continue
		}
		if err := s.Units.Remove(ctx, name); err != nil {
			return err
		}
		r.Before.Units = slices.DeleteFunc(r.Before.Units, func(other string) bool { return other == name })
	}
	delete(s.units, p.Name)
	if err := s.Units.Install(ctx, *p.Unit); err != nil {
		return err
	}
	if err := s.fault("unit/installed"); err != nil {
		return err
	}
	return s.Units.Restart(ctx, p.Name)
}

// revert implements kind. It stops and removes the recorded units.
func (p process) revert(ctx context.Context, s *session, r *record) error {
	for _, name := range slices.Backward(r.Before.Units) {
		delete(s.units, name)
		if err := s.Units.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// unit returns the status of a unit, for observe. The first call in a session observes all units of
// the state at once, and later calls use the result. A unit that a step has changed since, or that
// is not in the state, is observed again in each call.
func (s *session) unit(ctx context.Context, name string) (unit.Status, error) {
	if s.units == nil {
		var names []string
		for _, r := range s.state.Steps {
			if r.Step.Unit != nil {
				names = append(names, r.Step.Unit.Name)
			}
		}
		all, err := s.Units.Observe(ctx, names)
		if err != nil {
			return unit.Status{}, err
		}
		s.units = all
	}
	if status, ok := s.units[name]; ok {
		return status, nil
	}
	one, err := s.Units.Observe(ctx, []string{name})
	return one[name], err
}
