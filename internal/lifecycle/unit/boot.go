package unit

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bootScript is the service of the supervisor, as sysvinit and its like have them.
//
//go:embed boot.sh
var bootScript string

// bootMark is in every version of bootScript.
const bootMark = "# Written by Orrery,"

// bootLevels are the directories of what is started at boot, by run level; only the first one must be there.
func bootLevels() []string { return []string{"etc/rc2.d", "etc/rc3.d", "etc/rc4.d", "etc/rc5.d"} }

// boot is the service that starts the supervisor when the host boots.
type boot struct {
	root   string
	script string
}

func (l layout) boot() boot { return boot{l.root, filepath.Join(l.root, "etc/init.d/orrery")} }

// possible is true where the init system starts what is in the directories of run levels.
func (b boot) possible() bool {
	info, err := os.Stat(filepath.Join(b.root, bootLevels()[0]))
	return err == nil && info.IsDir()
}

// links are those that are there in a directory. insserv gives them other numbers, by what they require.
func (b boot) links(level string) ([]string, error) {
	return filepath.Glob(filepath.Join(b.root, level, "[SK][0-9][0-9]orrery"))
}

// installed is true where the init system starts the supervisor, or could not anyway.
func (b boot) installed() bool {
	if !b.possible() {
		return true
	}
	links, err := b.links(bootLevels()[0])
	if err != nil || len(links) == 0 || !strings.HasPrefix(filepath.Base(links[0]), "S") {
		return false
	}
	info, err := os.Stat(b.script)
	return err == nil && info.Mode()&0o100 != 0
}

// install installs the service, which runs the command.
func (b boot) install(l layout, command []string) error {
	if !b.possible() {
		return nil
	}
	there, err := os.ReadFile(b.script)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read service: %w", err)
	}
	if err == nil && !strings.Contains(string(there), bootMark) {
		return fmt.Errorf("install service: %s is another's; remove it, or the program that it belongs to", b.script)
	}
	content := strings.NewReplacer(
		"@LOCK@", shellWords(l.lock()), "@STATE@", shellWords(l.state), "@LOG@", shellWords(l.log()),
		"@PROGRAM@", shellWords(command[0]), "@COMMAND@", shellWords(command...),
		"@CMDLINE@", shellWords(strings.Join(command, " ")+" "), "@ENVIRONMENT@", shellWords(environment()...),
	).Replace(bootScript)
	if info, err := os.Stat(b.script); err != nil || content != string(there) || info.Mode().Perm() != 0o755 {
		if err := write(b.script, 0o755, []byte(content)); err != nil {
			return fmt.Errorf("install service: %w", err)
		}
	}
	for _, level := range bootLevels() {
		if err := b.enable(level); err != nil {
			return fmt.Errorf("install service: %w", err)
		}
	}
	return nil
}

// enable makes the link of a run level, where the host has that.
func (b boot) enable(level string) error {
	dir := filepath.Join(b.root, level)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	links, err := b.links(level)
	if err != nil {
		return err
	}
	for _, link := range links {
		if strings.HasPrefix(filepath.Base(link), "S") {
			return nil
		}
		if err := remove(link); err != nil { // somebody disabled it
			return err
		}
	}
	err = os.Symlink("../init.d/orrery", filepath.Join(dir, "S99orrery"))
	if err != nil && !errors.Is(err, fs.ErrExist) { // another agent made it meanwhile
		return err
	}
	return syncDir(dir)
}

// remove removes the service, if it is ours, and what a write of it left that was killed.
func (b boot) remove() error {
	there, err := os.ReadFile(b.script)
	if err == nil && !strings.Contains(string(there), bootMark) {
		return nil
	}
	paths, err := filepath.Glob(beside(b.script))
	if err != nil {
		return err
	}
	// Those of all run levels: insserv may have made others.
	links, err := b.links("etc/rc?.d")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range append(append(paths, links...), b.script) {
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}

// shellWords quotes words for the shell.
func shellWords(words ...string) string {
	quoted := make([]string, 0, len(words))
	for _, word := range words {
		quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}
