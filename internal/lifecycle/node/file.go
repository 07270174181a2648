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

// file is the kind of step that performs a plan.File. Content is the content when the step is
// applied, and the digest of the content in a stored record.
type file struct{ *plan.File }

// observe implements kind. It compares the mode and the content. f must come from a stored record,
// where Content is a digest.
func (f file) observe(_ context.Context, s *session, _ *record) (string, error) {
	return s.differs(f.Path, f.Mode, f.Content)
}

// capture implements kind. It records, and backs up, what is at the path.
func (f file) capture(_ context.Context, s *session, r *record) error {
	return s.capturePath(r, f.Path)
}

// apply implements kind. It restores a path that only an earlier version of the step had.
func (f file) apply(ctx context.Context, s *session, r *record) error {
	if err := s.keepPaths(r, f.Path); err != nil {
		return err
	}
	return s.place(ctx, f.Path, f.Mode, f.Content)
}

// revert implements kind. It restores what was at the path before.
func (f file) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }

// place writes a file of the host, creates its missing parents, and sets its security label. mode
// is octal, such as "0644".
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

// differs describes how a file of the host differs from the mode and the digest that it should
// have, or says that it is missing. The result is "" if it does not differ.
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

// modeDiffers describes how a path of the host differs in existence, type or permissions. The
// result is "" if it does not differ. want is the type: fs.ModeDir for a directory, 0 for a regular
// file. A symbolic link matches only if want is fs.ModeDir and the link leads to a directory.
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
