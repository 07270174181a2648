package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// login has the SSH authentication methods for one host. tried are the names of the methods that
// were tried, and of those that were impossible, for the message of a refused login.
type login struct {
	methods []ssh.AuthMethod
	tried   []string
	agent   net.Conn // connection to the SSH agent; nil if it is not used
}

// newLogin collects the authentication methods for t. A key that t has or names, and that cannot be
// read or parsed, is an error. If t has neither a key nor a password, it uses the keys of
// ambientKeys. The caller closes the login after the handshake.
func newLogin(ctx context.Context, t Target) (*login, error) {
	l := &login{}
	var keys []ssh.Signer
	var names []string
	if t.PrivateKey != "" {
		key, err := parseKey([]byte(t.PrivateKey))
		if err != nil {
			return nil, fmt.Errorf("host %s: parse its privateKey: %w", t.Name, err)
		}
		keys, names = append(keys, key), append(names, "the private key "+ssh.FingerprintSHA256(key.PublicKey()))
	}
	if t.PrivateKeyPath != "" {
		key, err := readKey(t.PrivateKeyPath)
		if err != nil {
			return nil, fmt.Errorf("host %s: read its private key: %w", t.Name, err)
		}
		keys, names = append(keys, key), append(names, t.PrivateKeyPath)
	}
	if len(keys) == 0 && t.Password == "" {
		keys, names = l.ambientKeys(ctx)
	}
	if len(keys) > 0 {
		l.methods = append(l.methods, ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			l.tried = append(l.tried, names...)
			return keys, nil
		}))
	}
	if t.Password != "" {
		l.usePassword(string(t.Password))
	}
	return l, nil
}

// ambientKeys returns the keys of the SSH agent and of ~/.ssh, and their names for messages. They
// are for a target without a key and password. Keys that are missing or cannot be read are added to
// l.tried.
func (l *login) ambientKeys(ctx context.Context) (keys []ssh.Signer, names []string) {
	keys, err := l.agentKeys(ctx)
	if err != nil {
		l.tried = append(l.tried, err.Error())
	}
	for _, key := range keys {
		names = append(names, "the agent's "+ssh.FingerprintSHA256(key.PublicKey()))
	}
	for _, file := range []string{"~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"} {
		key, err := readKey(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			l.tried = append(l.tried, file+" (absent)")
		case err != nil:
			l.tried = append(l.tried, err.Error())
		default:
			keys, names = append(keys, key), append(names, file)
		}
	}
	return keys, names
}

// agentKeys returns the keys of the SSH agent at SSH_AUTH_SOCK. It returns an error if there is no
// agent or the agent has no key. The connection to the agent stays open in l.agent, because the
// agent signs during the handshake.
func (l *login) agentKeys(ctx context.Context) ([]ssh.Signer, error) {
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, errors.New("no agent (SSH_AUTH_SOCK is not set)")
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("no agent (SSH_AUTH_SOCK: %w)", err)
	}
	l.agent = conn
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, fmt.Errorf("set the deadline of the connection to the SSH agent (SSH_AUTH_SOCK): %w", err)
		}
	}
	keys, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, fmt.Errorf("no agent (SSH_AUTH_SOCK: list its keys: %w)", err)
	}
	if len(keys) == 0 {
		return nil, errors.New("the agent without keys (ssh-add adds one)")
	}
	return keys, nil
}

// usePassword adds the two SSH methods by which servers request a password. It sends the password
// only once, since a second failure may lock the account. Other questions of the server are not
// answered.
func (l *login) usePassword(password string) {
	given := false
	l.methods = append(l.methods, ssh.PasswordCallback(func() (string, error) {
		given = true
		l.tried = append(l.tried, "the password")
		return password, nil
	}), ssh.KeyboardInteractive(func(_, _ string, questions []string, echos []bool) ([]string, error) {
		switch {
		case len(questions) == 0: // some servers end with an empty question
			return nil, nil
		case given: // a second time would count as a second failure, and may lock the account
			return nil, errors.New("the password was refused")
		case len(questions) > 1 || echos[0]:
			l.tried = append(l.tried, fmt.Sprintf("the host's questions %q (only a password is answered)", questions))
			return nil, errors.New("only a password is answered")
		}
		given = true
		l.tried = append(l.tried, "the password (keyboard-interactive)")
		return []string{password}, nil
	}))
}

// refused returns the *Unauthorized for a login that the host has refused, with the names of
// everything that was tried. err is the error of the handshake.
func (l *login) refused(t Target, err error) error {
	tried := l.tried
	if t.Password != "" && !strings.Contains(strings.Join(tried, ","), "the password") {
		tried = append(tried, "the password (the server asks for none)")
	}
	return &Unauthorized{Host: t.Name, User: t.User, Tried: tried, Err: err}
}

// close closes the connection to the SSH agent, if there is one.
func (l *login) close() {
	if l.agent != nil {
		_ = l.agent.Close() // nothing was written that could be lost
	}
}

// readKey reads a PEM key from a file. A leading ~/ is the home directory. The error wraps
// fs.ErrNotExist if the file does not exist.
func readKey(file string) (ssh.Signer, error) {
	path := file
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", file, err)
		}
		path = filepath.Join(home, rest)
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err // the error of os.ReadFile names the file
	}
	key, err := parseKey(pem)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// parseKey parses a PEM key. A key with a passphrase is an error.
func parseKey(pem []byte) (ssh.Signer, error) {
	key, err := ssh.ParsePrivateKey(pem)
	if _, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		return nil, errors.New("the key is encrypted: add it to an SSH agent (ssh-add) and leave the host's key and password out")
	}
	return key, err
}
