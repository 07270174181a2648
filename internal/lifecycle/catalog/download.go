package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/disk"
)

const (
	// digestAlgorithm begins a digest, and is the name of the directory of complete files in
	// Source.Dir.
	digestAlgorithm = "sha256"
	// dirMode is the mode of the directories in Source.Dir.
	dirMode = 0o750
)

// Open opens the file f, which must have this digest, for reading. If s.Dir does not have the file,
// or has it damaged, Open downloads, verifies and stores it. It resumes an interrupted download.
//
// If several callers, in any process, need the same digest, only one of them downloads, and the
// others wait. The caller closes the file.
func (s *Source) Open(ctx context.Context, f File, digest string) (*os.File, error) {
	if !digestPattern.MatchString(digest) {
		return nil, fmt.Errorf("open %s: %q is not a digest", f.Key(), digest)
	}
	file, err := s.open(ctx, f, digest)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("%w: make room in %s; the download then goes on where it ended", err, s.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", f.Key(), err)
	}
	return file, nil
}

// open does the work of Open. Its errors do not name the file.
func (s *Source) open(ctx context.Context, f File, digest string) (*os.File, error) {
	sum := strings.TrimPrefix(digest, digestAlgorithm+":")
	kept, partial := filepath.Join(s.Dir, digestAlgorithm, sum), filepath.Join(s.Dir, "partial", sum)
	if file, err := openKept(kept, sum); file != nil || err != nil {
		return file, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(kept), dirMode), os.MkdirAll(filepath.Dir(partial), dirMode)); err != nil {
		return nil, err
	}
	// The lock ends when the file is closed, or with the process.
	file, err := disk.Lock(ctx, partial)
	if err != nil {
		return nil, err
	}
	defer disk.Unlock(file)
	// Another process may have downloaded the file while this one waited for the lock.
	if file, err := openKept(kept, sum); file != nil || err != nil {
		return file, errors.Join(err, os.Remove(partial))
	}
	if err := s.download(ctx, f, sum, file); err != nil {
		return nil, err
	}
	if err := os.Rename(partial, kept); err != nil {
		return nil, err
	}
	if err := (disk.Writer{}).SyncDir(filepath.Dir(kept)); err != nil {
		return nil, err
	}
	return os.Open(kept)
}

// openKept opens a stored file after it has verified its digest. sum is the digest without the
// prefix. The result is nil, without an error, if the file does not exist or is damaged.
func openKept(path, sum string) (*os.File, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content := sha256.New()
	if _, err = io.Copy(content, file); err == nil && sumOf(content) == sum {
		_, err = file.Seek(0, io.SeekStart)
		return file, err
	}
	return nil, errors.Join(err, file.Close())
}

// download completes the file, which may have the beginning of f from an earlier download, and
// checks its digest. sum is the wanted digest without the prefix. If the digest of a resumed file
// is wrong, it downloads the whole file again. If the digest is wrong in the end, it removes the
// file and returns an error.
func (s *Source) download(ctx context.Context, f File, sum string, file *os.File) error {
	d := &download{source: s, url: f.URL, file: file, content: sha256.New()}
	var err error
	if d.size, err = io.Copy(d.content, file); err != nil {
		return err
	}
	resumed := d.size > 0
	if !resumed || sumOf(d.content) != sum {
		err = d.finish(ctx)
	}
	// The existing content may have been the beginning of another file.
	if err == nil && resumed && sumOf(d.content) != sum {
		if err = d.restart(); err == nil {
			err = d.finish(ctx)
		}
	}
	if err != nil {
		return err
	}
	if got := sumOf(d.content); got != sum {
		return errors.Join(
			fmt.Errorf("%s has digest %s:%s, want %s:%s: it was changed on the way, or %s. The download was removed; put the right file there, or the right digest into the catalogue, and try again",
				s.shown(f.URL), digestAlgorithm, got, digestAlgorithm, sum, s.advice("has another file")),
			os.Remove(file.Name()))
	}
	return file.Sync()
}

// download is the state of a file that is being downloaded. content is the hash of the bytes in
// file.
type download struct {
	source  *Source
	url     string
	file    *os.File
	content hash.Hash
	// size is the present size of the file, and most its largest size so far.
	size, most int64
}

// finish downloads the part of the file that is missing, with retries. It returns an error after
// maxFailures attempts in a row that brought no new data.
func (d *download) finish(ctx context.Context) error {
	d.most = d.size
	return persist(ctx, func() (bool, error) {
		err := d.advance(ctx)
		further := d.size > d.most
		d.most = max(d.most, d.size)
		return further, err
	})
}

// advance makes one request for the missing part, and appends what arrives, also if the transfer
// then fails. If the server sends the whole file, advance replaces the content. If the server
// reports that the file ends before the missing part, it returns nil, and the caller checks the
// digest.
func (d *download) advance(ctx context.Context) (err error) {
	response, err := d.source.get(ctx, d.source.client(), d.url, d.size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch response.StatusCode {
	case http.StatusRequestedRangeNotSatisfiable:
		return nil // the file has no more bytes; the caller checks its digest
	case http.StatusPartialContent:
		if want := fmt.Sprintf("bytes %d-", d.size); !strings.HasPrefix(response.Header.Get("Content-Range"), want) {
			return fmt.Errorf("get %s: the answer is another part of the file than was asked for", d.source.shown(d.url))
		}
	default: // the server sends the whole file
		if err := d.restart(); err != nil {
			return err
		}
	}
	n, err := io.Copy(io.MultiWriter(d.file, d.content), response.Body)
	d.size += n
	return err
}

// restart makes the file and its hash empty, so that the download starts from the beginning.
func (d *download) restart() error {
	if d.size == 0 {
		return nil
	}
	d.content.Reset()
	d.size = 0
	_, err := d.file.Seek(0, io.SeekStart)
	return errors.Join(err, d.file.Truncate(0))
}

// sumOf returns the hash as hexadecimal digits.
func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
