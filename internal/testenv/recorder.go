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

// Fault is a fault that a Recorder simulates, see Recorder.Fail.
type Fault int

const (
	// None forwards everything.
	None Fault = iota
	// Hang accepts connections, and passes no bytes. Requests wait until the fault ends, as they do
	// for a stopped process.
	Hang
	// Cut closes every connection, and closes new ones at once.
	Cut
	// Mute forwards writes to the API server, and never answers them. Reads are answered.
	Mute
	// Expired closes every connection. New ones get a serving certificate that has expired.
	Expired
)

// String returns the name of the fault.
func (f Fault) String() string { return [...]string{"None", "Hang", "Cut", "Mute", "Expired"}[f] }

// Write is a request through a Recorder that may change something in the API server, with its
// response.
type Write struct {
	// Order numbers the recorder's writes from 1.
	Order int
	// Time is when the request arrived.
	Time time.Time
	// Ended is the time of the API server's response, or of the loss of the connection to it.
	// It is zero during the request.
	Ended time.Time
	// Verb is create, update, patch, apply, delete or deletecollection. The fields below it identify
	// the object. Name is "" for deletecollection, and for a create without a response.
	Verb                                          string
	Group, Resource, Subresource, Namespace, Name string
	// FieldManager and Force are the request's parameters.
	FieldManager string
	Force        bool
	// DryRun is true for a dry run.
	DryRun    bool
	UserAgent string
	// Impersonated is the user that the request impersonates; "" if it impersonates none, as for the
	// hub's own requests.
	Impersonated string
	// Body is the decoded body of the request; nil if it is not an object.
	Body map[string]any
	// Code is the HTTP status of the response. It is 0 during the request. It stays 0 if the API
	// server ended before it answered. It is then unknown whether the write was performed.
	Code int
	// Answer is the decoded body of the response; nil if there is none.
	Answer map[string]any
}

// Object returns the name of the written object, such as "deployments.apps shop/web".
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

// inNamespace returns the namespace of the written object. For a Namespace it is the name of the
// Namespace itself, and for other cluster-scoped objects "".
func (w Write) inNamespace() string {
	if w.Group == "" && w.Resource == "namespaces" {
		return w.Name
	}
	return w.Namespace
}

// String returns the write as one line for messages.
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

// Changed reports whether the API server accepted the write and it was no dry run.
func (w Write) Changed() bool { return !w.DryRun && w.Code/100 == 2 }

// Replicas returns spec.replicas in the body of the request; false if the body has none.
func (w Write) Replicas() (int64, bool) {
	spec, _ := w.Body["spec"].(map[string]any)
	n, ok := spec["replicas"].(float64)
	return int64(n), ok
}

// UID returns the UID of the written object: from the response, or else from the precondition of a
// deletion. It is "" if neither has one.
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

// Recorder is a reverse proxy in front of an API server. It records every write in order, and
// simulates an API server that is unreachable or slow. It forwards the credentials of requests.
// These must be tokens, because the TLS connections of clients end at the recorder.
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
	onWrite map[string]func(Write) // by namespace; that for "" is called with each write
}

// NewRecorder starts a recorder in front of the API server target. The caller calls Close.
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
		FlushInterval: -1, // send the events of watches at once
		// Use HTTP/1.1, so that requests do not share a connection to the server, as they do not on the
		// client's side.
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
			// A resumed session would not check the certificate again.
			SessionTicketsDisabled: true,
		},
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:          nil,
		ReadHeaderTimeout: 0, // no limit: hanging is one of the faults
	}
	r.server.ErrorLog = discard
	go func() { _ = r.server.ServeTLS(r.listener, "", "") }()
	return r, nil
}

