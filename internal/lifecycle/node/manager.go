package node

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// packageManager has the commands of a package manager, without the names of packages. list prints
// "installed NAME" for each installed package.
type packageManager struct {
	list, install, uninstall []string
	// needed returns those of the given packages on which other installed packages depend.
	needed func(*Linux, context.Context, []string) ([]string, error)
	// repair has the commands to run before a second attempt to install; nil: there is no second
	// attempt.
	repair [][]string
}

// packageManagers has the supported package managers by name.
var packageManagers = map[string]packageManager{
	"apt": {
		list:      []string{"dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"},
		install:   []string{"apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"},
		uninstall: []string{"apt-get", "purge", "-y", "-q", "-o", "DPkg::Lock::Timeout=120"},
		needed:    (*Linux).neededAPT,
		repair:    [][]string{{"dpkg", "--configure", "-a"}, {"apt-get", "update", "-q"}},
	},
	"dnf":    rpm("dnf", "-y", "-q", keepRequirements),
	"yum":    rpm("yum", "-y", "-q", keepRequirements),
	"zypper": rpm("zypper", "--non-interactive", "--quiet"),
}

// keepRequirements is the option of dnf and yum that makes uninstalling remove only the named
// packages, and not their dependencies. The agent knows from its record which dependencies it
// installed.
const keepRequirements = "--setopt=clean_requirements_on_remove=False"

// rpm returns the package manager for a command that manages rpm packages, such as dnf. command
// includes the options that every call has.
func rpm(command ...string) packageManager {
	return packageManager{
		list:      []string{"rpm", "-qa", "--qf", "installed %{NAME}\n"},
		install:   append(slices.Clone(command), "install"),
		uninstall: append(slices.Clone(command), "remove"),
		needed:    (*Linux).neededRPM,
	}
}

// managerOf returns the package manager with the name. An unknown name is an error.
func managerOf(name string) (packageManager, error) {
	m, ok := packageManagers[name]
	if !ok {
		return m, fmt.Errorf("package manager %q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(packageManagers)), ", "))
	}
	return m, nil
}

// Packages implements System. It lists the names of the packages that the package manager has
// installed, sorted.
func (l *Linux) Packages(ctx context.Context, manager string) ([]string, error) {
	m, err := managerOf(manager)
	if err != nil {
		return nil, err
	}
	output, err := l.Run(ctx, m.list, "")
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var names []string
	for line := range strings.Lines(output) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "installed "); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Install implements System. It installs packages with the package manager. If apt fails, Install
// finishes an interrupted installation, updates the package lists, and tries once more.
func (l *Linux) Install(ctx context.Context, manager string, names []string) error {
	m, err := managerOf(manager)
	if err != nil {
		return err
	}
	install := append(slices.Clone(m.install), names...)
	if _, err = l.Run(ctx, install, ""); err == nil || len(m.repair) == 0 {
		return err
	}
	for _, repair := range m.repair {
		if _, err := l.Run(ctx, repair, ""); err != nil {
			return err
		}
	}
	_, err = l.Run(ctx, install, "")
	return err
}

// Uninstall implements System. It uninstalls packages, except those on which other packages depend:
// the package manager would remove the others, too. It returns the packages that it keeps, also
// with an error. apt also removes configuration files.
func (l *Linux) Uninstall(ctx context.Context, manager string, names []string) (needed []string, err error) {
	m, err := managerOf(manager)
	if err != nil {
		return nil, err
	}
	if needed, err = m.needed(l, ctx, names); err != nil {
		return nil, err
	}
	if names = without(names, needed); len(names) > 0 {
		_, err = l.Run(ctx, append(slices.Clone(m.uninstall), names...), "")
	}
	return needed, err
}

// neededAPT returns those of the names whose removal would also remove packages that are not in
// names. It simulates the removal with apt-get. If it cannot find out which of the names are the
// cause, it returns all names.
func (l *Linux) neededAPT(ctx context.Context, names []string) ([]string, error) {
	takesOthers := func(gone ...string) (bool, error) {
		output, err := l.Run(ctx, append([]string{"apt-get", "-s", "-q", "purge"}, gone...), "")
		if err != nil {
			return false, fmt.Errorf("find the packages that depend on those to remove: %w", err)
		}
		for line := range strings.Lines(output) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "Remv" && fields[0] != "Purg" {
				continue
			}
			// apt may append the architecture to the name of a package, as in NAME:amd64.
			if name, _, _ := strings.Cut(fields[1], ":"); !slices.Contains(names, name) {
				return true, nil
			}
		}
		return false, nil
	}
	if takes, err := takesOthers(names...); err != nil || !takes {
		return nil, err
	}
	var needed []string
	for _, name := range names {
		// This simulation also removes the dependents of the package among names, and packages that
		// depend on those.
		takes, err := takesOthers(name)
		if err != nil {
			return nil, err
		}
		if takes {
			needed = append(needed, name)
		}
	}
	if rest := without(names, needed); len(rest) > 0 {
		if takes, err := takesOthers(rest...); err != nil || takes { // any name in rest may be the cause
			return names, err
		}
	}
	return needed, nil
}

// neededBy matches a line of rpm about a dependency of an installed package. It captures what that
// package depends on.
var neededBy = regexp.MustCompile(`(?m)^\s*(\S+).* is needed by \(installed\) `)

// neededRPM returns those of the names on which other installed packages depend. It repeats the
// check without these names, since a package that stays may itself depend on other names. It
// returns all names if rpm reports a dependency and no name provides that. If rpm fails without
// reporting a dependency, neededRPM returns an error.
func (l *Linux) neededRPM(ctx context.Context, names []string) (needed []string, err error) {
	for {
		rest := without(names, needed)
		if len(rest) == 0 {
			return needed, nil
		}
		output, err := l.Run(ctx, append([]string{"sh", "-c", `rpm -e --test "$@" 2>&1`, "sh"}, rest...), "")
		if err == nil {
			return needed, nil
		}
		lacks := neededBy.FindAllStringSubmatch(output, -1)
		if lacks == nil {
			return nil, fmt.Errorf("find the packages that depend on those to remove: %w", err)
		}
		before := len(needed)
		for _, match := range lacks {
			// The error is ignored: rpm fails if no package provides this.
			providers, _ := l.Run(ctx, []string{"rpm", "-q", "--qf", "%{NAME}\n", "--whatprovides", match[1]}, "")
			for name := range strings.FieldsSeq(providers) {
				if slices.Contains(rest, name) && !slices.Contains(needed, name) {
					needed = append(needed, name)
				}
			}
		}
		if len(needed) == before {
			return names, nil // it is unknown which names are needed, so keep all
		}
	}
}
