package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// registryPath matches the path of a request for a manifest or blob in the OCI distribution
// protocol. It captures the name of the image, the kind, and the tag or digest.
var registryPath = regexp.MustCompile(`^/v2/([a-z0-9._/-]+)/(manifests|blobs)/([a-zA-Z0-9._:-]+)$`)

// registry returns a handler that serves the images in dir, for pulls only. The directory has
// manifests as NAME/manifests/TAG and blobs as blobs/DIGEST.
func registry(dir string) http.Handler {
	// Clients also request manifests by digest, but the files are named by tag.
	byDigest := sync.OnceValue(func() map[string]string { return digests(dir) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		if strings.TrimSuffix(r.URL.Path, "/") == "/v2" {
			return
		}
		match := registryPath.FindStringSubmatch(r.URL.Path)
		if match == nil || strings.Contains(r.URL.Path, "..") {
			http.NotFound(w, r)
			return
		}
		name, kind, reference := match[1], match[2], match[3]
		if kind == "blobs" {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Docker-Content-Digest", reference)
			http.ServeFile(w, r, filepath.Join(dir, "blobs", reference))
			return
		}
		path := filepath.Join(dir, name, kind, reference)
		if strings.Contains(reference, ":") {
			path = byDigest()[reference]
		}
		content, err := os.ReadFile(path)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Docker-Content-Digest", digest(content))
		_, _ = w.Write(content) // an error means that the client has disconnected
	})
}

// digests returns the paths of all manifests in dir by their digests. Files that cannot be read are
// left out.
func digests(dir string) map[string]string {
	paths := map[string]string{}
	// Files that cannot be read are not served.
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Base(filepath.Dir(path)) == "manifests" {
			if content, err := os.ReadFile(path); err == nil {
				paths[digest(content)] = path
			}
		}
		return nil
	})
	return paths
}

// digest returns the SHA-256 digest of content, as sha256:HEX.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
