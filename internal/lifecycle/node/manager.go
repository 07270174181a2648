package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// packageManager says how one is asked, and told.
type packageManager struct {
	list, install, uninstall []string
	// mend is tried before an installation is tried a second time.
	mend [][]string
}

var packageManagers = map[string]packageManager{
	"apt": {
		list:      []string{"dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"},
		install:   []string{"apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"},
		uninstall: []string{"apt-get", "purge", "-y", "-q", "-o", "DPkg::Lock::Timeout=120"},
		mend:      [][]string{{"dpkg", "--configure", "-a"}, {"apt-get", "update", "-q"}},
	},
	"dnf":    rpm("dnf", "-y", "-q"),
	"yum":    rpm("yum", "-y", "-q"),
	"zypper": rpm("zypper", "--non-interactive", "--quiet"),
}

func rpm(command ...string) packageManager {
	return packageManager{
		list:      []string{"rpm", "-qa", "--qf", "installed %{NAME}\n"},
		install:   append(slices.Clone(command), "install"),
		uninstall: append(slices.Clone(command), "remove"),
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

// Install implements System. A second try follows what helps most: an interrupted installation is ended and the lists are
// made new.
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

// Uninstall implements System.
func (l *Linux) Uninstall(ctx context.Context, manager string, names []string) error {
	m, err := managerOf(manager)
	if err != nil {
		return err
	}
	_, err = l.Run(ctx, append(slices.Clone(m.uninstall), names...), "")
	return err
}
