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

// Manager manages systemd units. A name is that of a plan.Unit.
type Manager interface {
	// Observe returns the status of the named units. It changes nothing.
	Observe(ctx context.Context, names []string) (map[string]Status, error)
	// Install writes the definition and enables the unit, so that it starts at boot. It does not start
	// the unit.
	Install(ctx context.Context, u plan.Unit) error
	// Restart stops the process, if it runs, and starts the installed definition. When it returns, the
	// old process is gone and the new one has started, but may not be ready.
	Restart(ctx context.Context, name string) error
	// Reload sends SIGHUP to the main process.
	Reload(ctx context.Context, name string) error
	// Remove stops the process and removes all installed files. It ignores a missing unit.
	Remove(ctx context.Context, name string) error
	// Log returns the last lines that the process wrote. It is empty if the process never ran.
	Log(ctx context.Context, name string, lines int) (string, error)
}

// Status is the state of a unit.
type Status struct {
	// Installed is true if there is a definition, even a damaged one.
	Installed bool `json:"installed"`
	// DefinitionHash is the Hash of the installed unit. It is empty if the files on disk are
	// different.
	DefinitionHash string `json:"definitionHash,omitempty"`
	// Running is true while there is a main process. PID is its process ID.
	Running bool `json:"running"`
	PID     int  `json:"pid,omitempty"`
	// Restarts counts automatic restarts.
	Restarts int `json:"restarts,omitempty"`
	// Detail is the reason why the unit does not run.
	Detail string `json:"detail,omitempty"`
}

// Hash returns a hash of all fields of a unit, including InputHash.
func Hash(u plan.Unit) string {
	content, err := json.Marshal(u)
	if err != nil { // a Unit is plain data
		panic(fmt.Sprintf("marshal unit: %v", err))
	}
	return digest(content)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// checkName returns an error for names that could be paths or options.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("name of unit %q: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check refuses units that systemd could not run as written. Errors contain no values, which may be
// secret.
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

func unspeakable(r rune) bool { return unicode.IsControl(r) }

// write replaces a definition, and creates its directory if needed.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as such directories are on any host
		return fmt.Errorf("write file: %w", err)
	}
	return disk.WriteFile(path, 0o644, content)
}
