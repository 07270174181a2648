package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The account of the operator, a user with sudo in each host. It is the same in every lab, since
// hosts can be reached only from this machine.
const (
	operator         = "operator"
	operatorID       = 4242 // of the user and the group
	operatorPassword = "operators secret"
	operatorHash     = "$6$orrerylab$fyhsb924.uzZbPDDliitue5rpr6BXZ06GuWPbedd06HYt.x7SLWPR7cHVUx4jU0.3dqQIfnI6lO0CkLu6ZASz."
)

// sshdConfig is the file sshd_config of each host.
const sshdConfig = `Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication yes
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 200
Subsystem sftp internal-sftp
`

// prepare creates the host's own files on this machine: the upper layer of its overlay, and the
// directories that begin empty. It does not start the host.
func (h *Host) prepare(ctx context.Context) error {
	modes := map[string]os.FileMode{
		"root": 0o755, "work": 0o755, "upper/etc/ssh": 0o755, "upper/etc/sudoers.d": 0o750,
		"private/root/.ssh": 0o700, "private/root": 0o700, "private/opt": 0o755,
		"private/usr/local": 0o755, "private/usr/local/bin": 0o755, "private/usr/local/sbin": 0o755,
		"private/usr/local/lib": 0o755, "private/usr/local/etc": 0o755, "private/usr/local/share": 0o755,
		"private/home/" + operator + "/.ssh": 0o700,
		"private/var/cache":                  0o755, "private/var/lib": 0o755, "private/var/log": 0o755, "private/var/spool": 0o755,
		"private/var/tmp": os.ModeSticky | 0o777, "private/tmp": os.ModeSticky | 0o777,
	}
	for path, mode := range modes {
		path = filepath.Join(h.dir, path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil { // the umask may have removed bits of the mode
			return err
		}
	}
	for name, target := range map[string]string{"run": "/run", "lock": "/run/lock"} {
		if err := os.Symlink(target, filepath.Join(h.dir, "private/var", name)); err != nil {
			return err
		}
	}
	if err := h.hide(); err != nil {
		return err
	}
	if err := h.prepareSystemd(); err != nil {
		return err
	}
	if err := h.writeFiles(); err != nil {
		return err
	}
	if err := h.writeAccounts(); err != nil {
		return err
	}
	return run(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", h.Name, "-f", h.upper("etc/ssh/ssh_host_ed25519_key"))
}

// hide makes files and directories of the machine invisible in the host that a new host would not
// have.
func (h *Host) hide() error {
	for _, path := range []string{"etc/cni", "etc/containerd", "etc/kubernetes", "etc/crictl.yaml"} {
		// In an overlay, a character device 0/0 marks a deletion.
		if err := unix.Mknod(h.upper(path), unix.S_IFCHR, 0); err != nil {
			return err
		}
	}
	for _, path := range []string{"etc/sysctl.d", "etc/modules-load.d", "etc/ssh/sshd_config.d"} {
		if err := os.MkdirAll(h.upper(path), 0o755); err != nil {
			return err
		}
		// An opaque directory hides the entries of the lower layer.
		if err := unix.Setxattr(h.upper(path), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return err
		}
	}
	return nil
}

// writeFiles writes files that differ in each host, such as hostname and authorized keys, and the
// configuration of SSH and sudo.
func (h *Host) writeFiles() error {
	key, err := os.ReadFile(h.lab.key + ".pub")
	if err != nil {
		return err
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	type file struct {
		content string
		mode    os.FileMode
	}
	files := map[string]file{
		"upper/etc/hostname":                                 {h.Name + "\n", 0o644},
		"upper/etc/machine-id":                               {hex.EncodeToString(id) + "\n", 0o444},
		"upper/etc/hosts":                                    {"127.0.0.1 localhost\n::1 localhost\n" + h.Address + " " + h.Name + "\n", 0o644},
		"upper/etc/resolv.conf":                              {"nameserver " + h.lab.network.gateway.String() + "\n", 0o644},
		"upper/etc/ssh/sshd_config":                          {sshdConfig, 0o644},
		"upper/etc/sudoers.d/operator":                       {operator + " ALL=(ALL:ALL) ALL\n", 0o440},
		"private/root/.ssh/authorized_keys":                  {string(key), 0o600},
		"private/home/" + operator + "/.ssh/authorized_keys": {string(key), 0o600},
	}
	for path, f := range files {
		if err := os.WriteFile(filepath.Join(h.dir, path), []byte(f.content), f.mode); err != nil {
			return err
		}
	}
	return filepath.WalkDir(filepath.Join(h.dir, "private/home", operator), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, operatorID, operatorID))
	})
}

// writeAccounts writes passwd, group and shadow of the host: those of the machine with the
// operator. root has no password, so it can log in only with the key.
func (h *Host) writeAccounts() error {
	id := strconv.Itoa(operatorID)
	lines := map[string]string{
		"passwd": fmt.Sprintf("%s:x:%s:%s::/home/%s:/bin/bash", operator, id, id, operator),
		"group":  fmt.Sprintf("%s:x:%s:", operator, id),
		"shadow": fmt.Sprintf("%s:%s:20000:0:99999:7:::", operator, operatorHash),
	}
	for name, line := range lines {
		content, err := os.ReadFile(filepath.Join("/etc", name))
		if err != nil {
			return err
		}
		var out strings.Builder
		out.WriteString(line + "\n")
		for existing := range strings.Lines(string(content)) {
			account, _, _ := strings.Cut(existing, ":")
			switch {
			case account == operator:
			case name == "shadow" && account == "root":
				out.WriteString("root:*:20000:0:99999:7:::\n")
			default:
				out.WriteString(existing)
			}
		}
		mode := os.FileMode(0o644)
		if name == "shadow" {
			mode = 0o600
		}
		if err := os.WriteFile(h.upper("etc/"+name), []byte(out.String()), mode); err != nil {
			return err
		}
	}
	return nil
}

// emptyDir removes the content of a directory, but not the directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
