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

// hostKeys checks the key that one host shows against the known keys. Under the policy Pinned these
// are those of the target, else those of the known_hosts files.
type hostKeys struct {
	target Target
	policy KeyPolicy
	record string              // the file for new keys; under Pinned, the source of the target's keys
	files  []string            // all files to read
	pinned ssh.HostKeyCallback // the target's keys, under Pinned
}

// hostKeys prepares the check of the key that t shows. It creates the known_hosts file for new keys
// if it is missing. Under the policy Pinned it uses no files, and returns a *NoHostKey if t has no
// key.
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

// pinnedKeys prepares the check of the key that t shows, under the policy Pinned: only t.KnownHosts
// are valid. It returns a *NoHostKey if they have no key for the host.
func pinnedKeys(t Target) (k *hostKeys, err error) {
	k = &hostKeys{target: t, policy: Pinned, record: t.KnownHostsIn}
	// Package knownhosts reads only files, so write the keys to a temporary one.
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

// touch creates file and its directory if they do not exist.
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

// check returns nil if key is a known key of the host. For another key it returns a
// *knownhosts.KeyError, whose Want lists the known keys of the host; an empty list means that the
// host is unknown. Other errors are about revoked keys, certificates and unreadable files.
func (k *hostKeys) check(key ssh.PublicKey) error {
	known := k.pinned
	if known == nil {
		var err error
		if known, err = knownhosts.New(k.files...); err != nil {
			return fmt.Errorf("host %s: read the known keys: %w; correct or remove that line", k.target.Name, err)
		}
	}
	// Package knownhosts prefers the address that is given as text. The address of the connection may
	// be that of the bastion.
	return known(k.target.hostPort(), &net.TCPAddr{}, key)
}

// algorithms returns the host key algorithms to request, those of the known keys first. Otherwise a
// host with several keys could show one that is not known, which would look like a changed key. The
// algorithms of certificates are included only if an authority is known for the host.
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

// isAuthority reports whether the line of a known key begins with @cert-authority. The library does
// not report this.
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

// noKey is a key that no host has. Checking it returns an error that lists the known keys of the
// host.
type noKey struct{}

func (noKey) Type() string                            { return "none" }
func (noKey) Marshal() []byte                         { return nil }
func (noKey) Verify(_ []byte, _ *ssh.Signature) error { return errors.New("no key verifies nothing") }

// verify is called with the key that the host shows in the handshake. It returns nil if the key is
// known. Under TrustOnFirstUse it also records and accepts the first key of an unknown host. The
// error is a *HostKeyChanged or *UnknownHostKey, or says why the key cannot be checked.
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

// judge turns err, the result of check for key, into an error for the user. It is an
// *UnknownHostKey if no key of the host is known, and a *HostKeyChanged if another key is known.
// Other errors say that the key is revoked or the certificate is invalid. judge returns nil if err
// is nil.
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

// file returns where a known key comes from, for messages: the path of the file, or under Pinned
// the name of the source.
func (k *hostKeys) file(known knownhosts.KnownKey) string {
	if k.policy == Pinned {
		return k.record
	}
	return known.Filename
}

// line returns the line of a known_hosts file that makes key known for the host.
func (k *hostKeys) line(key ssh.PublicKey) string {
	return knownhosts.Line([]string{k.target.hostPort()}, key)
}

// trust records key as the key of the host in the known_hosts file k.record. If another process has
// recorded the same key meanwhile, it does nothing. If that process has recorded another key, the
// error is a *HostKeyChanged.
//
// trust locks the directory of the file, so that a concurrent process cannot record a second key or
// lose a line. A loss of power leaves the old or the new file.
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
