package host

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"orrery.dev/orrery/internal/process"
)

// server is the OpenSSH server of this package's tests. It has its own users and sudoers.
var server sshd

type sshd struct {
	port    int
	hostKey ssh.PublicKey
	key     []byte // PEM key for all users
	keyFile string
}

// password of every user, and its hash.
const (
	password     = "correct horse"
	passwordHash = "$6$orrery$YLuy96PzOTPvxhUHpch6KqKtL7/4nWRybiuicmjWXsVrrADJT8IOnPeRBrhQj2QrpklLH6MsVPzaLwGEaKfk20"
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	runtime.LockOSThread() // sshd dies with the thread that started it
	dir, err := os.MkdirTemp("", "sshd")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// No test may use the keys of the user who runs the tests.
	os.Unsetenv("SSH_AUTH_SOCK")
	os.Setenv("HOME", filepath.Join(dir, "home"))
	stop, err := server.start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	return m.Run()
}

// start starts sshd in its own namespaces, so that its users are not users of this machine.
func (s *sshd) start(dir string) (stop func(), err error) {
	if err := os.Chmod(dir, 0o755); err != nil { // sshd reads authorized keys as the user
		return nil, err
	}
	key, pub, err := newKey()
	if err != nil {
		return nil, err
	}
	hostPEM, hostKey, err := newKey()
	if err != nil {
		return nil, err
	}
	s.key, s.hostKey, s.keyFile = key, hostKey, filepath.Join(dir, "key")
	port, err := process.ReservePort("127.0.0.1", 0) // until this process ends
	if err != nil {
		return nil, err
	}
	s.port = port.Number
	users := []struct{ name, shell, sudo string }{
		{"operator", "/bin/bash", "operator ALL=(ALL) ALL"},
		{"free", "/bin/sh", "free ALL=(ALL) NOPASSWD: ALL"},
		{"guest", "/bin/sh", ""},
		{"terminal", "/bin/sh", "Defaults:terminal requiretty\nterminal ALL=(ALL) ALL"},
		{"bare", "/bin/sh", ""},
		{"closed", "/usr/sbin/nologin", ""},
		{"chatty", "/bin/bash", "chatty ALL=(ALL) ALL"},
		{"mute", filepath.Join(dir, "mute.sh"), ""},
	}
	passwd := "root:x:0:0::/root:/bin/sh\nsshd:x:102:65534::/run/sshd:/usr/sbin/nologin\n"
	shadow := "root:" + passwordHash + ":1::::::\nsshd:*:1::::::\n"
	sudoers := "Defaults use_pty, passwd_tries=3\nroot ALL=(ALL:ALL) ALL\n"
	for i, u := range users {
		home := filepath.Join(dir, u.name)
		if err := os.Mkdir(home, 0o755); err != nil {
			return nil, err
		}
		passwd += fmt.Sprintf("%s:x:%d:65534::%s:%s\n", u.name, 2001+i, home, u.shell)
		shadow += u.name + ":" + passwordHash + ":1::::::\n"
		sudoers += u.sudo + "\n"
	}
	files := map[string]struct {
		content string
		mode    os.FileMode
	}{
		"passwd": {passwd, 0o644}, "shadow": {shadow, 0o600}, "sudoers": {sudoers, 0o440},
		"hostkey": {string(hostPEM), 0o600}, "key": {string(key), 0o600},
		"keys":           {string(ssh.MarshalAuthorizedKey(pub)), 0o644},
		"chatty/.bashrc": {"echo welcome\necho 'no news' >&2\n", 0o644},
		"mute.sh":        {"#!/bin/sh\nexec cat\n", 0o755},
		"config": {fmt.Sprintf(`
ListenAddress 127.0.0.1:%d
HostKey %[2]s/hostkey
PidFile none
UsePAM no
PasswordAuthentication yes
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
AuthorizedKeysFile %[2]s/keys
MaxStartups 100
AcceptEnv LANG
Match User bare
  SetEnv PATH=%[2]s/bin
Match User free
  MaxSessions 2
`, s.port, dir), 0o644},
	}
	for name, file := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(file.content), file.mode); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.Symlink("/usr/bin/env", filepath.Join(dir, "bin", "env"))); err != nil {
		return nil, err
	}
	cmd := exec.Command("sh", "-ec", `
mount --make-rprivate /
mount -t proc none /proc
for f in passwd shadow sudoers; do mount --bind "$1/$f" "/etc/$f"; done
mount -t tmpfs none /run
mkdir /run/sshd
exec /usr/sbin/sshd -D -e -f "$1/config"`, "sh", dir)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	// sshd is the first process of its namespace, so its children end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
		if err == nil {
			return stop, conn.Close()
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("sshd does not listen: %w: %s", err, log.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// patience is how long something may take that should take a moment, on a busy machine.
const patience = 3 * time.Minute

// target returns a target for a user, with the key.
func (s *sshd) target(user string) Target {
	return Target{
		Name: "cp-1", Address: "127.0.0.1", Port: s.port, User: user, PrivateKey: Secret(s.key),
		SudoPassword: password, Timeout: patience,
	}
}

// trusting returns a dialer that records the server's key. A busy machine may be silent for long.
func (s *sshd) trusting(t *testing.T) *SSH {
	t.Helper()
	return &SSH{KnownHosts: filepath.Join(t.TempDir(), "known_hosts"), KeepAlive: patience}
}

// dial connects as user during the test.
func (s *sshd) dial(t *testing.T, user string) Conn {
	t.Helper()
	return connect(t, s.trusting(t), s.target(user))
}

func connect(t *testing.T, d Dialer, target Target) Conn {
	t.Helper()
	c, err := d.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newKey() (private []byte, public ssh.PublicKey, err error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, nil, err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(block), signer.PublicKey(), nil
}

// closedPort returns a port on which nobody listens during the test.
func closedPort(t *testing.T) int {
	t.Helper()
	port, err := process.ReservePort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Release() })
	return port.Number
}

// shell runs a script over c and returns its output without the last newline.
func shell(t *testing.T, c Conn, script string) string {
	t.Helper()
	var out bytes.Buffer
	if err := c.Run(t.Context(), []string{"sh", "-c", script}, nil, &out); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("timed out: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// noSecrets checks that messages contain no secret.
func noSecrets(t *testing.T, messages ...string) {
	t.Helper()
	for _, m := range messages {
		if strings.Contains(m, password) || strings.Contains(m, "BEGIN OPENSSH") {
			t.Errorf("a message shows a secret: %s", m)
		}
	}
}
