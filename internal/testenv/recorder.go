package testenv

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"
)

// Fault is what a Recorder does to the API server behind it.
type Fault int

const (
	// None passes everything on.
	None Fault = iota
	// Hang accepts connections and never answers; what arrives waits until the fault ends, as
	// it does for a process that is stopped.
	Hang
	// Cut ends every connection and accepts no other.
	Cut
	// Mute has writes performed and never answers them. Reads are answered.
	Mute
	// Expired ends every connection, and shows new ones a serving certificate that has expired.
	Expired
)

// String names the fault.
func (f Fault) String() string { return [...]string{"None", "Hang", "Cut", "Mute", "Expired"}[f] }

// Write is a request that may change something in the API server.
type Write struct {
	// Order counts the recorder's writes from 1.
	Order int
	// Time is when the request arrived.
	Time time.Time
	// Ended is when the API server answered, or when the connection to it broke. It is zero while
	// the request is on its way.
	Ended time.Time
	// Verb is create, update, patch, apply, delete or deletecollection.
	Verb                                          string
	Group, Resource, Subresource, Namespace, Name string
	// FieldManager and Force are the request's parameters.
	FieldManager string
	Force        bool
	// DryRun is true for a request that asked to change nothing.
	DryRun    bool
	UserAgent string
	// Impersonated is the user in whose name it was sent; empty for the hub's own requests.
	Impersonated string
	// Body is the request's, decoded; nil when it is not an object.
	Body map[string]any
	// Code of the answer. It is 0 while the request is on its way, and stays 0 if the API server
	// died before it answered: then the write may have been performed or not.
	Code int
	// Answer is the answer's body, decoded.
	Answer map[string]any
}

// Object names what was written: "deployments.apps shop/web".
func (w Write) Object() string {
	resource, name := w.Resource, w.Name
	if w.Group != "" {
		resource += "." + w.Group
	}
	if w.Namespace != "" {
		name = w.Namespace + "/" + name
	}
	return resource + " " + name
}

// inNamespace returns the namespace that a write is about, or "".
func (w Write) inNamespace() string {
	if w.Group == "" && w.Resource == "namespaces" {
		return w.Name
	}
	return w.Namespace
}

// String is one line of a sequence.
func (w Write) String() string {
	what := w.Verb + " " + w.Object()
	if w.Subresource != "" {
		what += " " + w.Subresource
	}
	if w.Force {
		what += " force"
	}
	if w.DryRun {
		what += " dry-run"
	}
	if n, ok := w.Replicas(); ok {
		what += fmt.Sprintf(" replicas=%d", n)
	}
	return fmt.Sprintf("#%d %s %s: %d", w.Order, w.Time.Format("15:04:05.000"), what, w.Code)
}

// Changed is true for a write that the API server accepted and that was no dry run.
func (w Write) Changed() bool { return !w.DryRun && w.Code/100 == 2 }

// Replicas is spec.replicas of the body.
func (w Write) Replicas() (int64, bool) {
	spec, _ := w.Body["spec"].(map[string]any)
	n, ok := spec["replicas"].(float64)
	return int64(n), ok
}

// UID of the object written: as the answer says, or else the precondition of a deletion.
func (w Write) UID() types.UID {
	for _, path := range [][]string{{"metadata", "uid"}, {"details", "uid"}} {
		if parent, ok := w.Answer[path[0]].(map[string]any); ok {
			if uid, ok := parent[path[1]].(string); ok {
				return types.UID(uid)
			}
		}
	}
	p, _ := w.Body["preconditions"].(map[string]any)
	uid, _ := p["uid"].(string)
	return types.UID(uid)
}

// Recorder is a reverse proxy before an API server that records every write in order, and
// makes the API server unreachable or slow as a test wants it. The credentials of requests
// are passed on, so they must be a token: certificates of clients end at the recorder.
type Recorder struct {
	target     *rest.Config
	kubeconfig []byte
	address    string
	server     *http.Server
	listener   *faultyListener

	mu      sync.Mutex
	fault   Fault
	delay   time.Duration
	ended   chan struct{} // closed when the fault ends
	writes  []Write
	onWrite map[string]func(Write) // by namespace; "": called with each write
}

// NewRecorder starts a recorder before an API server.
func NewRecorder(target *rest.Config) (*Recorder, error) {
	ca, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("start recorder: %w", err)
	}
	pair, err := tls.X509KeyPair(ca, key)
	if err != nil {
		return nil, fmt.Errorf("start recorder: %w", err)
	}
	upstream, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAData: target.CAData, CAFile: target.CAFile,
	}})
	if err != nil {
		return nil, fmt.Errorf("start recorder: %w", err)
	}
	to, err := url.Parse(target.Host)
	if err != nil {
		return nil, fmt.Errorf("start recorder: %w", err)
	}
	r := &Recorder{target: rest.CopyConfig(target), ended: make(chan struct{}), onWrite: map[string]func(Write){}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start recorder: %w", err)
	}
	r.listener = &faultyListener{Listener: l, recorder: r, open: map[*faultyConn]struct{}{}}
	r.address = "https://" + l.Addr().String()
	r.kubeconfig, err = clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "recorded",
		Clusters:       map[string]*clientcmdapi.Cluster{"recorded": {Server: r.address, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"recorded": {Token: target.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"recorded": {Cluster: "recorded", AuthInfo: "recorded"}},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start recorder: %w", err), l.Close())
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(to) },
		FlushInterval: -1, // watches
		// One connection for each request in flight, as the caller has: no HTTP/2.
		Transport:    &http.Transport{TLSClientConfig: upstream, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, MaxIdleConnsPerHost: 64},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	r.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.serve(proxy, w, q) }),
		TLSConfig: &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				if r.Fault() == Expired {
					return expired()
				}
				return &pair, nil
			},
			MinVersion: tls.VersionTLS12,
			// A session that is resumed is shown no certificate.
			SessionTicketsDisabled: true,
		},
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:          nil,
		ReadHeaderTimeout: 0, // hanging is one of the faults
	}
	r.server.ErrorLog = discard
	go func() { _ = r.server.ServeTLS(r.listener, "", "") }()
	return r, nil
}

// expired is a serving certificate that ended half an hour ago.
var expired = sync.OnceValues(func() (*tls.Certificate, error) {
	crt, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{ // from an hour ago
		Host: "localhost", AlternateIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, MaxAge: 30 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(crt, key)
	return &pair, err
})

// Close ends the recorder.
func (r *Recorder) Close() error {
	r.Heal()
	return r.server.Close()
}

// Kubeconfig leads through the recorder.
func (r *Recorder) Kubeconfig() []byte { return r.kubeconfig }

// Config leads through the recorder, without client-side rate limit.
func (r *Recorder) Config() *rest.Config {
	c, err := clientcmd.RESTConfigFromKubeConfig(r.kubeconfig)
	if err != nil {
		panic(err) // it was written by NewRecorder
	}
	c.QPS = -1
	return c
}

// Fail begins a fault, in place of the one there is. It lasts until Heal.
func (r *Recorder) Fail(f Fault) {
	r.set(f, 0)
}

// Slow delays every request.
func (r *Recorder) Slow(by time.Duration) { r.set(None, by) }

// Heal ends the fault.
func (r *Recorder) Heal() { r.set(None, 0) }

func (r *Recorder) set(f Fault, delay time.Duration) {
	r.mu.Lock()
	close(r.ended)
	r.ended = make(chan struct{})
	r.fault, r.delay = f, delay
	r.mu.Unlock()
	if f == Cut || f == Expired {
		r.listener.cut()
	}
}

// Fault is the present fault.
func (r *Recorder) Fault() Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// state returns the fault and what ends it.
func (r *Recorder) state() (Fault, time.Duration, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault, r.delay, r.ended
}

// OnWrite has a function called with each write before it is passed on, in place of the function
// that the last call gave; nil: none. The write waits for the function.
func (r *Recorder) OnWrite(f func(Write)) { r.OnWriteIn("", f) }

// OnWriteIn is OnWrite for the writes in one namespace and for those of the Namespace itself. Each
// namespace has a function of its own, so that tests of different namespaces can run at the same
// time; the function of OnWrite is called, too.
func (r *Recorder) OnWriteIn(namespace string, f func(Write)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f == nil {
		delete(r.onWrite, namespace)
		return
	}
	r.onWrite[namespace] = f
}

// Mark is the order of the last write so far.
func (r *Recorder) Mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.writes)
}

// Writes returns the writes after a mark in the order in which they arrived; dry runs and refused
// ones are among them. Those that are on their way have no Ended, Code and Answer yet.
func (r *Recorder) Writes(after int) []Write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes[after:])
}

// serve passes a request on, and records it if it may change something.
func (r *Recorder) serve(proxy http.Handler, w http.ResponseWriter, q *http.Request) {
	_, delay, _ := r.state()
	if delay > 0 {
		select {
		case <-q.Context().Done():
			panic(http.ErrAbortHandler)
		case <-time.After(delay):
		}
	}
	write, ok := parseWrite(q)
	if !ok {
		proxy.ServeHTTP(w, q)
		return
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	_ = yaml.Unmarshal(body, &write.Body) // a JSON patch is no object
	q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	q.Header.Del("Accept-Encoding") // so that the answer can be read
	r.begin(&write)
	// What was asked for is done, whether or not the client waits for it.
	answer := &answer{header: http.Header{}}
	aborted := func() (aborted bool) {
		defer func() { aborted = recover() != nil }()
		proxy.ServeHTTP(answer, q.WithContext(context.WithoutCancel(q.Context())))
		return false
	}()
	_ = json.Unmarshal(answer.body.Bytes(), &write.Answer)
	write.Code, write.Ended = answer.code, time.Now()
	if metadata, ok := write.Answer["metadata"].(map[string]any); ok && write.Name == "" {
		write.Name, _ = metadata["name"].(string) // of what was created
	}
	r.end(write)
	if aborted {
		panic(http.ErrAbortHandler)
	}
	if fault, _, ended := r.state(); fault == Mute {
		select {
		case <-q.Context().Done():
		case <-ended:
		}
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.header)
	w.WriteHeader(answer.code)
	_, _ = w.Write(answer.body.Bytes())
}

func (r *Recorder) begin(w *Write) {
	r.mu.Lock()
	w.Order, w.Time = len(r.writes)+1, time.Now()
	r.writes = append(r.writes, *w)
	hooks := []func(Write){r.onWrite[""]}
	if namespace := w.inNamespace(); namespace != "" {
		hooks = append(hooks, r.onWrite[namespace])
	}
	r.mu.Unlock()
	for _, f := range hooks {
		if f != nil {
			f(*w)
		}
	}
}

func (r *Recorder) end(w Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes[w.Order-1] = w
}

// answer keeps an answer.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }
func (a *answer) WriteHeader(code int) {
	if a.code == 0 && code >= 200 {
		a.code = code
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// parseWrite says what a request changes, if anything. Questions that are asked by creating
// an object, such as SelfSubjectAccessReviews, and connections into pods change nothing.
func parseWrite(q *http.Request) (Write, bool) {
	query := q.URL.Query()
	w := Write{
		Force: query.Get("force") == "true", FieldManager: query.Get("fieldManager"), DryRun: query.Has("dryRun"),
		UserAgent: q.UserAgent(), Impersonated: q.Header.Get("Impersonate-User"),
	}
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		w.Group, parts = parts[1], parts[3:]
	default:
		return w, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		w.Namespace, parts = parts[1], parts[2:]
	}
	w.Resource = parts[0]
	if len(parts) > 1 {
		w.Name = parts[1]
	}
	if len(parts) > 2 {
		w.Subresource = parts[2]
	}
	switch q.Method {
	case http.MethodPost:
		w.Verb = "create"
	case http.MethodPut:
		w.Verb = "update"
	case http.MethodPatch:
		w.Verb = "patch"
		if strings.Contains(q.Header.Get("Content-Type"), "apply-patch") {
			w.Verb = "apply"
		}
	case http.MethodDelete:
		w.Verb = "delete"
		if w.Name == "" {
			w.Verb = "deletecollection"
		}
	default:
		return w, false
	}
	asks := strings.HasSuffix(w.Resource, "reviews") || slices.Contains([]string{"exec", "attach", "portforward", "proxy", "token"}, w.Subresource)
	return w, !asks
}
