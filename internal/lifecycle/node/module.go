package node

import (
	"context"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// modules performs a plan.Modules.
type modules struct{ *plan.Modules }

func (m modules) content() string { return strings.Join(m.Names, "\n") + "\n" }

func (m modules) observe(_ context.Context, s *session, _ *record) (string, error) {
	for _, name := range m.Names {
		if !s.System.HasModule(name) {
			return "module " + name + " is not loaded", nil
		}
	}
	return s.differs(m.Path, bootFileMode, digestOf([]byte(m.content())))
}

func (m modules) capture(_ context.Context, s *session, r *record) error {
	return s.capturePath(r, m.Path)
}

func (m modules) apply(ctx context.Context, s *session, r *record) error {
	if err := s.keepPaths(r, m.Path); err != nil {
		return err
	}
	if err := s.place(ctx, m.Path, bootFileMode, m.content()); err != nil {
		return err
	}
	for _, name := range m.Names {
		if s.System.HasModule(name) {
			continue
		}
		// Only the result counts, because modprobe knows only modules with files of their own.
		if err := s.System.LoadModule(ctx, name); err != nil && !s.System.HasModule(name) {
			return err
		}
	}
	return nil
}

func (m modules) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }
