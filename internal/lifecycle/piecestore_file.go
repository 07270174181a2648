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

// Names in the directory of a cluster, see Files. The state is stored in stateFile, and the record
// of each host in hostsDir/HOST with the suffix hostSuffix.
const (
	stateFile  = "state.json"
	stateLock  = ".state.lock" // lock file, held while pieces are written
	hostsDir   = "hosts"
	hostSuffix = ".json"
)

// filePieceStore is the PieceStore of a cluster whose pieces are files in the directory of Files.
// The version of a piece is the SHA-256 digest of its content, in hex. The caller of a write or
// removal holds the lock on stateLock.
type filePieceStore struct {
	files   Files
	cluster string
}

// Name implements PieceStore. It returns the path of the file of a piece: the record of a host, or
// the state if host is "".
func (f filePieceStore) Name(host string) string {
	if host == "" {
		return f.files.Path(f.cluster, stateFile)
	}
	return f.files.Path(f.cluster, hostsDir, host+hostSuffix)
}

// State implements PieceStore. It reads the file with the state. The second result is false if
// there is no such file.
func (f filePieceStore) State(context.Context) (Piece, bool, error) { return readPiece(f.Name("")) }

// Hosts implements PieceStore. It reads the files with the records of all hosts, by host. It skips
// partial files, which a killed process left.
func (f filePieceStore) Hosts(context.Context) (map[string]Piece, error) {
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

// readPiece reads the piece in a file. If the file does not exist, it returns an empty Piece, false
// and no error.
func readPiece(path string) (Piece, bool, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Piece{}, false, nil
	}
	return Piece{Content: content, Version: versionOf(content)}, err == nil, err
}

// versionOf returns the version of a piece with this content: its SHA-256 digest in hex.
func versionOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// WriteState implements PieceStore. It replaces the file with the state and returns the new
// version. If version is not that of the present file, it returns ErrStale.
func (f filePieceStore) WriteState(_ context.Context, content []byte, version string) (string, error) {
	return f.write("", content, version)
}

// WriteHost implements PieceStore. It replaces the file with the record of a host and returns the
// new version. If version is not that of the present file, it returns ErrStale.
func (f filePieceStore) WriteHost(_ context.Context, host string, content []byte, version string) (string, error) {
	return f.write(host, content, version)
}

// write stores a piece, the record of a host or the state if host is "", and returns its new
// version. It writes nothing and returns ErrStale if the stored version is not the given one.
func (f filePieceStore) write(host string, content []byte, version string) (string, error) {
	if err := f.is(host, version); err != nil {
		return "", err
	}
	return versionOf(content), writeFile(f.Name(host), content)
}

// RemoveHost implements PieceStore. It removes the file with the record of a host. If version is
// not that of the file, it returns ErrStale.
func (f filePieceStore) RemoveHost(_ context.Context, host, version string) error {
	if err := f.is(host, version); err != nil {
		return err
	}
	return os.Remove(f.Name(host))
}

// RemoveState implements PieceStore. It removes the file with the state. If version is not that of
// the file, it returns ErrStale.
func (f filePieceStore) RemoveState(_ context.Context, version string) error {
	if err := f.is("", version); err != nil {
		return err
	}
	return os.Remove(f.Name(""))
}

// is returns ErrStale if the stored version of a piece is not the given one, else nil. The piece is
// the record of a host, or the state if host is "". The version of a missing piece is "".
func (f filePieceStore) is(host, version string) error {
	piece, _, err := readPiece(f.Name(host))
	if err != nil {
		return err
	}
	if piece.Version != version {
		return ErrStale
	}
	return nil
}

// sweep removes partial files that killed processes left in the directory of the cluster, since
// these files contain keys. Missing directories are no error.
func (f filePieceStore) sweep() error {
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
