package node

import (
	"context"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// packages is the kind of step that performs a plan.Packages: it installs packages of the
// distribution.
type packages struct{ *plan.Packages }

// missing returns those of the step's packages that are not installed.
func (p packages) missing(ctx context.Context, s *session) ([]string, error) {
	installed, err := s.System.Packages(ctx, p.Manager)
	if err != nil {
		return nil, err
	}
	return without(p.Names, installed), nil
}

// observe implements kind. It names the packages of the step that are not installed.
func (p packages) observe(ctx context.Context, s *session, _ *record) (string, error) {
	missing, err := p.missing(ctx, s)
	if err != nil || len(missing) == 0 {
		return "", err
	}
	return "not installed: " + strings.Join(missing, ", "), nil
}

// capture implements kind. It records all packages that are installed before apply, unless an
// interrupted apply has done so. apply needs the list to find the dependencies that come with an
// installation.
func (p packages) capture(ctx context.Context, s *session, r *record) (err error) {
	if r.Before.Installed == nil {
		r.Before.Installed, err = s.System.Packages(ctx, p.Manager)
	}
	return err
}

// apply implements kind. It installs the missing packages. In the record it then replaces the list
// of capture by the packages that are installed because of this step.
func (p packages) apply(ctx context.Context, s *session, r *record) error {
	missing, err := p.missing(ctx, s)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		if err := s.System.Install(ctx, p.Manager, missing); err != nil {
			return err
		}
	}
	// Packages that only an earlier version of the step named stay installed until the step is undone,
	// because nothing shows who uses them.
	ours, err := p.ours(ctx, s, r)
	if err != nil {
		return err
	}
	r.Before.Packages, r.Before.Installed = ours, nil
	return nil
}

// revert implements kind. It uninstalls the packages that are installed because of this step. It
// keeps those on which other packages now depend, and adds a note that names them.
func (p packages) revert(ctx context.Context, s *session, r *record) error {
	ours, err := p.ours(ctx, s, r)
	if err != nil || len(ours) == 0 {
		return err
	}
	needed, err := s.System.Uninstall(ctx, p.Manager, ours)
	if len(needed) > 0 {
		r.notes = append(r.notes, "left, because other packages need them now: "+strings.Join(needed, ", "))
	}
	return err
}

// ours returns the packages that are installed because of this step, sorted. These are the recorded
// ones that are still installed. If capture has recorded a list that apply has not replaced, they
// are also all packages that are not in that list.
func (p packages) ours(ctx context.Context, s *session, r *record) ([]string, error) {
	now, err := s.System.Packages(ctx, p.Manager)
	if err != nil {
		return nil, err
	}
	var ours []string
	if r.Before.Installed != nil {
		ours = without(now, r.Before.Installed)
	}
	for _, name := range r.Before.Packages {
		if slices.Contains(now, name) && !slices.Contains(ours, name) {
			ours = append(ours, name)
		}
	}
	slices.Sort(ours)
	return ours, nil
}

// without returns the entries of list that are not in other.
func without(list, other []string) []string {
	var left []string
	for _, entry := range list {
		if !slices.Contains(other, entry) {
			left = append(left, entry)
		}
	}
	return left
}
