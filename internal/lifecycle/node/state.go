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

// state is what the host remembers. Package facts reads the cluster and the steps of it where the agent is missing.
type state struct {
	Cluster   string `json:"cluster,omitempty"`
	ClusterID string `json:"clusterID,omitempty"`
	Version   string `json:"version,omitempty"`
	// Steps in the order they were first applied.
	Steps []*record `json:"steps,omitempty"`
	// Made are directories that were made on the way to a file. They go when they are empty.
	Made []string `json:"made,omitempty"`
}

// record is a step that was begun.
type record struct {
	// Step as it is known afterwards: the content of a file and the text of a script are not kept.
	Step plan.Step `json:"step"`
	// Hash of the whole step.
	Hash     string `json:"hash"`
	Complete bool   `json:"complete"`
	// Before is what was there before the step was first applied, as much as it changed.
	Before before `json:"before,omitzero"`
	// Previous is the blob that an Artifact had before. It is kept, so that going back brings nothing to the host.
	Previous string `json:"previous,omitempty"`
	// Placed are the files of an Artifact.
	Placed map[string]placed `json:"placed,omitempty"`

	notes []string // for the event
}

// before is the inverse of a step. Changing a step adds to it and never replaces: undoing leads to the time before us.
type before struct {
	Paths   []pathBefore      `json:"paths,omitempty"`
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Packages are those that we installed. While that goes on, they are not known: what is installed beyond Installed.
	Packages  []string `json:"packages,omitempty"`
	Installed []string `json:"installed,omitempty"`
	// Units that we installed.
	Units []string `json:"units,omitempty"`
	// Sweep is all that was ever to be swept, and Traces what is to stay.
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

// forget drops the record of a step.
func (s *state) forget(id string) {
	s.Steps = slices.DeleteFunc(s.Steps, func(r *record) bool { return r.Step.ID == id })
}

const (
	stateFile = "state.json"
	// stateBackup is the state before the last write.
	stateBackup = "state.json.bak"
	// reserveFile is space that is given up when the disk is full, because undoing must be able to note what it did.
	reserveFile = "reserve"
	reserveSize = 1 << 20
)

// checked is how JSON is kept, so that a file that was damaged by a loss of power is known as such.
type checked struct {
	Checksum string          `json:"checksum"`
	Value    json.RawMessage `json:"value"`
}

var errDamaged = errors.New("damaged")

// writeChecked gives up the reserve if it must.
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

// load reads the state: empty where there is none.
func (n *Node) load() (*state, error) {
	s := &state{}
	err := readChecked(n.dir(stateFile), s)
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, errDamaged) && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The one before it lacks the last step at most, which is then done again.
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

// save writes the state, and keeps the one before it.
func (n *Node) save(s *state) error {
	// A hard link keeps the last state without a moment in which there is none.
	if err := disk.Remove(n.dir(stateBackup)); err != nil {
		return err
	}
	if err := os.Link(n.dir(stateFile), n.dir(stateBackup)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep last state: %w", err)
	}
	return n.writeChecked(n.dir(stateFile), s)
}

// reserve sets space aside. A disk that has none has none to set aside either.
func (n *Node) reserve() {
	f, err := os.OpenFile(n.dir(reserveFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // it is there
	}
	if err := errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, reserveSize), f.Close()); err != nil {
		_ = os.Remove(f.Name())
	}
}
