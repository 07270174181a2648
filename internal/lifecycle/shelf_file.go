package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"orrery.dev/orrery/internal/disk"
)

// Names of the files and directories of a state in Files.
const (
	stateFile  = "state.json"
	stateLock  = ".state.lock" // held while writing
	hostsDir   = "hosts"
	hostSuffix = ".json"
)

// fileShelf stores the state of a cluster in Files. The version of a piece is the digest of its
// content. The caller of a write holds stateLock.
type fileShelf struct {
	files   Files
	cluster string
}

// Name implements Shelf.
func (f fileShelf) Name(host string) string {
	if host == "" {
		return f.files.Path(f.cluster, stateFile)
	}
	return f.files.Path(f.cluster, hostsDir, host+hostSuffix)
}

// State implements Shelf.
func (f fileShelf) State(context.Context) (Piece, bool, error) { return readPiece(f.Name("")) }

// Hosts implements Shelf.
func (f fileShelf) Hosts(context.Context) (map[string]Piece, error) {
	entries, err := os.ReadDir(f.files.Path(f.cluster, hostsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	hosts := map[string]Piece{}
	for _, e := range entries {
		host, ok := strings.CutSuffix(e.Name(), hostSuffix)
		if !ok || strings.HasPrefix(host, ".") { // a partial file of a killed process
			continue
		}
		piece, ok, err := readPiece(f.Name(host))
		if err != nil {
			return nil, err
		}
		if ok {
			hosts[host] = piece
		}
	}
	return hosts, nil
}

func readPiece(path string) (Piece, bool, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Piece{}, false, nil
	}
	return Piece{Content: content, Version: versionOf(content)}, err == nil, err
}

func versionOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// WriteState implements Shelf.
func (f fileShelf) WriteState(_ context.Context, content []byte, version string) (string, error) {
	return f.write("", content, version)
}

// WriteHost implements Shelf.
func (f fileShelf) WriteHost(_ context.Context, host string, content []byte, version string) (string, error) {
	return f.write(host, content, version)
}

func (f fileShelf) write(host string, content []byte, version string) (string, error) {
	if err := f.is(host, version); err != nil {
		return "", err
	}
	return versionOf(content), writeFile(f.Name(host), content)
}

// RemoveHost implements Shelf.
func (f fileShelf) RemoveHost(_ context.Context, host, version string) error {
	if err := f.is(host, version); err != nil {
		return err
	}
	return os.Remove(f.Name(host))
}

// RemoveState implements Shelf.
func (f fileShelf) RemoveState(_ context.Context, version string) error {
	if err := f.is("", version); err != nil {
		return err
	}
	return os.Remove(f.Name(""))
}

// is returns ErrStale if a piece does not have the given version.
func (f fileShelf) is(host, version string) error {
	piece, _, err := readPiece(f.Name(host))
	if err != nil {
		return err
	}
	if piece.Version != version {
		return ErrStale
	}
	return nil
}

// sweep removes partial files of killed processes, since they contain keys.
func (f fileShelf) sweep() error {
	for _, dir := range []string{f.files.Path(f.cluster), f.files.Path(f.cluster, hostsDir)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if !disk.Partial(e.Name()) {
				continue
			}
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
