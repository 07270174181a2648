package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// file performs a plan.File. After the step was applied, Content is the digest of the content.
type file struct{ *plan.File }

func (f file) observe(_ context.Context, s *session, _ *record) (string, error) {
	return s.differs(f.Path, f.Mode, f.Content)
}

func (f file) capture(_ context.Context, s *session, r *record) error {
	return s.capturePath(r, f.Path)
}

func (f file) apply(ctx context.Context, s *session, r *record) error {
	if err := s.keepPaths(r, f.Path); err != nil {
		return err
	}
	return s.place(ctx, f.Path, f.Mode, f.Content)
}

func (f file) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }

// place writes a file and creates missing parents.
func (s *session) place(ctx context.Context, path, mode, content string) error {
	bits, err := parseMode(mode)
	if err != nil {
		return err
	}
	if err := s.makeParents(path); err != nil {
		return err
	}
	err = s.writeFile(s.path(path), bits, func(w io.Writer) error {
		_, err := io.WriteString(w, content)
		return err
	})
	if err != nil {
		return err
	}
	return s.System.Label(ctx, s.path(path))
}

// differs describes how a file differs from its mode and digest. It returns "" if it does not
// differ.
func (s *session) differs(path, mode, digest string) (string, error) {
	if drift, err := s.modeDiffers(path, mode, 0); drift != "" || err != nil {
		return drift, err
	}
	found, err := fileDigest(s.path(path))
	if err != nil {
		return "", err
	}
	if found != digest {
		return path + " has another content", nil
	}
	return "", nil
}

// modeDiffers describes how a path differs in existence, type or mode. It returns "" if it does
// not.
func (s *session) modeDiffers(path, mode string, want fs.FileMode) (string, error) {
	bits, err := parseMode(mode)
	if err != nil {
		return "", err
	}
	stat := os.Lstat
	if want == fs.ModeDir {
		stat = os.Stat
	}
	info, err := stat(s.path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path + " is missing", nil
	case err != nil:
		return "", err
	case info.Mode().Type() != want:
		return fmt.Sprintf("%s is a %s", path, info.Mode().Type()), nil
	case info.Mode().Perm() != bits:
		return fmt.Sprintf("%s has mode %#o, want %#o", path, info.Mode().Perm(), bits), nil
	}
	return "", nil
}
