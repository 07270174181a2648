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

// ErrStale is returned by Store.Save if another process has changed the state since it was loaded.
var ErrStale = errors.New("another process has changed it since it was read here, and nothing of that is overwritten; run it again")

// maxWrites is how many records of hosts are written or removed at the same time.
const maxWrites = 16

// Piece is a stored document.
type Piece struct {
	Content []byte
	// Version changes with each write.
	Version string
}

// Shelf stores the pieces of one cluster's state: the state itself, and a record for each host.
// Every write is atomic. A write returns ErrStale if the stored version is not the given one. The
// version of a missing piece is empty.
type Shelf interface {
	// State reads the state. ok is false if there is none.
	State(ctx context.Context) (p Piece, ok bool, err error)
	// Hosts reads all records by host, also those of hosts that the state does not list.
	Hosts(ctx context.Context) (map[string]Piece, error)
	// WriteState, WriteHost and RemoveHost change a piece. They take its current version, and the
	// writes return the new one.
	WriteState(ctx context.Context, content []byte, version string) (string, error)
	WriteHost(ctx context.Context, host string, content []byte, version string) (string, error)
	RemoveHost(ctx context.Context, host, version string) error
	// RemoveState removes the state.
	RemoveState(ctx context.Context, version string) error
	// Name returns the name of a piece for messages: the record of a host, or the state if host is
	// empty.
	Name(host string) string
}

// stored describes the pieces of a state as they were last loaded or saved.
type stored struct {
	content []byte // of the state; nil if there is none
	version string
	hosts   map[string]storedHost
}

type storedHost struct {
	version string
	digest  [sha256.Size]byte
	named   bool // the saved state lists the host
}

// LoadState reads the state of a cluster. It returns nil without an error if there is none. A
// missing record of a host is no error: the host gets new certificates.
func LoadState(ctx context.Context, shelf Shelf, cluster string) (*State, error) {
	piece, ok, err := shelf.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	if !ok {
		return nil, nil //nolint:nilnil // the contract of Store
	}
	s, named, err := decodeState(piece.Content)
	if later, ok := errors.AsType[laterError](err); ok {
		return nil, fmt.Errorf("read the state of cluster %s: %s: %w", cluster, shelf.Name(""), later)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %s is damaged (%w); restore it from a backup: it has the cluster's keys", cluster, shelf.Name(""), err)
	}
	records, err := shelf.Hosts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	s.stored = stored{content: piece.Content, version: piece.Version}
	s.know(records)
	for _, host := range named {
		record, ok := records[host]
		if !ok {
			continue // its leaves are minted again
		}
		ours, err := s.decodeHost(host, record.Content)
		if later, ok := errors.AsType[laterError](err); ok {
			return nil, fmt.Errorf("read the state of cluster %s: %s: %w", cluster, shelf.Name(host), later)
		}
		if err != nil {
			return nil, fmt.Errorf("read the state of cluster %s: %s is damaged (%w); restore it from a backup, or remove it: then host %s gets new certificates",
				cluster, shelf.Name(host), err, host)
		}
		known := s.stored.hosts[host]
		known.named = ours
		s.stored.hosts[host] = known
	}
	return s, nil
}

// know replaces the known versions and digests of records.
func (s *State) know(records map[string]Piece) {
	s.stored.hosts = make(map[string]storedHost, len(records))
	for host, record := range records {
		s.stored.hosts[host] = storedHost{version: record.Version, digest: sha256.Sum256(record.Content)}
	}
}

// SaveState writes what has changed of a state since it was loaded or saved. The first write is
// that of the state. It fails with ErrStale for all but the process that loaded the newest
// state, and then nothing is written. If SaveState is killed at any write, no key that a host
// has is lost:
//
//  1. Records that the saved state does not list are removed. A killed SaveState left them.
//  2. The state is written before the records. No host has received keys that a record still lacks.
//  3. Records that the new state does not list are removed last.
func SaveState(ctx context.Context, shelf Shelf, s *State) error {
	if err := s.save(ctx, shelf); err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	return nil
}

func (s *State) save(ctx context.Context, shelf Shelf) error {
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
		if err := s.claim(ctx, shelf); err != nil {
			return err
		}
		if err := s.removeHosts(ctx, shelf, leftover); err != nil {
			return err
		}
	}
	first := is.content == nil
	if err := s.writeState(ctx, shelf, kept); err != nil {
		return err
	}
	if first { // another cluster of this name may have left records without a state
		left, err := shelf.Hosts(ctx)
		if err != nil {
			return err
		}
		s.know(left)
	}
	if err := s.writeHosts(ctx, shelf, records); err != nil {
		return err
	}
	return s.removeHosts(ctx, shelf, gone)
}

