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
	digestPrefix = "sha256:"
	// parallelFetches bounds how many blobs are fetched in parallel.
	parallelFetches = 4
)

// blobPath returns the path of a stored blob. It returns an error for an invalid digest, which
// could otherwise lead to any path.
func (n *Node) blobPath(digest string) (string, error) {
	name, ok := strings.CutPrefix(digest, digestPrefix)
	if raw, err := hex.DecodeString(name); !ok || err != nil || len(raw) != sha256.Size || strings.ToLower(name) != name {
		return "", fmt.Errorf("digest %q: want sha256: and 64 hexadecimal digits", digest)
	}
	return n.dir("blobs", "sha256", name), nil
}

// arrivals are the blobs of a request, from its stream or from other hosts. They arrive while steps
// run.
type arrivals struct {
	node  *Node
	blobs map[string]*arrival
	// all is closed when every blob has arrived or failed.
	all chan struct{}
	// checked are verified blobs that the host had before.
	checked map[string]bool
}

// arrival is a blob that is being received. err is set before done is closed.
type arrival struct {
	done chan struct{}
	err  error
}

// receive starts receiving the blobs of a request, in the background.
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
	stream.Go(func() error { // Go of a limited group blocks
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
		_ = stream.Wait() // each blob has its own error
		close(a.all)
	}()
	return a, nil
}

// dropPartial removes partial blobs of an earlier agent.
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

// stream reads the blobs that follow a request. It drops a damaged blob and reads the following
// ones.
func (a *arrivals) stream(r io.Reader, streams []Stream) {
	var broken error
	for _, s := range streams {
		b, limited := a.blobs[s.Digest], &io.LimitedReader{R: r, N: s.Size}
		switch {
		case broken != nil:
			b.err = broken
		case a.node.has(s.Digest) != nil: // an error is found again on writing
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

// need waits for a blob and returns its path. It returns a missingError if the host does not have
// it.
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

// await waits for done. It returns an error if ctx ends or another run takes the lease.
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

// missingError means that the host does not have some content.
type missingError struct {
	digests []string
	err     error
}

func (e *missingError) Error() string { return fmt.Sprintf("content is missing: %v", e.err) }
func (e *missingError) Unwrap() error { return e.err }

// has returns nil if the blob exists and is undamaged. It removes a damaged blob.
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

// store stores the output of write as a blob, if its digest fits.
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

// verifier is a writer that computes the digest of its input and compares it.
type verifier struct {
	hash.Hash
	want string
}

func newVerifier(want string) *verifier { return &verifier{sha256.New(), want} }

func (v *verifier) digest() string { return digestPrefix + hex.EncodeToString(v.Sum(nil)) }

func (v *verifier) verify() error {
	if got := v.digest(); got != v.want {
		return fmt.Errorf("digest of what arrived is %s, want %s", got, v.want)
	}
	return nil
}

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

// dropUnused removes blobs that no applied step uses or used before its last change.
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
