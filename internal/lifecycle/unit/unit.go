// Package unit keeps the processes of a host running, as systemd units.
package unit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Manager installs, starts and removes the systemd units of a host, for the agent in package node.
// A name is the Name of a plan.Unit, without a suffix. A name that is not a DNS subdomain is an
// error.
type Manager interface {
	// Observe returns the status of each named unit, by name, also of units that do not exist. It
	// changes nothing on the host.
	Observe(ctx context.Context, names []string) (map[string]Status, error)
	// Install writes the definition of the unit to disk and enables the unit, so that it starts at
	// boot. It does not start the unit: a running process keeps its former definition until Restart.
	// It returns an error for a unit that systemd could not run as written.
	Install(ctx context.Context, u plan.Unit) error
	// Restart stops the process of the unit, if it runs, and starts the installed definition. When it
	// returns nil, the old process is gone and the new one has started, but may not be ready. If ctx
	// ends before, it returns an error.
	Restart(ctx context.Context, name string) error
	// Reload sends SIGHUP to the main process. It does not wait for an effect. It returns an error for
	// a unit that does not run.
	Reload(ctx context.Context, name string) error
	// Remove stops the process, waits for its end, and removes what Install has written. A unit that
	// does not exist is no error.
	Remove(ctx context.Context, name string) error
	// Log returns the last lines that the processes of the unit wrote; lines is their number. It is ""
	// if no process ever ran.
	Log(ctx context.Context, name string, lines int) (string, error)
}

// Status is the state of a unit.
type Status struct {
	// Installed is true if the unit has a definition on disk, even a damaged one.
	Installed bool `json:"installed"`
	// DefinitionHash is the Hash of the unit from which the definition on disk was written. It is ""
	// if the definition was changed since, or if the unit is not enabled.
	DefinitionHash string `json:"definitionHash,omitempty"`
	// Running is true while there is a main process. PID is its process ID.
	Running bool `json:"running"`
	PID     int  `json:"pid,omitempty"`
	// Restarts counts automatic restarts since the unit was started by a command.
	Restarts int `json:"restarts,omitempty"`
	// Detail is the reason why the unit does not run. It is empty while the unit runs.
	Detail string `json:"detail,omitempty"`
}

// Hash returns a hash of all fields of a unit, including InputHash, as 32 hexadecimal digits.
// Comparing it with Status.DefinitionHash shows whether a unit is installed as it should be.
func Hash(u plan.Unit) string {
	content, err := json.Marshal(u)
	if err != nil { // cannot happen: a Unit has only texts, numbers and lists
		panic(fmt.Sprintf("marshal unit: %v", err))
	}
	return digest(content)
}

// digest returns the first half of the SHA-256 of content, as 32 hexadecimal digits.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// checkName returns an error for a name of a unit that is not a DNS subdomain. Other names could be
// paths, or options of systemctl.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("name of unit %q: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

// variable matches a valid name of an environment variable.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check returns an error for a unit that systemd could not run as written, with all reasons. The
// error contains no values of arguments and of the environment, which may be secret.
func check(u plan.Unit) error {
	errs := []error{checkName(u.Name)}
	for _, name := range u.After {
		errs = append(errs, checkName(name))
	}
	if len(u.Command) == 0 || !filepath.IsAbs(u.Command[0]) {
		errs = append(errs, fmt.Errorf("command of unit %s: begins with no absolute path", u.Name))
	} else if strings.ContainsFunc(u.Command[0], unspeakable) || strings.ContainsAny(u.Command[0], "\"'\\$") {
		errs = append(errs, fmt.Errorf("command of unit %s: the path has control characters, quotes, $ or \\", u.Name))
	}
	for i, arg := range u.Command {
		if strings.ContainsRune(arg, 0) || !utf8.ValidString(arg) {
			errs = append(errs, fmt.Errorf("command of unit %s: argument %d is not text", u.Name, i))
		}
	}
	for name, value := range u.Env {
		switch {
		case !variable.MatchString(name):
			errs = append(errs, fmt.Errorf("environment of unit %s: %q is not a name", u.Name, name))
		case strings.ContainsFunc(value, func(r rune) bool { return unspeakable(r) && r != '\n' && r != '\t' }), !utf8.ValidString(value):
			errs = append(errs, fmt.Errorf("environment of unit %s: the value of %s is not text", u.Name, name))
		}
	}
	for _, path := range slices.Concat(u.Mounts, []string{cmp.Or(u.Data, "/"), cmp.Or(u.Established, "/")}) {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, func(r rune) bool { return unspeakable(r) || unicode.IsSpace(r) }) || !utf8.ValidString(path) {
			errs = append(errs, fmt.Errorf("paths of unit %s: %q is not an absolute path without spaces", u.Name, path))
		}
	}
	if (u.Data == "") != (u.Established == "") {
		errs = append(errs, fmt.Errorf("data of unit %s: Data and Established are needed together", u.Name))
	}
	switch u.KillMode {
	case "", "process":
	default:
		errs = append(errs, fmt.Errorf("killMode of unit %s: %q is neither empty nor process", u.Name, u.KillMode))
	}
	return errors.Join(errs...)
}

// unspeakable reports whether a unit file cannot have the character as it is.
func unspeakable(r rune) bool { return unicode.IsControl(r) }

// write replaces the file at path atomically, with mode 0644. It creates the directory of the file
// if that is missing.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as such directories are on any host
		return fmt.Errorf("write file: %w", err)
	}
	return disk.WriteFile(path, 0o644, content)
}
