package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/disk"
)

const (
	// digestPrefix begins every digest, as in sha256:HEX.
	digestPrefix = "sha256:"
	// parallelFetches bounds how many blobs are fetched in parallel.
	parallelFetches = 4
)

// blobPath returns the path at which a blob is stored, whether or not it exists. A blob is a file
// or archive that steps install, identified by its digest. An invalid digest is an error, since it
// could otherwise lead to any path.
func (n *Node) blobPath(digest string) (string, error) {
	name, ok := strings.CutPrefix(digest, digestPrefix)
	if raw, err := hex.DecodeString(name); !ok || err != nil || len(raw) != sha256.Size || strings.ToLower(name) != name {
		return "", fmt.Errorf("digest %q: want sha256: and 64 hexadecimal digits", digest)
	}
	return n.dir("blobs", "sha256", name), nil
}

// arrivals are the blobs that a request brings, from its streams or from other hosts. They arrive
// in the background while steps run.
type arrivals struct {
	node  *Node
	blobs map[string]*arrival
	// all is closed when every blob has arrived or failed.
	all chan struct{}
	// checked are verified blobs that the host had before.
	checked map[string]bool
}

// arrival is one blob that a request brings. done is closed when the blob is stored or has failed.
// err is set before that; nil means that the blob is stored.
type arrival struct {
	done chan struct{}
	err  error
}

// receive starts to receive the blobs of req in the background: those of Streams from r, and those
// of Fetches from other hosts. Before, it removes partial blobs of an earlier agent.
//
// The error is about the disk, or about a digest in two streams. A blob that cannot be received has
// its own error in the result. The end of ctx ends the fetches, but not the reading of r.
func (n *Node) receive(ctx context.Context, r io.Reader, req Request) (*arrivals, error) {
	a := &arrivals{node: n, blobs: make(map[string]*arrival), checked: make(map[string]bool), all: make(chan struct{})}
	if err := n.dropPartial(); err != nil {
		return nil, err
	}
	for _, s := range req.Streams {
		if a.blobs[s.Digest] != nil {
			return nil, fmt.Errorf("request has %s in two streams", s.Digest)
		}
		a.blobs[s.Digest] = &arrival{done: make(chan struct{})}
	}
	queue := make([]Fetch, 0, len(req.Fetches))
	for _, f := range req.Fetches {
		if a.blobs[f.Digest] == nil {
			a.blobs[f.Digest] = &arrival{done: make(chan struct{})}
			queue = append(queue, f)
		}
	}
	// The map of blobs does not change from here on, so it is read without a lock.
	var stream, fetch errgroup.Group
	fetch.SetLimit(parallelFetches)
	stream.Go(func() error {
		a.stream(r, req.Streams)
		return nil
	})
	stream.Go(func() error { // in the background, because Go of a group with a limit blocks
		for _, f := range queue {
			fetch.Go(func() error {
				b := a.blobs[f.Digest]
				defer close(b.done)
				b.err = a.fetch(ctx, f)
				return nil
			})
		}
		return fetch.Wait()
	})
	go func() {
		_ = stream.Wait() // always nil: each blob has its own error
		close(a.all)
	}()
	return a, nil
}

