package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"orrery.dev/orrery/internal/neutral"
)

const (
	// defaultIdle is the default of Source.Idle.
	defaultIdle = 30 * time.Second
	// maxChecksums is how many bytes of a checksum file are read at most.
	maxChecksums = 1 << 20
)

// Source downloads files of a catalog from upstream or from a mirror, and stores them.
type Source struct {
	// Base is the URL of a mirror; "" means upstream. The URL of a file at the mirror is Base followed
	// by its upstream URL without the scheme.
	Base string
	// Dir stores files by digest. Several processes may share it.
	Dir string
	// Client makes the requests; nil means http.DefaultClient, which uses the proxies in the
	// environment.
	Client *http.Client
	// Idle is how long a server may send nothing before the request fails and is retried. 0 means 30
	// seconds.
	Idle time.Duration
}

// Resolve returns the digests of files by File.Key. A digest is that of the catalog, or else the
// one in the checksum file of the file. Resolve reads each checksum file once. It does so only over
// encrypted connections or the loopback, because an attacker could otherwise change it together
// with the file.
//
// If a digest cannot be found, it returns an error about all such files and no result.
func (s *Source) Resolve(ctx context.Context, files []File) (map[string]string, error) {
	published := map[string]func() (string, error){}
	for _, f := range files {
		if f.Digest == "" && published[f.ChecksumURL] == nil && !s.unprotected(f.ChecksumURL) {
			published[f.ChecksumURL] = sync.OnceValues(func() (string, error) { return s.read(ctx, f.ChecksumURL) })
		}
	}
	digests, errs := make([]string, len(files)), make([]error, len(files))
	var group sync.WaitGroup
	for i, f := range files {
		if f.Digest != "" {
			digests[i] = f.Digest
			continue
		}
		if s.unprotected(f.ChecksumURL) {
			errs[i] = fmt.Errorf("find the digest of %s: %s comes unprotected, and so does the file: use https, or add digests[%q] in a file given with --catalog",
				f.Key(), s.shown(f.ChecksumURL), f.Key())
			continue
		}
		group.Go(func() {
			text, err := published[f.ChecksumURL]()
			if err == nil {
				digests[i], err = s.find(text, f)
			}
			if err != nil {
				errs[i] = fmt.Errorf("find the digest of %s: %w", f.Key(), err)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	resolved := make(map[string]string, len(files))
	for i, f := range files {
		resolved[f.Key()] = digests[i]
	}
	return resolved, nil
}

// checksumLine matches a line of a checksum file, and captures the digest and the name, if there is
// one.
var checksumLine = regexp.MustCompile(`^([0-9a-fA-F]{64})(?:\s+\*?(\S+))?\s*$`)

// find returns the digest of a file from the text of its checksum file. The text has lines of
// digest and name, or only one digest. A text without the name of the file is an error.
func (s *Source) find(text string, f File) (string, error) {
	name := path.Base(f.URL)
	for line := range strings.Lines(text) {
		found := checksumLine.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		alone := found[2] == "" && len(strings.Fields(text)) == 1
		if alone || path.Base(found[2]) == name {
			return "sha256:" + strings.ToLower(found[1]), nil
		}
	}
	return "", fmt.Errorf("%s has no SHA-256 of %s: %s", s.shown(f.ChecksumURL), name, s.advice("has the wrong file there"))
}

// read reads a checksum file, of at most maxChecksums bytes, over encrypted connections or the
// loopback. upstream is its URL upstream.
func (s *Source) read(ctx context.Context, upstream string) (string, error) {
	var text []byte
	err := persist(ctx, func() (bool, error) {
		response, err := s.get(ctx, s.protected(), upstream, 0)
		if err != nil {
			return false, err
		}
		text, err = io.ReadAll(io.LimitReader(response.Body, maxChecksums))
		return false, errors.Join(err, response.Body.Close())
	})
	return string(text), err
}

// locate returns the URL from which a file is requested: its URL at the mirror, or upstream if
// s.Base is "".
func (s *Source) locate(upstream string) string {
	if s.Base == "" {
		return upstream
	}
	_, rest, _ := strings.Cut(upstream, "://")
	return strings.TrimRight(s.Base, "/") + "/" + rest
}

// unprotected reports whether the request for a file passes a network without encryption. upstream
// is its URL upstream.
func (s *Source) unprotected(upstream string) bool {
	u, err := url.Parse(s.locate(upstream))
	return err == nil && unencrypted(u)
}

// unencrypted reports whether a request to the URL passes a network without encryption. The
// loopback does not count as a network.
func unencrypted(u *url.URL) bool {
	if u.Scheme != "http" || u.Hostname() == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err != nil || !ip.IsLoopback()
}

// shown returns the URL from which a file is requested, as messages may show it. upstream is its
// URL upstream.
func (s *Source) shown(upstream string) string {
	at := s.locate(upstream)
	if _, err := url.Parse(at); err != nil {
		return upstream
	}
	return neutral.ShownLocation(at)
}

// advice returns a text for messages that names the party whose fault it may be: upstream or the
// mirror. fault says what that party did, such as "has no such file".
func (s *Source) advice(fault string) string {
	if s.Base == "" {
		return "upstream " + fault + ", or the catalogue has the wrong URL"
	}
	return "the mirror " + fault + "; its layout is that of the upstream URLs without their scheme"
}
