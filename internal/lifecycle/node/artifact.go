package node

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// artifact is the kind of step that performs a plan.Artifact: it installs a file, or members of an
// archive, from a blob.
type artifact struct{ *plan.Artifact }

// placed is the digest and the metadata of a file that an artifact step has installed. observe
// reads the file again only if the metadata has changed.
type placed struct {
	Digest string   `json:"digest"`
	Stat   fileStat `json:"stat"`
}

// fileStat is the metadata of a file that changes whenever the file is replaced or written. Times
// are in nanoseconds since 1970.
type fileStat struct {
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"`
	CTime int64  `json:"ctime"`
}

// statOf returns the metadata of a path. It does not follow links.
func statOf(path string) (fileStat, error) {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return fileStat{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileStat{Inode: s.Ino, Size: s.Size, MTime: s.Mtim.Nano(), CTime: s.Ctim.Nano()}, nil
}

// paths returns the paths on the host of the files to install, sorted.
func (a artifact) paths() []string { return slices.Sorted(maps.Values(a.Files)) }

// observe implements kind. It compares the mode and the content of each installed file. For a file
// with new metadata but the same content, it updates r.Placed.
func (a artifact) observe(_ context.Context, s *session, r *record) (string, error) {
	for _, to := range a.paths() {
		if drift, err := s.modeDiffers(to, a.Mode, 0); drift != "" || err != nil {
			return drift, err
		}
		now, err := statOf(s.path(to))
		if err != nil {
			return "", err
		}
		p := r.Placed[to]
		if now == p.Stat {
			continue
		}
		digest, err := fileDigest(s.path(to))
		if err != nil {
			return "", err
		}
		if digest != p.Digest {
			return to + " has another content", nil
		}
		r.Placed[to] = placed{Digest: digest, Stat: now}
	}
	return "", nil
}

// capture implements kind. It records, and backs up, what is at the paths of the files.
func (a artifact) capture(_ context.Context, s *session, r *record) error {
	for _, to := range a.paths() {
		if err := s.capturePath(r, to); err != nil {
			return err
		}
	}
	return nil
}

// apply implements kind. It waits for the blob and installs the files. It restores paths that only
// an earlier version of the step had. It records the installed files in r.Placed.
func (a artifact) apply(ctx context.Context, s *session, r *record) error {
	mode, err := parseMode(a.Mode)
	if err != nil {
		return err
	}
	blob, err := s.need(ctx, a.Blob)
	if err != nil {
		return err
	}
	if err := s.keepPaths(r, a.paths()...); err != nil {
		return err
	}
	for _, to := range a.paths() {
		if err := s.makeParents(to); err != nil {
			return err
		}
	}
	r.Placed = make(map[string]placed)
	if a.Archive == "" {
		err = a.link(s, r, blob, mode)
	} else {
		err = a.extract(ctx, s, r, blob, mode)
	}
	if err != nil {
		return err
	}
	if err := s.System.Label(ctx, s.paths(a.paths())...); err != nil {
		return err
	}
	for to, p := range r.Placed {
		if p.Stat, err = statOf(s.path(to)); err != nil {
			return err
		}
		r.Placed[to] = p
	}
	return nil
}

// revert implements kind. It restores what was at the paths before.
func (a artifact) revert(_ context.Context, s *session, r *record) error { return s.restorePaths(r) }

// link installs a blob that is no archive. blob is the path of the stored blob. link makes a hard
// link if the file system and the modes allow it, else a copy. It records the digest in r.Placed.
// It returns an error unless a.Files has one file, with the name "".
func (a artifact) link(s *session, r *record, blob string, mode fs.FileMode) error {
	to, ok := a.Files[""]
	if !ok || len(a.Files) != 1 {
		return errors.New(`an artifact without an archive has one file, ""`)
	}
	r.Placed[to] = placed{Digest: a.Blob}
	at := s.path(to)
	if err := disk.Remove(disk.Beside(at)); err != nil {
		return err
	}
	if linked, err := s.linkBlob(blob, disk.Beside(at), mode); err != nil {
		return err
	} else if linked {
		if err := s.fault(disk.PointBeforeRename); err != nil {
			return err
		}
		if err := errors.Join(os.Rename(disk.Beside(at), at), disk.Remove(disk.Beside(at))); err != nil {
			return err
		}
		return s.writer().SyncDir(path.Dir(at))
	}
	in, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	return s.writeFile(at, mode, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}

// linkBlob makes the path in the argument to a hard link to a stored blob, and reports whether
// that was possible. All links of a file share its mode, so a blob with other links must have the
// mode already. A blob without other links gets the mode.
func (s *session) linkBlob(blob, to string, mode fs.FileMode) (bool, error) {
	var stat unix.Stat_t
	if err := unix.Stat(blob, &stat); err != nil {
		return false, &fs.PathError{Op: "stat", Path: blob, Err: err}
	}
	if stat.Nlink > 1 && fs.FileMode(stat.Mode).Perm() != mode {
		return false, nil
	}
	if err := os.Chmod(blob, mode); err != nil {
		return false, err
	}
	return os.Link(blob, to) == nil, nil
}

// extract installs the members of an archive that a.Files names, and records their digests in
// r.Placed. blob is the path of the stored archive. A member that is missing or is not a regular
// file is an error. Members that come before it are installed then.
func (a artifact) extract(ctx context.Context, s *session, r *record, blob string, mode fs.FileMode) error {
	in, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	var content io.Reader = in
	switch a.Archive {
	case "tar":
	case "tar.gz":
		if content, err = gzip.NewReader(in); err != nil {
			return fmt.Errorf("read archive %s: %w", a.Blob, err)
		}
	default:
		return fmt.Errorf("archive of kind %q: want tar or tar.gz", a.Archive)
	}
	missing := make(map[string]string, len(a.Files))
	for member, to := range a.Files {
		missing[memberName(member)] = to
	}
	archive := tar.NewReader(content)
	for len(missing) > 0 {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("archive %s has no file %s", a.Blob, strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
		}
		if err != nil {
			return fmt.Errorf("read archive %s: %w", a.Blob, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to, ok := missing[memberName(header.Name)]
		if !ok {
			continue
		}
		if header.Typeflag != tar.TypeReg {
			return fmt.Errorf("%s in archive %s is no regular file", header.Name, a.Blob)
		}
		v := newVerifier("")
		err = s.writeFile(s.path(to), mode, func(w io.Writer) error {
			_, err := io.Copy(io.MultiWriter(w, v), archive) //nolint:gosec // its digest was checked
			return err
		})
		if err != nil {
			return err
		}
		r.Placed[to] = placed{Digest: v.digest()}
		delete(missing, memberName(header.Name))
	}
	return nil
}

// memberName returns the cleaned name of a member of an archive. It is the same for kubelet and
// ./kubelet.
func memberName(name string) string { return path.Clean(name) }
