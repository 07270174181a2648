package unit

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// bootService is what starts the supervisor when the host boots.
type bootService struct {
	layout
	script string
}

func (l layout) boot() bootService { return bootService{l, filepath.Join(l.root, "etc/init.d/orrery")} }

// possible is true where the init system starts what is in the directories of run levels.
func (s bootService) possible() bool {
	for _, dir := range []string{filepath.Dir(s.script), filepath.Join(s.root, bootLevels()[0])} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// links are those that are there in a directory. insserv gives them other numbers, by what they require.
func (s bootService) links(level string) ([]string, error) {
	return filepath.Glob(filepath.Join(s.root, level, "[SK][0-9][0-9]orrery"))
}

// installed is true where the init system starts the supervisor, or could not anyway.
func (s bootService) installed() bool {
	if !s.possible() {
		return true
	}
	links, err := s.links(bootLevels()[0])
	if err != nil || len(links) == 0 || !strings.HasPrefix(filepath.Base(links[0]), "S") {
		return false
	}
	info, err := os.Stat(s.script)
	return err == nil && info.Mode()&0o100 != 0
}

// install installs the service, which runs the command.
func (s bootService) install(command []string) error {
	if !s.possible() {
		return nil
	}
	there, err := os.ReadFile(s.script)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read service: %w", err)
	}
	if err == nil && !strings.Contains(string(there), bootMark) {
		return fmt.Errorf("install service: %s is another's; remove it, or the program that it belongs to", s.script)
	}
	content := strings.NewReplacer(
		"@LOCK@", shellWords(s.lock()), "@STATE@", shellWords(s.state), "@LOG@", shellWords(s.log()),
		"@PROGRAM@", shellWords(command[0]), "@COMMAND@", shellWords(command...),
		"@CMDLINE@", shellWords(strings.Join(command, " ")+" "), "@ENVIRONMENT@", shellWords(environment()...),
	).Replace(bootScript)
	if info, err := os.Stat(s.script); err != nil || content != string(there) || info.Mode().Perm() != 0o755 {
		if err := write(s.script, 0o755, []byte(content)); err != nil {
			return fmt.Errorf("install service: %w", err)
		}
	}
	for _, level := range bootLevels() {
		if err := s.enable(level); err != nil {
			return fmt.Errorf("install service: %w", err)
		}
	}
	return nil
}

// enable makes the link of a run level, where the host has that.
func (s bootService) enable(level string) error {
	dir := filepath.Join(s.root, level)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	links, err := s.links(level)
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
func (s bootService) remove() error {
	there, err := os.ReadFile(s.script)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read service: %w", err)
	}
	if err == nil && !strings.Contains(string(there), bootMark) {
		return nil
	}
	paths, err := filepath.Glob(beside(s.script))
	if err != nil {
		return err
	}
	// Those of all run levels: insserv may have made others.
	links, err := s.links("etc/rc?.d")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range slices.Concat(links, paths, []string{s.script}) {
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
