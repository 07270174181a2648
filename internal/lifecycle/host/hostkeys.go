package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"orrery.dev/orrery/internal/disk"
)

// hostKeys checks the key of one host against the known keys: those of files, or the target's own.
type hostKeys struct {
	target Target
	policy KeyPolicy
	record string              // the file that new keys go to; under Pinned, where the target's own stand
	files  []string            // all that are read
	pinned ssh.HostKeyCallback // the target's own keys, under Pinned
}

// hostKeys prepares the check of t's key.
func (s *SSH) hostKeys(t Target) (*hostKeys, error) {
	if s.HostKeys == Pinned {
		return pinnedKeys(t)
	}
	home, err := os.UserHomeDir()
	if err != nil && s.KnownHosts == "" {
		return nil, fmt.Errorf("host %s: find the file of known keys: %w", t.Name, err)
	}
	k := &hostKeys{target: t, policy: cmp.Or(s.HostKeys, TrustOnFirstUse), record: s.KnownHosts}
	users := filepath.Join(home, ".ssh", "known_hosts")
	if k.record == "" {
		k.record = users
	}
	if err := touch(k.record); err != nil {
		return nil, fmt.Errorf("host %s: make the file of known keys: %w", t.Name, err)
	}
	k.files = []string{k.record}
	if _, err := os.Stat(users); err == nil && users != k.record {
		k.files = append(k.files, users)
	}
	return k, nil
}

