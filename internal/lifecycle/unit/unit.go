// Package unit keeps the processes of a host running, as systemd units.
package unit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Manager keeps units running. A name is that of a plan.Unit.
type Manager interface {
	// Observe says how the named units are. It changes and starts nothing.
	Observe(ctx context.Context, names []string) (map[string]Status, error)
	// Install puts the definition on disk, so that the unit is started with the others. It does not start it.
	Install(ctx context.Context, u plan.Unit) error
	// Restart makes the installed definition run: it ends the process, if it runs, and starts it. When it returns the old
	// process is gone and the new one was started, which says nothing about its being ready.
	Restart(ctx context.Context, name string) error
	// Reload sends SIGHUP to the main process.
	Reload(ctx context.Context, name string) error
	// Remove ends the process and removes all that was installed. What is not there needs no removal.
	Remove(ctx context.Context, name string) error
	// Log returns the last lines that the process wrote; none if it never ran.
	Log(ctx context.Context, name string, lines int) (string, error)
}

// Status is how a unit is.
type Status struct {
	// Installed is true when there is a definition, if only a damaged one.
	Installed bool `json:"installed"`
	// DefinitionHash is Hash of the unit that was installed; empty when what is on disk is not that any more.
	DefinitionHash string `json:"definitionHash,omitempty"`
	// Running is true while there is a main process, which PID names.
	Running bool `json:"running"`
	PID     int  `json:"pid,omitempty"`
	// Restarts counts the starts that nobody asked for.
	Restarts int `json:"restarts,omitempty"`
	// Detail says why it does not run.
	Detail string `json:"detail,omitempty"`
}

// Hash of a unit. It changes when anything about the unit does, its InputHash too.
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

// checkName keeps a name from being a path, or an option of a command.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("name of unit %q: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check refuses what one of the managers could not run as it is written. Values are not in the errors: they may be
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
	switch u.KillMode {
	case "", "process":
	default:
		errs = append(errs, fmt.Errorf("killMode of unit %s: %q is neither empty nor process", u.Name, u.KillMode))
	}
	return errors.Join(errs...)
}

func unspeakable(r rune) bool { return unicode.IsControl(r) }

// write replaces a definition, and makes its directory if need be.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as such directories are on any host
		return fmt.Errorf("write file: %w", err)
	}
	return disk.WriteFile(path, 0o644, content)
}