// RemoveState removes a state and the records of its hosts. Like SaveState, it first writes the
// state. It removes nothing if another process has changed the state since it was loaded
// (ErrStale), and other processes cannot save theirs afterwards. The state is removed last, so
// that no record is left without it.
func RemoveState(ctx context.Context, shelf Shelf, s *State) error {
	if err := s.remove(ctx, shelf); err != nil {
		return fmt.Errorf("forget cluster %s: %w", s.Cluster, err)
	}
	return nil
}

func (s *State) remove(ctx context.Context, shelf Shelf) error {
	if s.stored.content == nil {
		if _, ok, err := shelf.State(ctx); err != nil || !ok {
			return err
		}
		return fmt.Errorf("%s: %w", shelf.Name(""), ErrStale)
	}
	if err := s.claim(ctx, shelf); err != nil {
		return err
	}
	left, err := shelf.Hosts(ctx)
	if err != nil {
		return err
	}
	s.know(left)
	if err := s.removeHosts(ctx, shelf, func(string) bool { return true }); err != nil {
		return err
	}
	if err := shelf.RemoveState(ctx, s.stored.version); err != nil {
		return fmt.Errorf("%s: %w", shelf.Name(""), err)
	}
	s.stored = stored{}
	return nil
}

// claim increases the generation of the stored state and changes nothing else. Other processes can
// then no longer save the state that they loaded.
func (s *State) claim(ctx context.Context, shelf Shelf) error {
	kept := map[string]json.RawMessage{}
	if err := json.Unmarshal(s.stored.content, &kept); err != nil {
		return fmt.Errorf("%s: %w", shelf.Name(""), err)
	}
	var err error
	if kept["generation"], err = json.Marshal(s.Generation + 1); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	content, err := encodePiece(kept)
	if err != nil {
		return err
	}
	version, err := shelf.WriteState(ctx, content, s.stored.version)
	if err != nil {
		return fmt.Errorf("%s: %w", shelf.Name(""), err)
	}
	s.Generation++
	s.stored.content, s.stored.version = content, version
	return nil
}

// writeState increases the generation and writes the state. It fails with ErrStale if the stored
// version is another.
func (s *State) writeState(ctx context.Context, shelf Shelf, kept keptState) error {
	s.Generation++ // which is part of kept
	content, err := encodePiece(kept)
	var version string
	if err == nil {
		version, err = shelf.WriteState(ctx, content, s.stored.version)
	}
	if err != nil {
		s.Generation--
		return fmt.Errorf("%s: %w", shelf.Name(""), err)
	}
	s.stored.content, s.stored.version = content, version
	return nil
}

// changed returns the hosts whose stored records differ from records.
func (s *State) changed(records map[string][]byte) []string {
	var hosts []string
	for host, content := range records {
		if is, ok := s.stored.hosts[host]; !ok || is.digest != sha256.Sum256(content) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func (s *State) writeHosts(ctx context.Context, shelf Shelf, records map[string][]byte) error {
	known := maps.Clone(s.stored.hosts)
	if s.stored.hosts == nil {
		s.stored.hosts = map[string]storedHost{}
	}
	for host, is := range s.stored.hosts { // those that are not written again
		_, is.named = records[host]
		s.stored.hosts[host] = is
	}
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxWrites)
	for _, host := range s.changed(records) {
		group.Go(func() error {
			version, err := shelf.WriteHost(gctx, host, records[host], known[host].version)
			if err != nil {
				return fmt.Errorf("%s: %w", shelf.Name(host), err)
			}
			mu.Lock()
			defer mu.Unlock()
			s.stored.hosts[host] = storedHost{version: version, digest: sha256.Sum256(records[host]), named: true}
			return nil
		})
	}
	return group.Wait()
}

// removeHosts removes the records of the hosts that which selects.
func (s *State) removeHosts(ctx context.Context, shelf Shelf, which func(host string) bool) error {
	known := maps.Clone(s.stored.hosts)
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxWrites)
	for _, host := range slices.Sorted(maps.Keys(known)) {
		if !which(host) {
			continue
		}
		group.Go(func() error {
			if err := shelf.RemoveHost(gctx, host, known[host].version); err != nil {
				return fmt.Errorf("%s: %w", shelf.Name(host), err)
			}
			mu.Lock()
			defer mu.Unlock()
			delete(s.stored.hosts, host)
			return nil
		})
	}
	return group.Wait()
}
