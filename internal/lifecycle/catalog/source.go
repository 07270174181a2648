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
)

const (
	// defaultIdle is the default of Source.Idle.
	defaultIdle = 30 * time.Second
	// maxChecksums bounds how much of a checksum file is read, in bytes.
	maxChecksums = 1 << 20
)

// Source downloads files from upstream or a mirror, and stores them.
type Source struct {
	// Base is the URL of a mirror, or empty for upstream. A file's URL at the mirror is Base followed
	// by the upstream URL without its scheme.
	Base string
	// Dir stores files by digest. Several processes may share it.
	Dir string
	// Client makes the requests. The default uses the proxies of the environment.
	Client *http.Client
	// Idle is how long a server may send nothing before the request is retried. The default is 30
	// seconds.
	Idle time.Duration
}

// Resolve returns the digest of each file, by its key. It uses the digest of the catalog, else the
// checksum file beside the file. It reads each checksum file once, and only over protected
// connections, where nobody could change it together with the file.
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

var checksumLine = regexp.MustCompile(`^([0-9a-fA-F]{64})(?:\s+\*?(\S+))?\s*$`)

// find returns a file's digest from its checksum file, which has lines of digest and name, or only
// a digest.
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

// read reads a small file over protected connections.
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

// locate returns the URL from which a file is requested.
func (s *Source) locate(upstream string) string {
	if s.Base == "" {
		return upstream
	}
	_, rest, _ := strings.Cut(upstream, "://")
	return strings.TrimRight(s.Base, "/") + "/" + rest
}

// unprotected reports whether the request for a file passes a network unencrypted.
func (s *Source) unprotected(upstream string) bool {
	u, err := url.Parse(s.locate(upstream))
	return err == nil && unencrypted(u)
}

// unencrypted reports whether a request to the URL passes a network unencrypted. The loopback is no
// network.
func unencrypted(u *url.URL) bool {
	if u.Scheme != "http" || u.Hostname() == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err != nil || !ip.IsLoopback()
}

// shown returns the URL of a file for messages.
func (s *Source) shown(upstream string) string {
	at := s.locate(upstream)
	if _, err := url.Parse(at); err != nil {
		return upstream
	}
	return ShownLocation(at)
}

// advice returns whom to look at: upstream or the mirror.
func (s *Source) advice(fault string) string {
	if s.Base == "" {
		return "upstream " + fault + ", or the catalogue has the wrong URL"
	}
	return "the mirror " + fault + "; its layout is that of the upstream URLs without their scheme"
}
