package node

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// packageManager has the commands of a package manager.
type packageManager struct {
	list, install, uninstall []string
	// needed returns those of the packages on which other installed packages depend.
	needed func(*Linux, context.Context, []string) ([]string, error)
	// mend has commands to run before a second attempt to install.
	mend [][]string
}

var packageManagers = map[string]packageManager{
	"apt": {
		list:      []string{"dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"},
		install:   []string{"apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"},
		uninstall: []string{"apt-get", "purge", "-y", "-q", "-o", "DPkg::Lock::Timeout=120"},
		needed:    (*Linux).neededAPT,
		mend:      [][]string{{"dpkg", "--configure", "-a"}, {"apt-get", "update", "-q"}},
	},
	"dnf":    rpm("dnf", "-y", "-q", keepRequirements),
	"yum":    rpm("yum", "-y", "-q", keepRequirements),
	"zypper": rpm("zypper", "--non-interactive", "--quiet"),
}

// keepRequirements keeps packages that nothing needs any more, because the agent records which it
// installed.
const keepRequirements = "--setopt=clean_requirements_on_remove=False"

func rpm(command ...string) packageManager {
	return packageManager{
		list:      []string{"rpm", "-qa", "--qf", "installed %{NAME}\n"},
		install:   append(slices.Clone(command), "install"),
		uninstall: append(slices.Clone(command), "remove"),
		needed:    (*Linux).neededRPM,
	}
}

func managerOf(name string) (packageManager, error) {
	m, ok := packageManagers[name]
	if !ok {
		return m, fmt.Errorf("package manager %q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(packageManagers)), ", "))
	}
	return m, nil
}

// Packages implements System.
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

// Install implements System. After a failure it runs the repair commands, which finish an
// interrupted installation and update the package lists, and tries once more.
func (l *Linux) Install(ctx context.Context, manager string, names []string) error {
	m, err := managerOf(manager)
	if err != nil {
		return err
	}
	install := append(slices.Clone(m.install), names...)
	if _, err = l.Run(ctx, install, ""); err == nil || len(m.mend) == 0 {
		return err
	}
	for _, mend := range m.mend {
		if _, err := l.Run(ctx, mend, ""); err != nil {
			return err
		}
	}
	_, err = l.Run(ctx, install, "")
	return err
}

// Uninstall implements System. It leaves packages that others need, because package managers would
// remove the others, too.
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

// neededAPT asks apt-get in a simulation whether it would remove other packages with the given
// ones.
func (l *Linux) neededAPT(ctx context.Context, names []string) ([]string, error) {
	takesOthers := func(gone ...string) (bool, error) {
		output, err := l.Run(ctx, append([]string{"apt-get", "-s", "-q", "purge"}, gone...), "")
		if err != nil {
			return false, fmt.Errorf("find out what needs packages: %w", err)
		}
		for line := range strings.Lines(output) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "Remv" && fields[0] != "Purg" {
				continue
			}
			// The name is compared without the architecture.
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
		// The package's dependents among names go with it, and so do packages that need those.
		takes, err := takesOthers(name)
		if err != nil {
			return nil, err
		}
		if takes {
			needed = append(needed, name)
		}
	}
	if rest := without(names, needed); len(rest) > 0 {
		if takes, err := takesOthers(rest...); err != nil || takes { // any of the rest may be the cause
			return names, err
		}
	}
	return needed, nil
}

// neededBy matches rpm's line about a package that stays, and captures what it needs: a name.
var neededBy = regexp.MustCompile(`(?m)^\s*(\S+).* is needed by \(installed\) `)

// neededRPM asks rpm which packages others need, until there are no more. A package that stays may
// need others of the list.
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
			return nil, fmt.Errorf("find out what needs packages: %w", err)
		}
		before := len(needed)
		for _, match := range lacks {
			// rpm fails if there is no provider.
			providers, _ := l.Run(ctx, []string{"rpm", "-q", "--qf", "%{NAME}\n", "--whatprovides", match[1]}, "")
			for name := range strings.FieldsSeq(providers) {
				if slices.Contains(rest, name) && !slices.Contains(needed, name) {
					needed = append(needed, name)
				}
			}
		}
		if len(needed) == before {
			return names, nil // the cause is unknown, so all stay
		}
	}
}
