package node

import (
	"context"
	"io/fs"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// directory is the kind of step that performs a plan.Directory: it creates a directory and sets its
// mode.
type directory struct{ *plan.Directory }

// observe implements kind. It checks that the directory exists with its mode, not its content.
func (d directory) observe(_ context.Context, s *session, _ *record) (string, error) {
	return s.modeDiffers(d.Path, d.Mode, fs.ModeDir)
}

// capture implements kind. It records whether the directory exists, with its mode, owner and
// entries.
func (d directory) capture(_ context.Context, s *session, r *record) error {
	return s.capturePath(r, d.Path)
}

// apply implements kind. It restores a path that only an earlier version of the step had.
func (d directory) apply(ctx context.Context, s *session, r *record) error {
	if err := s.keepPaths(r, d.Path); err != nil {
		return err
	}
	mode, err := parseMode(d.Mode)
	if err != nil {
		return err
	}
	if err := s.makeParents(d.Path); err != nil {
		return err
	}
	if err := s.makeDirectory(d.Path, mode); err != nil {
		return err
	}
	return s.System.Label(ctx, s.path(d.Path))
}

// revert implements kind. It restores the former directory, or removes the new one. A new directory
// that is not empty stays unless it is Owned.
func (d directory) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }
