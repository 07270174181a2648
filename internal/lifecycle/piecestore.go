package lifecycle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// ErrStale is returned by Store.Save and Store.Remove if another process has changed the state of
// the cluster since it was loaded. Nothing is written then, and the caller must load the state
// again.
var ErrStale = errors.New("another process has changed it since it was read here, and nothing of that is overwritten; run it again")

// maxWrites is how many stored records of hosts are written or removed in parallel.
const maxWrites = 16

// Piece is one of the documents in which the state of a cluster is stored: the state itself, or the
// record with the certificates of one host.
type Piece struct {
	Content []byte
	// Version changes with each write of other content. It is "" for a piece that is not stored.
	Version string
}

// PieceStore stores the pieces of one cluster's state: the state itself, and a record with the
// certificates of each host. SaveState writes to it, and LoadState reads it. Every write is atomic.
// A write or removal changes nothing and returns ErrStale if the stored piece has another version
// than the given one. The version of a piece that is not stored is "". Records of different hosts
// are written and removed from several goroutines.
type PieceStore interface {
	// State reads the piece with the state. ok is false, without an error, if none is stored.
	State(ctx context.Context) (p Piece, ok bool, err error)
	// Hosts reads all stored records by host, also records of hosts that the state does not list.
	Hosts(ctx context.Context) (map[string]Piece, error)
	// WriteState, WriteHost and RemoveHost change one piece, whose stored version the caller passes.
	// The writes return the new version.
	WriteState(ctx context.Context, content []byte, version string) (string, error)
	WriteHost(ctx context.Context, host string, content []byte, version string) (string, error)
	RemoveHost(ctx context.Context, host, version string) error
	// RemoveState removes the state.
	RemoveState(ctx context.Context, version string) error
	// Name returns how messages call a piece, such as its path: the record of a host, or the state if
	// host is "".
	Name(host string) string
}

// stored remembers what this process last loaded from the PieceStore, or saved to it: the content
// and version of the state, and the records of hosts. SaveState compares with it to write only what
// has changed.
type stored struct {
	content []byte // content of the stored state; nil if none is stored
	version string
	hosts   map[string]storedHost
}

// storedHost describes the stored record of a host: its version, the digest of its content, and
// whether the stored state lists the host.
type storedHost struct {
	version string
	digest  [sha256.Size]byte
	named   bool // the stored state lists the host
}

// LoadState reads the state of a cluster with the certificates of its hosts. It returns nil without
// an error if no state is stored. A missing record of a host is no error: the next run makes new
// certificates for the host. It returns an error for a damaged piece, and for a piece that a later
// version of Orrery has written.
func LoadState(ctx context.Context, pieces PieceStore, cluster string) (*State, error) {
	piece, ok, err := pieces.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	if !ok {
		return nil, nil //nolint:nilnil // Store.Load promises that
	}
	s, named, err := decodeState(piece.Content)
	if later, ok := errors.AsType[laterError](err); ok {
		return nil, fmt.Errorf("read the state of cluster %s: %s: %w", cluster, pieces.Name(""), later)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %s is damaged (%w); restore it from a backup: it has the cluster's keys", cluster, pieces.Name(""), err)
	}
	records, err := pieces.Hosts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	s.stored = stored{content: piece.Content, version: piece.Version}
	s.know(records)
	for _, host := range named {
		record, ok := records[host]
		if !ok {
			continue // the certificates of the host are made again
		}
		ours, err := s.decodeHost(host, record.Content)
		if later, ok := errors.AsType[laterError](err); ok {
			return nil, fmt.Errorf("read the state of cluster %s: %s: %w", cluster, pieces.Name(host), later)
		}
		if err != nil {
			return nil, fmt.Errorf("read the state of cluster %s: %s is damaged (%w); restore it from a backup, or remove it: then host %s gets new certificates",
				cluster, pieces.Name(host), err, host)
		}
		known := s.stored.hosts[host]
		known.named = ours
		s.stored.hosts[host] = known
	}
	return s, nil
}

// know replaces what s remembers of the stored records of hosts by the given records. All of them
// count as not listed by the stored state, until the caller marks them.
func (s *State) know(records map[string]Piece) {
	s.stored.hosts = make(map[string]storedHost, len(records))
	for host, record := range records {
		s.stored.hosts[host] = storedHost{version: record.Version, digest: sha256.Sum256(record.Content)}
	}
}

// SaveState writes those pieces of a state that have changed since s was loaded or saved. It
// increases the generation of s with each write of the state, and sets the ID if s has none. Two
// calls for one s must not overlap. The first write is that of the state. If another process has
// saved the state since s was loaded, this write fails with ErrStale, and nothing is written. If
// SaveState is killed at any write, no key that a host has is lost:
//
//  1. Records that the saved state does not list are removed. A killed SaveState left them.
//  2. The state is written before the records. No host has received keys that a record still lacks.
//  3. Records that the new state does not list are removed last.
func SaveState(ctx context.Context, pieces PieceStore, s *State) error {
	if err := s.save(ctx, pieces); err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	return nil
}

// save is SaveState without the name of the cluster in its errors.
func (s *State) save(ctx context.Context, pieces PieceStore) error {
	s.complete()
	kept, hosts := s.pieces()
	state, err := encodePiece(kept)
	if err != nil {
		return err
	}
	records := make(map[string][]byte, len(hosts))
	for host, record := range hosts {
		if records[host], err = encodePiece(record); err != nil {
			return err
		}
	}
	is := &s.stored
	leftover := func(host string) bool { return !is.hosts[host].named }
	gone := func(host string) bool { return records[host] == nil }
	leftovers := slices.ContainsFunc(slices.Collect(maps.Keys(is.hosts)), leftover)
	if bytes.Equal(state, is.content) && len(s.changed(records)) == 0 && !leftovers {
		return nil
	}
	if is.content != nil && leftovers {
		if err := s.claim(ctx, pieces); err != nil {
			return err
		}
		if err := s.removeHosts(ctx, pieces, leftover); err != nil {
			return err
		}
	}
	first := is.content == nil
	if err := s.writeState(ctx, pieces, kept); err != nil {
		return err
	}
	if first { // an earlier cluster with this name may have left records
		left, err := pieces.Hosts(ctx)
		if err != nil {
			return err
		}
		s.know(left)
	}
	if err := s.writeHosts(ctx, pieces, records); err != nil {
		return err
	}
	return s.removeHosts(ctx, pieces, gone)
}

// RemoveState removes the stored state of a cluster and all records of its hosts. Like SaveState,
// it first writes the state, so that other processes cannot save theirs afterwards. It removes
// nothing and returns ErrStale if another process has changed the state since s was loaded. The
// same holds if s was never saved and another process has saved a state. The state is removed last,
// so that no record stays without it. If no state is stored, RemoveState does nothing.
func RemoveState(ctx context.Context, pieces PieceStore, s *State) error {
	if err := s.remove(ctx, pieces); err != nil {
		return fmt.Errorf("forget cluster %s: %w", s.Cluster, err)
	}
	return nil
}

// remove is RemoveState without the name of the cluster in its errors.
func (s *State) remove(ctx context.Context, pieces PieceStore) error {
	if s.stored.content == nil {
		if _, ok, err := pieces.State(ctx); err != nil || !ok {
			return err
		}
		return fmt.Errorf("%s: %w", pieces.Name(""), ErrStale)
	}
	if err := s.claim(ctx, pieces); err != nil {
		return err
	}
	left, err := pieces.Hosts(ctx)
	if err != nil {
		return err
	}
	s.know(left)
	if err := s.removeHosts(ctx, pieces, func(string) bool { return true }); err != nil {
		return err
	}
	if err := pieces.RemoveState(ctx, s.stored.version); err != nil {
		return fmt.Errorf("%s: %w", pieces.Name(""), err)
	}
	s.stored = stored{}
	return nil
}

// claim increases the generation in the stored state and in s, and changes nothing else. Other
// processes can then no longer save the states that they have loaded. It returns ErrStale if the
// state was written since s was loaded.
func (s *State) claim(ctx context.Context, pieces PieceStore) error {
	kept := map[string]json.RawMessage{}
	if err := json.Unmarshal(s.stored.content, &kept); err != nil {
		return fmt.Errorf("%s: %w", pieces.Name(""), err)
	}
	var err error
	if kept["generation"], err = json.Marshal(s.Generation + 1); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	content, err := encodePiece(kept)
	if err != nil {
		return err
	}
	version, err := pieces.WriteState(ctx, content, s.stored.version)
	if err != nil {
		return fmt.Errorf("%s: %w", pieces.Name(""), err)
	}
	s.Generation++
	s.stored.content, s.stored.version = content, version
	return nil
}

// writeState increases the generation of s and stores kept, the form of s for JSON. It returns
// ErrStale if the state was written since s was loaded. After an error the generation of s is as
// before.
func (s *State) writeState(ctx context.Context, pieces PieceStore, kept keptState) error {
	s.Generation++ // kept contains the generation
	content, err := encodePiece(kept)
	var version string
	if err == nil {
		version, err = pieces.WriteState(ctx, content, s.stored.version)
	}
	if err != nil {
		s.Generation--
		return fmt.Errorf("%s: %w", pieces.Name(""), err)
	}
	s.stored.content, s.stored.version = content, version
	return nil
}

// changed returns the hosts whose record in records, by host, differs from the stored one or is not
// stored. The order is random.
func (s *State) changed(records map[string][]byte) []string {
	var hosts []string
	for host, content := range records {
		if is, ok := s.stored.hosts[host]; !ok || is.digest != sha256.Sum256(content) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// writeHosts stores those of the records, by host, that differ from the stored ones, up to
// maxWrites in parallel. It returns the first error. Other records may have been written by then.
func (s *State) writeHosts(ctx context.Context, pieces PieceStore, records map[string][]byte) error {
	known := maps.Clone(s.stored.hosts)
	if s.stored.hosts == nil {
		s.stored.hosts = map[string]storedHost{}
	}
	for host, is := range s.stored.hosts { // also records that are not written now
		_, is.named = records[host]
		s.stored.hosts[host] = is
	}
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxWrites)
	for _, host := range s.changed(records) {
		group.Go(func() error {
			version, err := pieces.WriteHost(gctx, host, records[host], known[host].version)
			if err != nil {
				return fmt.Errorf("%s: %w", pieces.Name(host), err)
			}
			mu.Lock()
			defer mu.Unlock()
			s.stored.hosts[host] = storedHost{version: version, digest: sha256.Sum256(records[host]), named: true}
			return nil
		})
	}
	return group.Wait()
}

// removeHosts removes the stored records of the hosts for which the function which is true, up to
// maxWrites in parallel. It returns the first error. Other records may have been removed by then.
func (s *State) removeHosts(ctx context.Context, pieces PieceStore, which func(host string) bool) error {
	known := maps.Clone(s.stored.hosts)
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxWrites)
	for _, host := range slices.Sorted(maps.Keys(known)) {
		if !which(host) {
			continue
		}
		group.Go(func() error {
			if err := pieces.RemoveHost(gctx, host, known[host].version); err != nil {
				return fmt.Errorf("%s: %w", pieces.Name(host), err)
			}
			mu.Lock()
			defer mu.Unlock()
			delete(s.stored.hosts, host)
			return nil
		})
	}
	return group.Wait()
}
