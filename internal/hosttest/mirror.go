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

// Mirror serves the files of a release in the layout of a mirror. The content of a program is
// its name. Archives have the members that the catalogue expects.
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

type mirror struct {
	mu      sync.Mutex
	content map[string][]byte
	sums    map[string][]string
}

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

func program(name string) []byte { return []byte("#!/bin/sh\n# " + name + "\n") }

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
