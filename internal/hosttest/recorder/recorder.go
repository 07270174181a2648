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

// System is the node.System of a simulated host that is a directory. It may be used from several
// goroutines.
type System struct {
	root string
	mu   sync.Mutex
	runs [][]string // see Runs
}

// New returns the node.System and the unit.Manager of a simulated host. root is the directory of
// the host. Both keep their state in a file there, so a later call of New continues with the same
// state.
func New(root string) (*System, unit.Manager) {
	s := &System{root: root}
	return s, recordedUnits{s}
}

// recorded is the state of a simulated host, as JSON in the file recordPath. The file is removed
// when all fields are empty.
type recorded struct {
	Units    map[string]recordedUnit `json:"units,omitempty"`
	Sysctls  map[string]string       `json:"sysctls,omitempty"`
	Packages []string                `json:"packages,omitempty"`
}

// recordedUnit is an installed unit of a simulated host. Restarts is the number of automatic
// restarts that Observe returns.
type recordedUnit struct {
	Unit     plan.Unit `json:"unit"`
	Running  bool      `json:"running"`
	Restarts int       `json:"restarts"`
}

// recordPath is the path of the file with the state, relative to the directory of the host.
const recordPath = ".recorded.json"

// agentDir is the directory of the agent's own records, relative to the directory of the host.
const agentDir = "var/lib/orrery/node"

// read returns the stored state. It is empty, with maps that are not nil, if nothing is stored. The
// caller holds r.mu.
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

// change reads the state, calls change with it, and stores the result. After an error of the
// function it stores nothing.
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
	// Write the file in the agent's directory first, because the agent removes partial files there.
	// Outside of a request that directory may be missing.
	temp := filepath.Join(r.root, agentDir, "recorded.json")
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return os.WriteFile(filepath.Join(r.root, recordPath), content, 0o600)
	}
	return os.Rename(temp, filepath.Join(r.root, recordPath))
}

// Runs returns the calls of Run of this System. Each has the program, its arguments, and as last
// element its standard input.
func (r *System) Runs() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs)
}

// Run implements node.System. It records the call for Runs, starts no program, and returns "".
func (r *System) Run(_ context.Context, argv []string, stdin string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, append(slices.Clone(argv), stdin))
	return "", nil
}

// Probe implements node.System. It succeeds unless ctx has ended.
func (*System) Probe(ctx context.Context, _ plan.Probe) error { return context.Cause(ctx) }

// Sysctl implements node.System. It returns the value that SetSysctl has set; "" for another key.
func (r *System) Sysctl(key string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	return now.Sysctls[key], err
}

// SetSysctl implements node.System. It stores the value. "" removes the key.
func (r *System) SetSysctl(key, value string) error {
	return r.change(func(now *recorded) error {
		now.Sysctls[key] = value
		if value == "" {
			delete(now.Sysctls, key)
		}
		return nil
	})
}

// HasModule implements node.System. Every module counts as loaded.
func (*System) HasModule(string) bool { return true }

// LoadModule implements node.System. It does nothing.
func (*System) LoadModule(context.Context, string) error { return nil }

// Packages implements node.System. It returns the package "base" and those that Install has
// installed.
func (r *System) Packages(context.Context, string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	return append([]string{"base"}, now.Packages...), err
}

// Install implements node.System. It stores the names.
func (r *System) Install(_ context.Context, _ string, names []string) error {
	return r.change(func(now *recorded) error {
		now.Packages = append(now.Packages, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(now.Packages, n) })...)
		return nil
	})
}

// Uninstall implements node.System. It removes the names. It never returns needed packages, since
// no package depends on another.
func (r *System) Uninstall(_ context.Context, _ string, names []string) (needed []string, err error) {
	return nil, r.change(func(now *recorded) error {
		now.Packages = slices.DeleteFunc(now.Packages, func(n string) bool { return slices.Contains(names, n) })
		return nil
	})
}

// Label implements node.System. It does nothing.
func (*System) Label(context.Context, ...string) error { return nil }

// Traces implements node.System. A simulated host has no traces.
func (*System) Traces(context.Context, plan.Sweep) (plan.Traces, error) { return plan.Traces{}, nil }

// Clear implements node.System. It does nothing.
func (*System) Clear(context.Context, plan.Sweep, plan.Traces) error { return nil }

// UnmountBelow implements node.System. It does nothing.
func (*System) UnmountBelow(string) error { return nil }

// recordedUnits is the unit.Manager of a simulated host. Its units run no process.
type recordedUnits struct{ *System }

// Observe implements unit.Manager. It returns the stored status of the named units.
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

// Install implements unit.Manager. It stores the definition. A unit that runs keeps running.
func (u recordedUnits) Install(_ context.Context, def plan.Unit) error {
	return u.change(func(now *recorded) error {
		one := now.Units[def.Name]
		one.Unit = def
		now.Units[def.Name] = one
		return nil
	})
}

// Restart implements unit.Manager. It stores that the unit runs. For a unit with plan.Unit.Data it
// creates a data file, as etcd would. A unit that is not installed is an error.
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

// makeData creates a file that matches the pattern def.Data, if no file matches it and def.Data is
// set. It returns an error if no file matches but the file def.Established exists: systemd would
// not start such a unit.
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

// Reload implements unit.Manager. It does nothing.
func (recordedUnits) Reload(context.Context, string) error { return nil }

// Remove implements unit.Manager. It removes the stored unit.
func (u recordedUnits) Remove(_ context.Context, name string) error {
	return u.change(func(now *recorded) error {
		delete(now.Units, name)
		return nil
	})
}

// Log implements unit.Manager. It returns "".
func (recordedUnits) Log(context.Context, string, int) (string, error) { return "", nil }

// Units returns the installed units by name, with true for a unit that runs.
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
