package lab

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// served has the HTTP servers of the mirror and the image registry, at the machine's address in the
// lab's network.
type served struct {
	mirror          *mirror
	mirrorAddress   string
	registryAddress string
	servers         []*http.Server
}

// serve starts the mirror and the registry with the files in artifacts, which hack/lab-artifacts.sh
// builds. gateway is the address at which they listen.
func serve(gateway netip.Addr, artifacts string) (_ *served, err error) {
	if _, err := os.Stat(filepath.Join(artifacts, "mirror")); err != nil {
		return nil, fmt.Errorf("find what the hosts download: %w: run hack/lab-artifacts.sh %s", err, artifacts)
	}
	s := &served{mirror: newMirror(filepath.Join(artifacts, "mirror"))}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.mirrorAddress, err = s.listen(gateway, s.mirror); err != nil {
		return nil, err
	}
	s.registryAddress, err = s.listen(gateway, registry(filepath.Join(artifacts, "registry")))
	return s, err
}

// listen starts a server at a free port of the gateway and returns its host:port.
func (s *served) listen(gateway netip.Addr, handler http.Handler) (string, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(gateway, 0).String())
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	s.servers = append(s.servers, server)
	go func() { _ = server.Serve(listener) }() // returns when the lab closes the server
	return listener.Addr().String(), nil
}

// close closes the servers.
func (s *served) close() error {
	var errs []error
	for _, server := range s.servers {
		errs = append(errs, server.Close())
	}
	return errors.Join(errs...)
}

// defaultArtifacts returns bin/lab in the root of the Go module that contains the working
// directory.
func defaultArtifacts() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(at, "bin", "lab"), nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find bin/lab: %s is not in a Go module: set Options.Artifacts", dir)
		}
	}
}