// expired returns a serving certificate that expired half an hour ago, for the fault Expired.
var expired = sync.OnceValues(func() (*tls.Certificate, error) {
	// The certificate was issued an hour ago.
	crt, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{
		Host: "localhost", AlternateIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, MaxAge: 30 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(crt, key)
	return &pair, err
})

// Close ends the fault and stops the recorder.
func (r *Recorder) Close() error {
	r.Heal()
	return r.server.Close()
}

// Kubeconfig returns the content of a kubeconfig that connects through the recorder, with the
// credentials of the target.
func (r *Recorder) Kubeconfig() []byte { return r.kubeconfig }

// Config returns a client configuration that connects through the recorder, without a client-side
// rate limit.
func (r *Recorder) Config() *rest.Config {
	c, err := clientcmd.RESTConfigFromKubeConfig(r.kubeconfig)
	if err != nil {
		panic(err) // NewRecorder wrote it
	}
	c.QPS = -1
	return c
}

// Fail starts a fault, which lasts until Heal, Slow or another Fail. It ends the present fault and
// delay.
func (r *Recorder) Fail(f Fault) {
	r.set(f, 0)
}

// Slow delays every request by this time, until Heal or Fail. It ends the present fault.
func (r *Recorder) Slow(by time.Duration) { r.set(None, by) }

// Heal ends the fault and the delay.
func (r *Recorder) Heal() { r.set(None, 0) }

// set replaces the fault and the delay. It wakes requests that wait for the end of the former
// fault.
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

// Fault returns the present fault, or None.
func (r *Recorder) Fault() Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// state returns the fault, the delay, and a channel that is closed when they change.
func (r *Recorder) state() (Fault, time.Duration, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault, r.delay, r.ended
}

// OnWrite sets a function that is called with each write before the recorder forwards it. The write
// waits until the function returns. nil removes the function.
func (r *Recorder) OnWrite(f func(Write)) { r.OnWriteIn("", f) }

// OnWriteIn sets a function that is called with each write in one namespace, and of the Namespace
// itself, before the recorder forwards it. The write waits until the function returns. nil removes
// the function.
//
// Each namespace has its own function, so that tests in different namespaces can run in parallel.
// The function of OnWrite is called as well.
func (r *Recorder) OnWriteIn(namespace string, f func(Write)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f == nil {
		delete(r.onWrite, namespace)
		return
	}
	r.onWrite[namespace] = f
}

// Mark returns the Order of the last write so far, for Writes; 0 if there is none.
func (r *Recorder) Mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.writes)
}

// Writes returns the writes after the one with this Order, in the order of their arrival. 0 returns
// all. They include dry runs and refused writes. A write in progress has no Ended, Code and Answer
// yet.
func (r *Recorder) Writes(after int) []Write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes[after:])
}

// serve handles one request: it waits for the delay, forwards the request through proxy, and
// records it if it may change something.
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
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	_ = yaml.Unmarshal(body, &write.Body) // an error leaves Body nil: a JSON patch is not an object
	q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	q.Header.Del("Accept-Encoding") // so that the response is not compressed
	r.begin(&write)
	// A write is completed even if the client disconnects.
	answer := &answer{header: http.Header{}}
	aborted := func() (aborted bool) {
		defer func() { aborted = recover() != nil }()
		proxy.ServeHTTP(answer, q.WithContext(context.WithoutCancel(q.Context())))
		return false
	}()
	_ = json.Unmarshal(answer.body.Bytes(), &write.Answer)
	write.Code, write.Ended = answer.code, time.Now()
	if metadata, ok := write.Answer["metadata"].(map[string]any); ok && write.Name == "" {
		write.Name, _ = metadata["name"].(string) // of the created object
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

// begin records a write that has arrived, sets its Order and Time, and calls the functions of
// OnWrite and OnWriteIn.
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

// end replaces the record of a write by w, which has the response.
func (r *Recorder) end(w Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes[w.Order-1] = w
}

// answer is an http.ResponseWriter that stores the response to a write, so that the recorder can
// read it.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	if a.code == 0 && code >= 200 {
		a.code = code
	}
}

// Write implements http.ResponseWriter. It stores the data.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// parseWrite returns what a request would change, without its body and response. It returns false
// if the request changes nothing. These are reads, reviews such as SelfSubjectAccessReviews,
// tokens, and connections to pods.
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
