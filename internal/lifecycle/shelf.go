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

// maxWrites is how many records of hosts are written, or removed, at a time.
const maxWrites = 16

// Piece is something that a Shelf keeps.
type Piece struct {
	Content []byte
	// Version is another after each write.
	Version string
}

// Shelf is where a Store keeps the pieces of one cluster's state: the state itself, and a record for each host. Every write is
// atomic, and is ErrStale if the version of what is there is not the one given: that of nothing is empty.
type Shelf interface {
	// State reads the state; ok is false if there is none.
	State(ctx context.Context) (p Piece, ok bool, err error)
	// Hosts reads all records, also those of hosts that the state does not name.
	Hosts(ctx context.Context) (map[string]Piece, error)
	// WriteState, WriteHost and RemoveHost change a piece and return its new version.
	WriteState(ctx context.Context, content []byte, version string) (string, error)
	WriteHost(ctx context.Context, host string, content []byte, version string) (string, error)
	RemoveHost(ctx context.Context, host, version string) error
	// RemoveState removes the state.
	RemoveState(ctx context.Context, version string) error
	// Name of a piece, as a user finds it: that of a host, or of the state if host is empty.
	Name(host string) string
}

// stored is what is known of a state's pieces since it was loaded or saved last.
type stored struct {
	content []byte // of the state; nil if there is none
	format  int
	version string
	hosts   map[string]storedHost
}

type storedHost struct {
	version string
	digest  [sha256.Size]byte
	named   bool // by the state that is kept
}

// LoadState reads the state of a cluster from a shelf, or nil if there is none.
func LoadState(ctx context.Context, shelf Shelf, cluster string) (*State, error) {
	piece, ok, err := shelf.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	if !ok {
		return nil, nil //nolint:nilnil // the contract of Store
	}
	s, format, named, err := decodeState(piece.Content)
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
	s.stored = stored{content: piece.Content, format: format, version: piece.Version}
	s.know(records)
	for _, host := range named {
		record, ok := records[host]
		if !ok {
			continue // its leaves are minted anew
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

// know notes which records there are.
func (s *State) know(records map[string]Piece) {
	s.stored.hosts = make(map[string]storedHost, len(records))
	for host, record := range records {
		s.stored.hosts[host] = storedHost{version: record.Version, digest: sha256.Sum256(record.Content)}
	}
}

// SaveState writes to a shelf what has changed of a state since it was loaded from it or saved there. The first write is always
// of the state, which only who loaded the newest can write: another writes nothing. Whatever write is the last one, no key that a
// host has is lost:
//
//  1. Records that the kept state does not name are removed. Nobody reads them; a Save that was killed has left them.
//  2. The state is written before the records. What a record lacks until it is written was sent to no host yet.
//  3. A state of version 0 has the leaves itself: there the records are written before it gives them up.
//  4. Records that the state names no more go last.
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
	if is.content != nil && (is.format == 0 || leftovers) {
		if err := s.claim(ctx, shelf); err != nil {
			return err
		}
		if err := s.removeHosts(ctx, shelf, leftover); err != nil {
			return err
		}
	}
	if is.content != nil && is.format == 0 {
		if err := s.writeHosts(ctx, shelf, records); err != nil {
			return err
		}
		if err := s.writeState(ctx, shelf, kept); err != nil {
			return err
		}
		return s.removeHosts(ctx, shelf, gone)
	}
	first := is.content == nil
	if err := s.writeState(ctx, shelf, kept); err != nil {
		return err
	}
	if first { // somebody may have removed the state of an earlier cluster of this name, and left its records
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

// RemoveState removes a state from a shelf, with the records of hosts. As in SaveState the first write is of the state, over the one
// that was loaded: who has not the newest removes nothing, and nobody who loaded it before can write it again. The state goes last,
// so that no record is left without it.
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

// claim counts the generation of the kept state up, and changes nothing else of it: nobody who loaded it before can write it.
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

// writeState writes the state over the one that is known.
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
	s.stored.content, s.stored.format, s.stored.version = content, stateVersion, version
	return nil
}

// changed are the hosts whose records are not what they should be.
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

// removeHosts removes the records of some hosts.
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
