package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// state is the record of the host: its cluster, and the steps that were begun and not undone. The
// file is JSON. If the host has no agent, package facts reads the cluster and the steps from it.
type state struct {
	Cluster   string `json:"cluster,omitempty"`
	ClusterID string `json:"clusterID,omitempty"`
	Version   string `json:"version,omitempty"`
	// Steps in the order in which they were first applied.
	Steps []*record `json:"steps,omitempty"`
	// Made are directories that the agent created as parents of other paths. They are removed when
	// they are empty and their steps are undone.
	Made []string `json:"made,omitempty"`

	// fromBackup is true if the state was read from the backup, because the state file is damaged or
	// missing. It is not stored.
	fromBackup bool
}

// record describes a step that was begun. Complete is true if the last apply of the step has
// succeeded.
type record struct {
	// Step is the step as last begun, without the content of files and the text of scripts.
	Step plan.Step `json:"step"`
	// Hash is the hash of the complete step, with content and text.
	Hash     string `json:"hash"`
	Complete bool   `json:"complete"`
	// Before is what the step changed, as it was before the step was first applied.
	Before before `json:"before,omitzero"`
	// Previous is the digest of the blob that an Artifact used before its last change. The host keeps
	// that blob for a rollback.
	Previous string `json:"previous,omitempty"`
	// Placed are the installed files of an Artifact, by path.
	Placed map[string]placed `json:"placed,omitempty"`

	// notes are messages for the user about what could not be restored or removed. The event of the
	// step has them; they are not stored.
	notes []string
}

// before is what undoing a step restores. Changed versions of the step only add to it. Undoing
// therefore restores the state before the first version.
type before struct {
	Paths   []pathBefore      `json:"paths,omitempty"`
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Packages are those that are installed because of the step. During an installation they are not
	// known yet: Installed then lists all packages from before it, and else is nil.
	Packages  []string `json:"packages,omitempty"`
	Installed []string `json:"installed,omitempty"`
	// Units are the names of the systemd units that the step installed.
	Units []string `json:"units,omitempty"`
	// Sweep covers what all versions of the sweep step cover. Traces are those that existed before the
	// step, and must stay.
	Sweep  *plan.Sweep  `json:"sweep,omitempty"`
	Traces *plan.Traces `json:"traces,omitempty"`
}

// find returns the record of a step, or nil.
func (s *state) find(id string) *record {
	for _, r := range s.Steps {
		if r.Step.ID == id {
			return r
		}
	}
	return nil
}

// forget removes the record of the step with this ID from s. It does not save s.
func (s *state) forget(id string) {
	s.Steps = slices.DeleteFunc(s.Steps, func(r *record) bool { return r.Step.ID == id })
}

const (
	// stateFile is the name of the file with the state of the host, in the directory of the agent's
	// records.
	stateFile = "state.json"
	// stateBackup is the state before the last write.
	stateBackup = "state.json.bak"
	// reserveFile occupies reserveSize bytes. It is removed when the disk is full, because undoing a
	// step must record its progress.
	reserveFile = "reserve"
	// reserveSize is the size of the reserve file in bytes.
	reserveSize = 1 << 20
)

// checked is the form in which writeChecked stores a value as JSON. Checksum is the digest of
// Value. It shows damage by a loss of power.
type checked struct {
	Checksum string          `json:"checksum"`
	Value    json.RawMessage `json:"value"`
}

// errDamaged means that a file of writeChecked is not JSON, or that its checksum is wrong.
var errDamaged = errors.New("damaged")

// writeChecked replaces the file at path by v as JSON with a checksum, atomically. path includes
// Root. If the disk is full, it removes the reserve file and tries again.
func (n *Node) writeChecked(path string, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	content, err := json.Marshal(checked{Checksum: digestOf(value), Value: value})
	if err != nil {
		return err
	}
	write := func() error {
		return n.writeFile(path, 0o600, func(w io.Writer) error {
			_, err := w.Write(content)
			return err
		})
	}
	err = write()
	if errors.Is(err, syscall.ENOSPC) && os.Remove(n.dir(reserveFile)) == nil {
		return write()
	}
	return err
}

// readChecked reads a file that writeChecked has written into v. The error wraps errDamaged if the
// content is not JSON or the checksum differs, and fs.ErrNotExist if there is no file.
func readChecked(path string, v any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c checked
	if err := json.Unmarshal(content, &c); err != nil {
		return fmt.Errorf("read %s: %w: %w", path, errDamaged, err)
	}
	if digestOf(c.Value) != c.Checksum {
		return fmt.Errorf("read %s: %w: its checksum does not fit", path, errDamaged)
	}
	if err := json.Unmarshal(c.Value, v); err != nil {
		return fmt.Errorf("read %s: %w: %w", path, errDamaged, err)
	}
	return nil
}

// digestOf returns the SHA-256 digest of content, as sha256:HEX.
func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return digestPrefix + hex.EncodeToString(sum[:])
}

// load returns the stored state. It returns an empty one if the host has no state. If the state
// file is damaged or missing, it returns the backup, which lacks at most the last write. It returns
// an error if neither can be used.
func (n *Node) load() (*state, error) {
	s := &state{}
	err := readChecked(n.dir(stateFile), s)
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, errDamaged) && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The backup lacks at most the last step, which the next request then repeats.
	s = &state{}
	errBackup := readChecked(n.dir(stateBackup), s)
	switch {
	case errBackup == nil:
		s.fromBackup = true
		return s, nil
	case errors.Is(err, fs.ErrNotExist) && errors.Is(errBackup, fs.ErrNotExist):
		return &state{}, nil
	default:
		return nil, fmt.Errorf("%w; what was applied to this host is not known any more: reinstall the host, or remove the cluster's"+
			" units and files by hand and then %s", errors.Join(err, errBackup), n.dir())
	}
}

// save stores the state, atomically. It keeps the formerly stored state as backup. If the state was
// read from the backup, that backup stays, because it is the only undamaged file until save ends.
func (n *Node) save(s *state) error {
	if !s.fromBackup {
		// The backup is a hard link and not a renamed file, so that a state file exists at every moment.
		if err := disk.Remove(n.dir(stateBackup)); err != nil {
			return err
		}
		if err := os.Link(n.dir(stateFile), n.dir(stateBackup)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep last state: %w", err)
		}
	}
	if err := n.writeChecked(n.dir(stateFile), s); err != nil {
		return err
	}
	s.fromBackup = false
	return nil
}

// reserve allocates the reserve file of reserveSize bytes if it does not exist. It ignores errors,
// such as a full disk.
func (n *Node) reserve() {
	f, err := os.OpenFile(n.dir(reserveFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // the file exists already, or the disk is full
	}
	if err := errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, reserveSize), f.Close()); err != nil {
		_ = os.Remove(f.Name())
	}
}
