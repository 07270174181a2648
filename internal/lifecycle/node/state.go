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

// state is the record of the host. Without an agent, package facts reads the cluster and steps from
// it.
type state struct {
	Cluster   string `json:"cluster,omitempty"`
	ClusterID string `json:"clusterID,omitempty"`
	Version   string `json:"version,omitempty"`
	// Steps in the order in which they were first applied.
	Steps []*record `json:"steps,omitempty"`
	// Made are directories that were created as parents of files. They are removed when empty.
	Made []string `json:"made,omitempty"`
}

// record is a step that was begun.
type record struct {
	// Step without the content of files and the text of scripts.
	Step plan.Step `json:"step"`
	// Hash of the complete step.
	Hash     string `json:"hash"`
	Complete bool   `json:"complete"`
	// Before is the state before the step was first applied, as far as the step changed it.
	Before before `json:"before,omitzero"`
	// Previous is the blob before the last change of an Artifact. The host keeps it for a rollback.
	Previous string `json:"previous,omitempty"`
	// Placed are the installed files of an Artifact, by path.
	Placed map[string]placed `json:"placed,omitempty"`

	notes []string // for the event
}

// before is what undoing a step restores. Changed steps only add to it, so undoing always restores
// the state before the first change.
type before struct {
	Paths   []pathBefore      `json:"paths,omitempty"`
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Packages that the step installed. During the installation they are unknown: all that Installed
	// does not list.
	Packages  []string `json:"packages,omitempty"`
	Installed []string `json:"installed,omitempty"`
	// Units that the step installed.
	Units []string `json:"units,omitempty"`
	// Sweep is the union of all versions of the sweep. Traces are what must stay.
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

// forget removes the record of a step.
func (s *state) forget(id string) {
	s.Steps = slices.DeleteFunc(s.Steps, func(r *record) bool { return r.Step.ID == id })
}

const (
	stateFile = "state.json"
	// stateBackup is the state before the last write.
	stateBackup = "state.json.bak"
	// reserveFile is space that is freed when the disk is full, because undoing must record its
	// progress.
	reserveFile = "reserve"
	reserveSize = 1 << 20
)

// checked is the stored form of JSON. The checksum shows damage by a loss of power.
type checked struct {
	Checksum string          `json:"checksum"`
	Value    json.RawMessage `json:"value"`
}

var errDamaged = errors.New("damaged")

// writeChecked writes v. If the disk is full, it frees the reserve and tries again.
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

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return digestPrefix + hex.EncodeToString(sum[:])
}

// load returns the state, or an empty one if there is none. If it is damaged, load returns the
// backup.
func (n *Node) load() (*state, error) {
	s := &state{}
	err := readChecked(n.dir(stateFile), s)
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, errDamaged) && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The backup lacks at most the last step, which is then repeated.
	s = &state{}
	errBackup := readChecked(n.dir(stateBackup), s)
	switch {
	case errBackup == nil:
		return s, nil
	case errors.Is(err, fs.ErrNotExist) && errors.Is(errBackup, fs.ErrNotExist):
		return &state{}, nil
	default:
		return nil, fmt.Errorf("%w; what was applied to this host is not known any more: reinstall the host, or remove the cluster's"+
			" units and files by hand and then %s", errors.Join(err, errBackup), n.dir())
	}
}

// save writes the state, and keeps the former state as backup.
func (n *Node) save(s *state) error {
	// With a hard link, a state exists at every moment.
	if err := disk.Remove(n.dir(stateBackup)); err != nil {
		return err
	}
	if err := os.Link(n.dir(stateFile), n.dir(stateBackup)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep last state: %w", err)
	}
	return n.writeChecked(n.dir(stateFile), s)
}

// reserve allocates the reserve file. It ignores a full disk.
func (n *Node) reserve() {
	f, err := os.OpenFile(n.dir(reserveFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // it exists
	}
	if err := errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, reserveSize), f.Close()); err != nil {
		_ = os.Remove(f.Name())
	}
}
