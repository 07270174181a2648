package node

import (
	"context"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// modules is the kind of step that performs a plan.Modules: it loads kernel modules now and at each
// boot.
type modules struct{ *plan.Modules }

// content returns the content of the file with the modules to load at boot.
func (m modules) content() string { return strings.Join(m.Names, "\n") + "\n" }

// observe implements kind. It checks that all modules are loaded, and compares the file that is
// read at boot.
func (m modules) observe(_ context.Context, s *session, _ *record) (string, error) {
	for _, name := range m.Names {
		if !s.System.HasModule(name) {
			return "module " + name + " is not loaded", nil
		}
	}
	return s.differs(m.Path, bootFileMode, digestOf([]byte(m.content())))
}

// capture implements kind. It records only the file, because undoing unloads no module.
func (m modules) capture(_ context.Context, s *session, r *record) error {
	return s.capturePath(r, m.Path)
}

// apply implements kind. It writes the names of the modules to the file that is read at boot, and
// loads those that are missing.
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
		// An error of modprobe is ignored if the module is there afterwards: modprobe knows only modules
		// with files of their own.
		if err := s.System.LoadModule(ctx, name); err != nil && !s.System.HasModule(name) {
			return err
		}
	}
	return nil
}

// revert implements kind. It restores the file that is read at boot. The modules stay loaded.
func (m modules) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }
