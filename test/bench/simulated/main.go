// Command simulated serves many small clusters from one process, for benchmarks. Each cluster
// is an API server with nodes and pods, whose Deployments are available at once. At an address
// of its own, below /clusters/NAME, it serves discovery, get, list, watch, create, server-side
// apply, merge patch and delete, as far as Orrery uses them.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// token must be in every request.
const token = "simulated"

func main() {
	count := flag.Int("clusters", 1000, "how many")
	pods := flag.Int("pods", 50, "how many each of them has")
	rate := flag.Int("rate", 0, "how many pods of all of them change in a second")
	dir := flag.String("dir", "", "where ca.crt, clusters.json and address are written once it listens")
	flag.Parse()
	if err := run(*count, *pods, *rate, *dir); err != nil {
		log.Fatal(err)
	}
}

func run(count, pods, rate int, dir string) error {
	certificate, ca, err := selfSigned()
	if err != nil {
		return err
	}
	fleet := newFleet(count, pods)
	if rate > 0 {
		go fleet.churn(pods, rate)
	}
	server := &http.Server{
		Handler: fleet, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(new(silent), "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	addresses := map[string]string{}
	for name, c := range fleet.clusters {
		d, err := newDoor(c)
		if err != nil {
			return err
		}
		addresses[name] = "https://" + d.Addr().String()
		go func() { log.Fatal(server.ServeTLS(d, "", "")) }()
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	all, err := json.Marshal(addresses)
	if err != nil {
		return fmt.Errorf("encode the addresses: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "clusters.json"), all, 0o600); err != nil {
		return fmt.Errorf("write the addresses: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	address := filepath.Join(dir, "address")
	if err := os.WriteFile(address+".new", []byte("https://"+listener.Addr().String()), 0o600); err != nil {
		return fmt.Errorf("write the address: %w", err)
	}
	if err := os.Rename(address+".new", address); err != nil {
		return fmt.Errorf("write the address: %w", err)
	}
	return server.ServeTLS(listener, "", "")
}

// silent drops the server's log of connections that clients close.
type silent struct{}

func (*silent) Write(p []byte) (int, error) { return len(p), nil }

func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "simulated"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make certificate: %w", err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}

// fleet holds all clusters, and counts the requests to them.
type fleet struct {
	clusters        map[string]*cluster
	apis, core      []byte // discovery, the same for all clusters
	writes, watches atomic.Int64
	lists, requests atomic.Int64
	mu              sync.Mutex
	writeWatchers   map[chan write]bool
}

// write is a change of a Deployment in a cluster.
type write struct {
	Cluster   string    `json:"Cluster"`
	Namespace string    `json:"Namespace"`
	Name      string    `json:"Name"`
	Mark      string    `json:"Mark"`
	Time      time.Time `json:"Time"`
}

// Stats is the answer of the control endpoint: the numbers of requests that changed something,
// of open watches, of lists of more than one object, and of requests.
type Stats struct{ Writes, Watches, Lists, Requests int64 }

func newFleet(count, pods int) *fleet {
	f := &fleet{clusters: make(map[string]*cluster, count), writeWatchers: map[chan write]bool{}}
	f.core, f.apis = discovery()
	for i := range count {
		name := fmt.Sprintf("c-%04d", i)
		f.clusters[name] = newCluster(f, name, pods)
	}
	return f
}

// churn changes pods, one after the other, and never returns.
func (f *fleet) churn(pods, rate int) {
	const step = 7919 // a prime, so that every pod is reached
	every := time.Second / time.Duration(rate)
	for now := range time.Tick(every) {
		n := int(now.UnixNano()/int64(every)) * step
		f.clusters[fmt.Sprintf("c-%04d", n%len(f.clusters))].restart(n / len(f.clusters) % pods)
	}
}

// ServeHTTP implements http.Handler. /clusters/NAME/… is a cluster, /control/… is for
// benchmarks.
func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+token {
		fail(w, http.StatusUnauthorized, "Unauthorized", "no token")
		return
	}
	f.requests.Add(1)
	if rest, ok := strings.CutPrefix(r.URL.Path, "/control/"); ok {
		f.control(w, r, rest)
		return
	}
	rest, _ := strings.CutPrefix(r.URL.Path, "/clusters/")
	name, path, _ := strings.Cut(rest, "/")
	c := f.clusters[name]
	if c == nil {
		fail(w, http.StatusNotFound, "NotFound", "no such cluster")
		return
	}
	c.serve(w, r, "/"+path)
}

func (f *fleet) control(w http.ResponseWriter, r *http.Request, what string) {
	switch what {
	case "stats":
		answer(w, http.StatusOK, Stats{f.writes.Load(), f.watches.Load(), f.lists.Load(), f.requests.Load()})
	case "offline", "online":
		for name := range strings.SplitSeq(r.URL.Query().Get("clusters"), ",") {
			if c := f.clusters[name]; c != nil {
				c.setOffline(what == "offline")
			}
		}
		answer(w, http.StatusOK, struct{}{})
	case "follow":
		f.follow(w, r)
	default:
		fail(w, http.StatusNotFound, "NotFound", what)
	}
}

// follow streams every write of a Deployment.
func (f *fleet) follow(w http.ResponseWriter, r *http.Request) {
	to := make(chan write, 100_000)
	f.mu.Lock()
	f.writeWatchers[to] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.writeWatchers, to)
		f.mu.Unlock()
	}()
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	_ = out.Flush()
	encode := json.NewEncoder(w)
	for {
		select {
		case one := <-to:
			if encode.Encode(one) != nil { //nolint:errchkjson // times of now can be encoded
				return
			}
			for range len(to) {
				_ = encode.Encode(<-to) //nolint:errchkjson // the same
			}
			_ = out.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fleet) tell(one write) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for to := range f.writeWatchers {
		select {
		case to <- one:
		default: // the client is too slow, and will find that writes are missing
		}
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		raw, code = []byte(`{}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw) // fails only if the client is gone
}

// fail answers as an API server does.
func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "code": code,
	})
}
