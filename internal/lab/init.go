package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// systemd is the path of systemd on Debian.
const systemd = "/usr/lib/systemd/systemd"

// initCommand is the command line that becomes PID 1 of a host. The variable container makes
// systemd expect less of the system.
const initCommand = "container=lab " + systemd + " --log-target=console --show-status=no"

// systemdUnits are the units of the machine that also run in a host. The machine's other units set
// up devices, kernel settings and logins, which a host shares with the machine.
var systemdUnits = []string{
	"dbus.service", "dbus.socket", "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
}

// prepareSystemd masks the machine's other units in the host, and enables sshd.
func (h *Host) prepareSystemd() error {
	dir := h.upper("etc/systemd/system")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return err
	}
	wanted, err := filepath.Glob("/usr/lib/systemd/system/*.wants/*")
	if err != nil {
		return err
	}
	for _, path := range wanted {
		name := filepath.Base(path)
		if slices.Contains(systemdUnits, name) {
			continue
		}
		err := os.Symlink("/dev/null", filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// multi-user.target starts the enabled units, as on any host.
	for link, target := range map[string]string{
		"default.target": "multi-user.target", "multi-user.target.wants/ssh.service": "ssh.service",
	} {
		link = filepath.Join(dir, link)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("/usr/lib/systemd/system/"+target, link); err != nil {
			return err
		}
	}
	return nil
}
