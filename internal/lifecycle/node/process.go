package node

import (
	"context"
	"slices"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// process performs a plan.Unit.
type process struct{ *plan.Unit }

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

func (p process) capture(_ context.Context, _ *session, r *record) error {
	if !slices.Contains(r.Before.Units, p.Name) {
		r.Before.Units = append(r.Before.Units, p.Name)
	}
	return nil
}

// apply always restarts the unit. It is called if the unit or its input changed, if the unit does
// not run, or if an earlier agent may have been killed before the restart.
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

func (p process) revert(ctx context.Context, s *session, r *record) error {
	for _, name := range slices.Backward(r.Before.Units) {
		delete(s.units, name)
		if err := s.Units.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// unit returns the status of a unit. The first call reads all recorded units at once, before any
// changes.
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
