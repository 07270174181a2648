// Package recorder simulates the parts of a test host that are not files. It records units,
// sysctls and packages in a file in the host's directory. Probes succeed, and programs are
// recorded and not run. It does not import package node, whose tests use it.
package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// System is the node.System of a host that is a directory.
type System struct {
	root string
	mu   sync.Mutex
	runs [][]string
}

// New returns the system and the unit manager of the host in the directory root.
func New(root string) (*System, unit.Manager) {
	s := &System{root: root}
	return s, recordedUnits{s}
}

// recorded is the content of the file. The file is removed when there is nothing to record.
type recorded struct {
	Units    map[string]recordedUnit `json:"units,omitempty"`
	Sysctls  map[string]string       `json:"sysctls,omitempty"`
	Packages []string                `json:"packages,omitempty"`
}

type recordedUnit struct {
	Unit     plan.Unit `json:"unit"`
	Running  bool      `json:"running"`
	Restarts int       `json:"restarts"`
}

// recordPath is the path of the file.
const recordPath = ".recorded.json"

// agentDir is the directory of the agent's own state.
const agentDir = "var/lib/orrery/node"

func (r *System) read() (recorded, error) {
	now := recorded{Units: make(map[string]recordedUnit), Sysctls: make(map[string]string)}
	content, err := os.ReadFile(filepath.Join(r.root, recordPath))
	if errors.Is(err, fs.ErrNotExist) {
		return now, nil
	}
	if err != nil {
		return now, err
	}
	return now, json.Unmarshal(content, &now)
}

func (r *System) change(change func(*recorded) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	if err != nil {
		return err
	}
	if err := change(&now); err != nil {
		return err
	}
	if len(now.Units)+len(now.Sysctls)+len(now.Packages) == 0 {
		return disk.Remove(filepath.Join(r.root, recordPath))
	}
	content, err := json.Marshal(now)
	if err != nil {
		return err
	}
	// The agent removes partial files in its own directory, so the file is written there first.
	// Outside of a request that directory may be missing.
	temp := filepath.Join(r.root, agentDir, "recorded.json")
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return os.WriteFile(filepath.Join(r.root, recordPath), content, 0o600)
	}
	return os.Rename(temp, filepath.Join(r.root, recordPath))
}

// Runs returns the recorded programs with their arguments and standard input.
func (r *System) Runs() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs)
}

// Run implements System.
func (r *System) Run(_ context.Context, argv []string, stdin string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, append(slices.Clone(argv), stdin))
	return "", nil
}

// Probe implements System.
func (*System) Probe(ctx context.Context, _ plan.Probe) error { return context.Cause(ctx) }

// Sysctl implements System. Each one exists.
func (r *System) Sysctl(key string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	return now.Sysctls[key], err
}

// SetSysctl implements System.
func (r *System) SetSysctl(key, value string) error {
	return r.change(func(now *recorded) error {
		now.Sysctls[key] = value
		if value == "" {
			delete(now.Sysctls, key)
		}
		return nil
	})
}

// HasModule implements System.
func (*System) HasModule(string) bool { return true }

// LoadModule implements System.
func (*System) LoadModule(context.Context, string) error { return nil }

// Packages implements System.
func (r *System) Packages(context.Context, string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	return append([]string{"base"}, now.Packages...), err
}

// Install implements System.
func (r *System) Install(_ context.Context, _ string, names []string) error {
	return r.change(func(now *recorded) error {
		now.Packages = append(now.Packages, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(now.Packages, n) })...)
		return nil
	})
}

// Uninstall implements System. No package depends on another.
func (r *System) Uninstall(_ context.Context, _ string, names []string) (needed []string, err error) {
	return nil, r.change(func(now *recorded) error {
		now.Packages = slices.DeleteFunc(now.Packages, func(n string) bool { return slices.Contains(names, n) })
		return nil
	})
}

// Label implements System.
func (*System) Label(context.Context, ...string) error { return nil }

// Traces implements System.
func (*System) Traces(context.Context, plan.Sweep) (plan.Traces, error) { return plan.Traces{}, nil }

// Clear implements System.
func (*System) Clear(context.Context, plan.Sweep, plan.Traces) error { return nil }

// UnmountBelow implements System.
func (*System) UnmountBelow(string) error { return nil }

// recordedUnits is the unit.Manager of a host that is a directory.
type recordedUnits struct{ *System }

// Observe implements unit.Manager.
func (u recordedUnits) Observe(_ context.Context, names []string) (map[string]unit.Status, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now, err := u.read()
	if err != nil {
		return nil, err
	}
	all := make(map[string]unit.Status, len(names))
	for _, name := range names {
		status := unit.Status{Detail: "not started"}
		if one, ok := now.Units[name]; ok {
			status = unit.Status{Installed: true, DefinitionHash: unit.Hash(one.Unit), Running: one.Running, Restarts: one.Restarts}
		}
		all[name] = status
	}
	return all, nil
}

// Install implements unit.Manager.
func (u recordedUnits) Install(_ context.Context, def plan.Unit) error {
	return u.change(func(now *recorded) error {
		one := now.Units[def.Name]
		one.Unit = def
		now.Units[def.Name] = one
		return nil
	})
}

// Restart implements unit.Manager. It creates a data file for a unit that has data.
func (u recordedUnits) Restart(_ context.Context, name string) error {
	return u.change(func(now *recorded) error {
		one, ok := now.Units[name]
		if !ok {
			return fmt.Errorf("restart %s: it is not installed", name)
		}
		if err := u.makeData(one.Unit); err != nil {
			return fmt.Errorf("restart %s: %w", name, err)
		}
		one.Running = true
		now.Units[name] = one
		return nil
	})
}

// makeData creates a file that matches the pattern of a unit's data. It returns an error if the
// unit is established and no file matches.
func (u recordedUnits) makeData(def plan.Unit) error {
	if def.Data == "" {
		return nil
	}
	if found, err := filepath.Glob(filepath.Join(u.root, def.Data)); err != nil || len(found) > 0 {
		return err
	}
	if _, err := os.Stat(filepath.Join(u.root, def.Established)); err == nil {
		return fmt.Errorf("no file matches %s", def.Data)
	}
	path := filepath.Join(u.root, strings.ReplaceAll(def.Data, "*", "0"))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// Reload implements unit.Manager.
func (recordedUnits) Reload(context.Context, string) error { return nil }

// Remove implements unit.Manager.
func (u recordedUnits) Remove(_ context.Context, name string) error {
	return u.change(func(now *recorded) error {
		delete(now.Units, name)
		return nil
	})
}

// Log implements unit.Manager.
func (recordedUnits) Log(context.Context, string, int) (string, error) { return "", nil }

// Units returns the names of the installed units, and whether each of them runs.
func (r *System) Units() (map[string]bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	running := make(map[string]bool, len(now.Units))
	for name, one := range maps.All(now.Units) {
		running[name] = one.Running
	}
	return running, err
}

var _ unit.Manager = recordedUnits{}
