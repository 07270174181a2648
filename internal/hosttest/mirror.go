package hosttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"

	"orrery.dev/orrery/internal/lifecycle/catalog"
)

// Mirror returns a handler that serves the files, and their checksum files, in the layout of a
// catalog mirror. Each program is a shell script with a comment of its name and version. Archives
// have the members that the catalog names.
func Mirror(files []catalog.File) http.Handler {
	m := &mirror{content: map[string][]byte{}, sums: map[string][]string{}}
	for _, f := range files {
		content := program(f.Name + " " + f.Version)
		if f.Archive != "" {
			content = archive(f)
		}
		m.content[located(f.URL)] = content
		sum := fmt.Sprintf("%x  %s", sha256.Sum256(content), path.Base(f.URL))
		m.sums[located(f.ChecksumURL)] = append(m.sums[located(f.ChecksumURL)], sum)
	}
	return m
}

// mirror is the handler that Mirror returns. content has the files, and sums the lines of checksum
// files, by path.
type mirror struct {
	mu      sync.Mutex
	content map[string][]byte
	sums    map[string][]string
}

// located returns the path at the mirror for a URL upstream.
func located(upstream string) string {
	_, rest, _ := strings.Cut(upstream, "://")
	return "/" + rest
}

// ServeHTTP implements http.Handler.
func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content, ok := m.content[r.URL.Path]; ok {
		w.Write(content)
		return
	}
	if sums, ok := m.sums[r.URL.Path]; ok {
		fmt.Fprintln(w, strings.Join(sums, "\n"))
		return
	}
	http.NotFound(w, r)
}

// program returns the content of a simulated program.
func program(name string) []byte { return []byte("#!/bin/sh\n# " + name + "\n") }

// archive returns a gzipped tar archive with the members that the catalog names for f.
func archive(f catalog.File) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for member, name := range f.Members {
		content := program(name + " " + f.Version)
		t.WriteHeader(&tar.Header{Name: member, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg})
		t.Write(content)
	}
	t.Close()
	z.Close()
	return b.Bytes()
}