// dropPartial removes partial blobs, which an agent that was killed has left, and creates the
// directory of blobs if it is missing.
func (n *Node) dropPartial() error {
	dir := n.dir("blobs", "sha256")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return full(dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			if err := disk.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// stream reads the blobs of the streams from r, in their order, stores them, and closes their
// arrivals. It skips the content of blobs that the host has. A blob with a wrong digest fails
// alone, and the following ones are read. If r ends early, all remaining blobs fail that the host
// does not have.
func (a *arrivals) stream(r io.Reader, streams []Stream) {
	var broken error
	for _, s := range streams {
		b, limited := a.blobs[s.Digest], &io.LimitedReader{R: r, N: s.Size}
		switch {
		case broken != nil:
			b.err = broken
		case a.node.has(s.Digest) != nil: // the host does not have the blob
			b.err = a.node.store(s.Digest, func(w io.Writer) error {
				_, err := io.Copy(w, limited)
				return err
			})
		}
		if _, err := io.Copy(io.Discard, limited); err != nil && broken == nil {
			broken = err
		}
		if limited.N > 0 && broken == nil {
			broken = fmt.Errorf("receive %s: %w", s.Digest, io.ErrUnexpectedEOF)
		}
		if broken != nil && b.err == nil {
			b.err = a.node.has(s.Digest)
		}
		close(b.done)
	}
}

// fetch stores a blob from the first of its sources that has it. It does nothing if the host has
// the blob. If no source has it, the error contains the errors of all sources.
func (a *arrivals) fetch(ctx context.Context, f Fetch) error {
	if a.node.has(f.Digest) == nil {
		return nil
	}
	errs := []error{errors.New("no host has it")}
	for _, source := range f.Sources {
		err := a.node.store(f.Digest, func(w io.Writer) error { return fetchBlob(ctx, source, f.Token, f.Digest, w) })
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("fetch %s: %w", f.Digest, errors.Join(errs...))
}

// need returns the path of a verified blob, which a step is about to install. It waits for a blob
// that the request brings. It returns a missingError if the host does not have the blob. It returns
// another error if ctx ends, or another run takes the lease, during the wait.
func (s *session) need(ctx context.Context, digest string) (string, error) {
	path, err := s.blobPath(digest)
	if err != nil {
		return "", err
	}
	if b := s.content.blobs[digest]; b != nil {
		if err := s.await(ctx, b.done); err != nil {
			return "", err
		}
		if b.err != nil {
			return "", &missingError{[]string{digest}, b.err}
		}
		return path, nil
	}
	if !s.content.checked[digest] {
		if err := s.has(digest); err != nil {
			return "", &missingError{[]string{digest}, err}
		}
		s.content.checked[digest] = true
	}
	return path, nil
}

// leaseInterval is the interval of lease checks while the agent waits.
const leaseInterval = 200 * time.Millisecond

// await waits until done is closed, and checks the lease in intervals. It returns the cause if ctx
// ends, and a leaseError if another run has taken the lease.
func (s *session) await(ctx context.Context, done <-chan struct{}) error {
	tick := time.NewTicker(leaseInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if err := s.holds(s.request.Lease); err != nil {
				return err
			}
		}
	}
}

// missingError means that the host lacks the content with these digests. err is the reason. The
// engine then sends the content itself.
type missingError struct {
	digests []string
	err     error
}

func (e *missingError) Error() string { return fmt.Sprintf("content is missing: %v", e.err) }
func (e *missingError) Unwrap() error { return e.err }

// has returns nil if the host has the blob, undamaged. Otherwise the error is the reason. It reads
// the whole blob, and removes a damaged one.
func (n *Node) has(digest string) error {
	path, err := n.blobPath(digest)
	if err != nil {
		return err
	}
	found, err := fileDigest(path)
	if err != nil {
		return fmt.Errorf("%s is not on this host: %w", digest, err)
	}
	if found != digest {
		return errors.Join(fmt.Errorf("%s is damaged on this host", digest), disk.Remove(path))
	}
	return nil
}

// store stores what write writes as the blob with this digest. If the content has another digest,
// or write fails, store returns an error and stores nothing.
func (n *Node) store(digest string, write func(io.Writer) error) error {
	path, err := n.blobPath(digest)
	if err != nil {
		return err
	}
	return n.writeFile(path, 0o600, func(w io.Writer) error {
		v := newVerifier(digest)
		if err := write(io.MultiWriter(w, v)); err != nil {
			return err
		}
		return v.verify()
	})
}

// verifier is a writer that computes the SHA-256 digest of its input. After the input, verify
// returns an error if the digest is not want, and digest returns it as sha256:HEX. want may be ""
// if verify is not called.
type verifier struct {
	hash.Hash
	want string
}

// newVerifier returns a verifier for content whose digest must be want.
func newVerifier(want string) *verifier { return &verifier{sha256.New(), want} }

// digest returns the digest of the input so far, as sha256:HEX.
func (v *verifier) digest() string { return digestPrefix + hex.EncodeToString(v.Sum(nil)) }

// verify returns an error if the digest of the input is not the wanted one.
func (v *verifier) verify() error {
	if got := v.digest(); got != v.want {
		return fmt.Errorf("digest of the received data is %s, want %s", got, v.want)
	}
	return nil
}

// fileDigest returns the digest of a file's content, as sha256:HEX. It follows links.
func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	v := newVerifier("")
	if _, err := io.Copy(v, f); err != nil {
		return "", err
	}
	return v.digest(), nil
}

// dropUnused removes stored blobs that no step in s uses. It keeps the blob that a step used before
// its last change, for a rollback.
func (n *Node) dropUnused(s *state) error {
	used := make(map[string]bool)
	for _, r := range s.Steps {
		if r.Step.Artifact != nil {
			used[strings.TrimPrefix(r.Step.Artifact.Blob, digestPrefix)] = true
			used[strings.TrimPrefix(r.Previous, digestPrefix)] = true
		}
	}
	dir := n.dir("blobs", "sha256")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !used[e.Name()] {
			if err := disk.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
