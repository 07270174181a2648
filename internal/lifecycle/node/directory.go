package node

import (
	"context"
	"io/fs"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// directory performs a plan.Directory.
type directory struct{ *plan.Directory }

func (d directory) observe(_ context.Context, s *session, _ *record) (string, error) {
	return s.modeDiffers(d.Path, d.Mode, fs.ModeDir)
}

func (d directory) capture(_ context.Context, s *session, r *record) error {
	return s.capturePath(r, d.Path)
}

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

func (d directory) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }
