package unit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Runner runs a command on a host and returns its standard output. If the exit status is not 0, the
// error contains the standard error. The end of ctx ends the command.
type Runner func(ctx context.Context, argv []string) (output string, err error)

// NewSystemd returns the Manager for a host with systemd, whose files are below root. It writes the
// unit file of a unit, and the link that enables the unit, itself. For the rest it calls systemctl
// and journalctl through run.
//
// The Manager is for one goroutine at a time: a concurrent Restart might not wait until systemd has
// read the unit files.
func NewSystemd(root string, run Runner) Manager {
	return &systemd{dir: filepath.Join("/", root, "etc/systemd/system"), run: run}
}

// systemd is the Manager that NewSystemd returns. dir is the directory of unit files.
type systemd struct {
	dir string
	run Runner
	// stale is true while systemd has not read the unit files on disk. The next Restart or Remove then
	// calls systemctl daemon-reload.
	stale atomic.Bool
}

// path returns the path of the unit file of a unit.
func (s *systemd) path(name string) string { return filepath.Join(s.dir, service(name)) }

// link returns the path of the link that `systemctl enable` creates.
func (s *systemd) link(name string) string {
	return filepath.Join(s.dir, "multi-user.target.wants", service(name))
}

// service returns the name of a unit in systemd, with the suffix.
func service(name string) string { return name + ".service" }

// Observe implements Manager. It returns the status of each named unit by name, from its unit file
// and from systemctl.
func (s *systemd) Observe(ctx context.Context, names []string) (map[string]Status, error) {
	shown, err := s.show(ctx, names)
	if err != nil {
		return nil, err
	}
	all := make(map[string]Status, len(names))
	for _, name := range names {
		now := shown[name]
		status := now.status()
		file, err := os.ReadFile(s.path(name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			all[name] = status
			continue
		case err != nil:
			return nil, fmt.Errorf("observe unit %s: %w", name, err)
		}
		status.Installed = true
		if now["NeedDaemonReload"] == "yes" {
			s.stale.Store(true)
		}
		// A unit that is not enabled would not start after a reboot.
		if target, err := os.Readlink(s.link(name)); err == nil && filepath.Base(target) == service(name) {
			status.DefinitionHash = definitionHash(file)
		}
		all[name] = status
	}
	return all, nil
}

// properties are the properties of a unit by name, as `systemctl show` prints them.
type properties map[string]string

// show returns the properties of the named units, by name, with one call of systemctl. Units that
// do not exist have properties, too. It returns an error for an invalid name.
func (s *systemd) show(ctx context.Context, names []string) (map[string]properties, error) {
	if len(names) == 0 {
		return map[string]properties{}, nil // without a name, systemctl shows systemd itself
	}
	argv := []string{
		"systemctl", "show",
		"--property=Id,LoadState,ActiveState,SubState,Result,MainPID,ExecMainStatus,NRestarts,NeedDaemonReload,InvocationID," +
			"AssertResult,AssertTimestampMonotonic", "--",
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
		argv = append(argv, service(name))
	}
	output, err := s.run(ctx, argv)
	if err != nil {
		return nil, fmt.Errorf("observe units: %w", err)
	}
	all := make(map[string]properties, len(names))
	for block := range strings.SplitSeq(strings.TrimSpace(output), "\n\n") {
		p := properties{}
		for line := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			p[key] = value
		}
		all[strings.TrimSuffix(p["Id"], ".service")] = p
	}
	for _, name := range names {
		if all[name] == nil {
			return nil, fmt.Errorf("observe unit %s: systemctl says nothing about it", name)
		}
	}
	return all, nil
}

// status returns the status that follows from the properties, without Installed and DefinitionHash.
func (p properties) status() Status {
	var status Status
	// Old versions of systemd leave out unknown properties. A missing number is 0.
	status.PID, _ = strconv.Atoi(p["MainPID"])
	status.Restarts, _ = strconv.Atoi(p["NRestarts"])
	switch p["ActiveState"] {
	case "active", "activating", "reloading":
		status.Running = status.PID > 0
	}
	if !status.Running {
		status.PID = 0
		status.Detail = fmt.Sprintf("%s (%s), load state %s, result %s, last exit status %s",
			p["ActiveState"], p["SubState"], p["LoadState"], p["Result"], p["ExecMainStatus"])
		if p["AssertResult"] == "no" {
			status.Detail += ", not started because its data are missing"
		}
	}
	return status
}

// Install implements Manager. It writes the unit file, unless that is the same already, and the
// link that enables the unit. systemd reads the file at the next Restart or Remove.
func (s *systemd) Install(_ context.Context, u plan.Unit) error {
	if err := check(u); err != nil {
		return err
	}
	s.stale.Store(true)
	want := definition(u)
	if have, err := os.ReadFile(s.path(u.Name)); err != nil || !bytes.Equal(have, want) {
		if err := write(s.path(u.Name), want); err != nil {
			return fmt.Errorf("install unit %s: %w", u.Name, err)
		}
	}
	link := s.link(u.Name)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil { //nolint:gosec // as systemctl makes it
		return fmt.Errorf("enable unit %s: %w", u.Name, err)
	}
	if err := errors.Join(disk.Remove(link), os.Symlink("../"+service(u.Name), link)); err != nil {
		return fmt.Errorf("enable unit %s: %w", u.Name, err)
	}
	return nil
}

// reload makes systemd read the unit files, if s.stale is true, and clears s.stale. After an error
// s.stale stays true.
func (s *systemd) reload(ctx context.Context) error {
	if !s.stale.Swap(false) {
		return nil
	}
	if _, err := s.run(ctx, []string{"systemctl", "daemon-reload"}); err != nil {
		s.stale.Store(true)
		return fmt.Errorf("reload definitions: %w", err)
	}
	return nil
}

// restartPoll is the interval of checks during a restart.
const restartPoll = 50 * time.Millisecond

// Restart implements Manager. It makes systemd read new unit files, restarts the unit, and waits
// for a new invocation. It does not wait until the unit is ready, because etcd is ready only after
// other hosts have started theirs. It returns an error if systemd does not start the unit because
// its data are missing, see plan.Unit.Established.
func (s *systemd) Restart(ctx context.Context, name string) error {
	if err := s.reload(ctx); err != nil {
		return fmt.Errorf("restart unit %s: %w", name, err)
	}
	before, err := s.show(ctx, []string{name})
	if err != nil {
		return fmt.Errorf("restart unit %s: %w", name, err)
	}
	if _, err := s.run(ctx, []string{"systemctl", "restart", "--no-block", "--", service(name)}); err != nil {
		return fmt.Errorf("restart unit %s: %w", name, err)
	}
	for {
		now, err := s.show(ctx, []string{name})
		if err != nil {
			return fmt.Errorf("restart unit %s: %w", name, err)
		}
		if id := now[name]["InvocationID"]; id != "" && id != before[name]["InvocationID"] {
			return nil
		}
		if now[name]["AssertResult"] == "no" && now[name]["AssertTimestampMonotonic"] != before[name]["AssertTimestampMonotonic"] {
			return fmt.Errorf("restart unit %s: systemd does not start it: its data are missing, see AssertPathExistsGlob in %s", name, s.path(name))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("restart unit %s: it still is %s (%s): %w",
				name, now[name]["ActiveState"], now[name]["SubState"], context.Cause(ctx))
		case <-time.After(restartPoll):
		}
	}
}

// Reload implements Manager. It sends SIGHUP to the main process of the unit.
func (s *systemd) Reload(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if _, err := s.run(ctx, []string{"systemctl", "kill", "--kill-who=main", "--signal=SIGHUP", "--", service(name)}); err != nil {
		return fmt.Errorf("reload unit %s: %w", name, err)
	}
	return nil
}

// Remove implements Manager. It stops the unit, and removes the unit file and the link that enables
// the unit. A unit that does not exist is no error.
func (s *systemd) Remove(ctx context.Context, name string) error {
	shown, err := s.show(ctx, []string{name})
	if err != nil {
		return fmt.Errorf("remove unit %s: %w", name, err)
	}
	// systemd knows a unit while its file exists or it runs.
	if shown[name]["LoadState"] != "not-found" || shown[name]["ActiveState"] != "inactive" {
		if _, err := s.run(ctx, []string{"systemctl", "stop", "--", service(name)}); err != nil {
			return fmt.Errorf("remove unit %s: %w", name, err)
		}
		if shown, err = s.show(ctx, []string{name}); err != nil {
			return fmt.Errorf("remove unit %s: %w", name, err)
		}
	}
	if shown[name]["ActiveState"] == "failed" { // systemd would remember it without its file
		if _, err := s.run(ctx, []string{"systemctl", "reset-failed", "--", service(name)}); err != nil {
			return fmt.Errorf("remove unit %s: %w", name, err)
		}
	}
	if err := errors.Join(disk.Remove(s.link(name)), disk.Remove(s.path(name))); err != nil {
		return fmt.Errorf("remove unit %s: %w", name, err)
	}
	s.stale.Store(true)
	return s.reload(ctx)
}

// Log implements Manager. It reads the last lines of the unit from the journal.
func (s *systemd) Log(ctx context.Context, name string, lines int) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	output, err := s.run(ctx, []string{
		"journalctl", "--quiet", "--no-pager", "--output=cat", "--unit=" + service(name), "--lines=" + strconv.Itoa(lines),
	})
	if err != nil {
		return "", fmt.Errorf("read log of unit %s: %w", name, err)
	}
	return strings.TrimSuffix(output, "\n"), nil
}