// pinnedKeys prepares the check of t's key against t's own. A host that they do not name is refused here, before it is dialled.
func pinnedKeys(t Target) (k *hostKeys, err error) {
	k = &hostKeys{target: t, policy: Pinned, record: t.KnownHostsIn}
	// The library reads files only.
	file, err := os.CreateTemp("", "known_hosts")
	if err != nil {
		return nil, fmt.Errorf("host %s: read its known keys: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = file.WriteString(t.KnownHosts)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("host %s: read its known keys: %w", t.Name, err)
	}
	if k.pinned, err = knownhosts.New(file.Name()); err != nil {
		where := strings.ReplaceAll(err.Error(), file.Name(), t.KnownHostsIn)
		return nil, fmt.Errorf("host %s: read the known keys: %s; correct or remove that line", t.Name, where)
	}
	var unknown *knownhosts.KeyError
	if errors.As(k.check(noKey{}), &unknown) && len(unknown.Want) == 0 {
		return nil, &NoHostKey{Host: t.Name, Address: t.Address, Port: t.Port, In: t.KnownHostsIn}
	}
	return k, nil
}

// touch makes file and its directory unless they exist.
func touch(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// check returns nil if the files know key, a *knownhosts.KeyError if they do not.
func (k *hostKeys) check(key ssh.PublicKey) error {
	known := k.pinned
	if known == nil {
		var err error
		if known, err = knownhosts.New(k.files...); err != nil {
			return fmt.Errorf("host %s: read the known keys: %w; correct or remove that line", k.target.Name, err)
		}
	}
	// An address that is given as text goes before that of the connection, which may be the bastion's.
	return known(k.target.hostPort(), &net.TCPAddr{}, key)
}

// algorithms to ask the host for, those of the known keys first: a host with several keys would else show another one, which
// looks as if it had changed. Certificates are asked for only if an authority is known for the host: without one, a host that
// has a certificate is to show its plain key.
func (k *hostKeys) algorithms() ([]string, error) {
	var plain, certificates []string
	for _, algorithm := range ssh.SupportedAlgorithms().HostKeys {
		if strings.Contains(algorithm, "-cert-") {
			certificates = append(certificates, algorithm)
		} else {
			plain = append(plain, algorithm)
		}
	}
	var unknown *knownhosts.KeyError
	if err := k.check(noKey{}); !errors.As(err, &unknown) {
		return plain, err
	}
	var known []string
	authorities := false
	for _, want := range unknown.Want {
		authority, err := k.isAuthority(want)
		switch kind := want.Key.Type(); {
		case err != nil:
			return nil, err
		case authority:
			authorities = true
		case kind == ssh.KeyAlgoRSA:
			known = append(known, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			known = append(known, kind)
		}
	}
	if authorities {
		known = append(known, certificates...)
	}
	return append(known, slices.DeleteFunc(plain, func(a string) bool { return slices.Contains(known, a) })...), nil
}

// isAuthority says whether a line is of an authority that signs the keys of hosts, which the library does not tell.
func (k *hostKeys) isAuthority(known knownhosts.KnownKey) (bool, error) {
	text := k.target.KnownHosts
	if k.policy != Pinned {
		content, err := os.ReadFile(known.Filename)
		if err != nil {
			return false, fmt.Errorf("host %s: read the known keys: %w", k.target.Name, err)
		}
		text = string(content)
	}
	lines := strings.Split(text, "\n")
	return known.Line <= len(lines) && strings.HasPrefix(strings.TrimSpace(lines[known.Line-1]), "@cert-authority"), nil
}

// noKey is a key that no host has: checking it yields those that the host has.
type noKey struct{}

func (noKey) Type() string                            { return "none" }
func (noKey) Marshal() []byte                         { return nil }
func (noKey) Verify(_ []byte, _ *ssh.Signature) error { return errors.New("no key verifies nothing") }

// verify accepts a known key, and under TrustOnFirstUse also the key of a host of which none is known.
func (k *hostKeys) verify(ctx context.Context, key ssh.PublicKey) error {
	err := k.judge(key, k.check(key))
	var unknown *UnknownHostKey
	if !errors.As(err, &unknown) || k.policy != TrustOnFirstUse {
		return err
	}
	if err := k.trust(ctx, key); err != nil {
		return fmt.Errorf("host %s: record its key: %w", k.target.Name, err)
	}
	return nil
}

// judge says what the outcome of check means.
func (k *hostKeys) judge(key ssh.PublicKey, err error) error {
	var mismatch *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case errors.As(err, &revoked):
		return fmt.Errorf("host %s: its key %s is revoked by %s:%d; give the host a new one",
			k.target.Name, ssh.FingerprintSHA256(key), k.file(revoked.Revoked), revoked.Revoked.Line)
	case err == nil:
		return nil
	case !errors.As(err, &mismatch):
		if _, ok := key.(*ssh.Certificate); ok {
			return fmt.Errorf("host %s: its certificate is refused: %w; issue it anew by an authority that %s names for %s (@cert-authority), or name the host's plain key there",
				k.target.Name, err, k.record, knownhosts.Normalize(k.target.hostPort()))
		}
		return err
	case len(mismatch.Want) == 0:
		return &UnknownHostKey{
			Host: k.target.Name, File: k.record, Line: k.line(key), Got: ssh.FingerprintSHA256(key),
		}
	}
	want := mismatch.Want[0]
	if i := slices.IndexFunc(mismatch.Want, func(w knownhosts.KnownKey) bool { return w.Key.Type() == key.Type() }); i > 0 {
		want = mismatch.Want[i]
	}
	return &HostKeyChanged{
		Host: k.target.Name, Address: knownhosts.Normalize(k.target.hostPort()), File: k.file(want), Line: want.Line,
		Want: ssh.FingerprintSHA256(want.Key), Got: ssh.FingerprintSHA256(key), Pinned: k.policy == Pinned,
	}
}

// file is where a known key stands.
func (k *hostKeys) file(known knownhosts.KnownKey) string {
	if k.policy == Pinned {
		return k.record
	}
	return known.Filename
}

// line is how the file knows key.
func (k *hostKeys) line(key ssh.PublicKey) string {
	return knownhosts.Line([]string{k.target.hostPort()}, key)
}

// trust records key. Who dials at the same time, in this process or another, waits, so that a second key of the
// host is refused and no line is lost; a power loss leaves the file as it was or as it is to be.
func (k *hostKeys) trust(ctx context.Context, key ssh.PublicKey) error {
	dir, err := os.Open(filepath.Dir(k.record))
	if err != nil {
		return err
	}
	defer disk.Unlock(dir)
	if err := disk.LockOpen(ctx, dir); err != nil {
		return err
	}
	var unknown *UnknownHostKey
	if err := k.judge(key, k.check(key)); !errors.As(err, &unknown) {
		return err
	}
	content, err := os.ReadFile(k.record)
	if err != nil {
		return err
	}
	if len(content) > 0 && content[len(content)-1] != '\n' {
		content = append(content, '\n')
	}
	return disk.WriteFile(k.record, 0o600, append(content, k.line(key)+"\n"...))
}
