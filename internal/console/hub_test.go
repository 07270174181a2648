package console

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/proxy/proxytest"
	"orrery.dev/orrery/internal/testenv"
)

// recorded is a hub that records requests and answers as set.
type recorded struct {
	config *rest.Config

	mu     sync.Mutex
	asked  []*http.Request
	answer http.HandlerFunc
}

func record(t *testing.T) *recorded {
	t.Helper()
	r := &recorded{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, asked *http.Request) {
		r.mu.Lock()
		r.asked = append(r.asked, asked.Clone(t.Context()))
		answer := r.answer
		r.mu.Unlock()
		if answer != nil {
			answer(w, asked)
		}
	}))
	t.Cleanup(server.Close)
	r.config = &rest.Config{Host: server.URL + "/behind/a/path", BearerToken: "the-hubs-own", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	return r
}

func (r *recorded) take() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.asked
	r.asked = nil
	return taken
}

func (r *recorded) answering(f http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// TestSmuggledHeaders: the hub sees a session as its user, for any request headers.
func TestSmuggledHeaders(t *testing.T) {
	hub := record(t)
	s := newSite(t, hub.config, nil)
	b := s.login(&user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"readers"}, Extra: map[string][]string{"a/b": {"c"}}})
	b.want(http.StatusOK, http.MethodGet, hubPath+"/api", "")
	plain := hub.take()[0].Header
	want := http.Header{
		"Authorization": {"Bearer the-hubs-own"}, "User-Agent": {"orrery-console"}, fleetv1alpha1.ConsoleHeader: {"true"}, "Content-Type": {"application/json"},
		"Impersonate-User": {"alice"}, "Impersonate-Uid": {"1"}, "Impersonate-Group": {"readers"}, "Impersonate-Extra-A%2fb": {"c"},
		"Accept-Encoding": {"gzip"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {strings.TrimPrefix(s.url, "https://")},
	}
	if diff := cmp.Diff(want, plain); diff != "" {
		t.Error(diff)
	}
	// Written to the connection directly, because clients do not send all of these headers.
	smuggled := []string{
		"Impersonate-User: root", "impersonate-group: system:masters", "Impersonate-Uid: 0", "Impersonate-Extra-X: y", "Authorization: Bearer mine", "X-Remote-User: root",
		"X-Remote-Group: system:masters", "X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1", "Proxy-Authorization: Basic x", "X-Http-Method-Override: DELETE",
		"Impersonate_User: root", "X-Original-Url: /api/v1/secrets", "Orrery-Console: ", "Kubectl-Session: x", "X-Real-Ip: 10.0.0.1", "User-Agent: root",
		"Connection: Impersonate-User, Impersonate-Group, Authorization, Orrery-Console, keep-alive", "Te: trailers", "Trailer: Impersonate-User",
		"Keep-Alive: timeout=5", "Proxy-Connection: Impersonate-User", "Transfer-Encoding: chunked",
	}
	w := s.dial()
	w.send("GET " + hubPath + "/api HTTP/1.1\r\nHost: " + strings.TrimPrefix(s.url, "https://") + "\r\nCookie: " + cookieName + "=" + b.cookie() + "; other=1\r\n" +
		"Accept-Encoding: gzip\r\nContent-Type: application/json\r\n" + strings.Join(smuggled, "\r\n") + "\r\n\r\n0\r\nImpersonate-User: root\r\n\r\n")
	if r := w.answer(); r.StatusCode != http.StatusOK {
		t.Errorf("answers %s", r.Status)
	}
	got := hub.take()[0]
	_, _ = io.Copy(io.Discard, got.Body)
	got.Header.Del("Content-Length")
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Error(diff)
	}
	if len(got.Trailer) > 0 {
		t.Errorf("trailers pass: %v", got.Trailer)
	}
	// A token in a subprotocol would be a second identity.
	b.do(http.MethodGet, hubPath+"/api", "", "Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Protocol", "v5.channel.k8s.io, Base64url.bearer.authorization.k8s.io.bWluZQ")
	if got := hub.take()[0].Header; got.Get("Sec-WebSocket-Protocol") != "v5.channel.k8s.io" || got.Get("Upgrade") != "websocket" || got.Get("Impersonate-User") != "alice" {
		t.Errorf("%v", got)
	}
}

// TestPaths: a request reaches exactly the path below the hub's API that it names, or is refused.
func TestPaths(t *testing.T) {
	hub := record(t)
	s := newSite(t, hub.config, nil)
	b := s.login(alice)
	host := strings.TrimPrefix(s.url, "https://")
	for target, want := range map[string]string{ // "": refused
		hubPath + "/api/v1/pods?limit=1&a=%2F;x":          "/behind/a/path/api/v1/pods?limit=1&a=%2F;x",
		hubPath + "/api/v1/namespaces/a%2Fb":              "/behind/a/path/api/v1/namespaces/a%2Fb",
		hubPath + "/api/v1/pods/a%20b%3Fc%23d":            "/behind/a/path/api/v1/pods/a%20b%3Fc%23d",
		hubPath + "/":                                     "/behind/a/path/",
		hubPath:                                           "",
		hubPath + "x/api":                                 "",
		hubPath + "/../../secrets":                        "",
		hubPath + "/..%2f..%2fsecrets":                    "",
		hubPath + "/%2e%2e/%2E%2E/secrets":                "",
		hubPath + "/%252e%252e/secrets":                   "",
		hubPath + "/a/..;/b":                              "",
		hubPath + "/a/.%5c/b":                             "",
		hubPath + "/a/%5c..%5c/b":                         "",
		hubPath + "//evil.example.com/api":                "",
		hubPath + "/%2f%2fevil.example.com/api":           "/behind/a/path/%2f%2fevil.example.com/api",
		hubPath + "/http://evil.example.com/":             "",
		"https://evil.example.com" + hubPath + "/api":     "/behind/a/path/api",
		"https://evil.example.com:1/x/../" + hubPath[1:]:  "",
		hubPath + "/@evil.example.com/":                   "/behind/a/path/@evil.example.com/",
		hubPath + "/api%0d%0aImpersonate-User:%20root/v1": "/behind/a/path/api%0d%0aImpersonate-User:%20root/v1",
		hubPath + "/api%00":                               "/behind/a/path/api%00",
		"/console/api%2Fhub/api":                          "",
		"/console/x/../api/hub/api":                       "",
	} {
		w := s.dial()
		w.send("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\nCookie: " + cookieName + "=" + b.cookie() + "\r\n\r\n")
		answer := w.answer()
		asked := hub.take()
		switch {
		case want == "" && len(asked) > 0:
			t.Errorf("%s reaches %s", target, asked[0].RequestURI)
		case want == "" && answer.StatusCode < 300 && answer.Header.Get("Content-Type") != "text/html; charset=utf-8":
			t.Errorf("%s answers %s", target, answer.Status)
		case want != "" && (len(asked) != 1 || asked[0].RequestURI != want || asked[0].Header.Get("Impersonate-User") != "alice"):
			t.Errorf("%s answers %s, and has reached %v, want %s", target, answer.Status, asked, want)
		}
	}
	for _, method := range []string{http.MethodOptions, http.MethodTrace, http.MethodConnect, "PROPFIND", "get"} {
		w := s.dial()
		w.send(method + " " + hubPath + "/api HTTP/1.1\r\nHost: " + host + "\r\nOrigin: " + s.url + "\r\nConnection: close\r\nCookie: " + cookieName + "=" + b.cookie() + "\r\n\r\n")
		if answer := w.answer(); answer.StatusCode < 400 || len(hub.take()) > 0 {
			t.Errorf("%s answers %s", method, answer.Status)
		}
	}
}

// TestOrigins: pages of other origins can change, open and read nothing with the cookie.
func TestOrigins(t *testing.T) {
	hub := record(t)
	s := newSite(t, hub.config, nil)
	b := s.login(alice)
	upgrade := []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Key", "x", "Sec-WebSocket-Version", "13"}
	for name, c := range map[string]struct {
		method  string
		headers []string
		refused bool
	}{
		"Own":                  {http.MethodPost, nil, false},
		"OwnByBrowser":         {http.MethodPost, []string{"Origin", "", "Sec-Fetch-Site", "same-origin"}, false},
		"Another":              {http.MethodPost, []string{"Origin", "https://evil.example.com"}, true},
		"AnotherPort":          {http.MethodPost, []string{"Origin", "https://127.0.0.1:1"}, true},
		"Plain":                {http.MethodPost, []string{"Origin", "http://" + strings.TrimPrefix(s.url, "https://")}, true},
		"Null":                 {http.MethodPost, []string{"Origin", "null"}, true},
		"None":                 {http.MethodPost, []string{"Origin", ""}, true},
		"Longer":               {http.MethodPost, []string{"Origin", s.url + ".evil.example.com"}, true},
		"SameSite":             {http.MethodPost, []string{"Sec-Fetch-Site", "same-site"}, true},
		"CrossSite":            {http.MethodPost, []string{"Sec-Fetch-Site", "cross-site"}, true},
		"Typed":                {http.MethodPost, []string{"Sec-Fetch-Site", "none"}, true},
		"Delete":               {http.MethodDelete, []string{"Origin", "https://evil.example.com"}, true},
		"DeleteOfNobody":       {http.MethodDelete, []string{"Origin", ""}, true},
		"Patch":                {http.MethodPatch, []string{"Origin", ""}, true},
		"Upgrade":              {http.MethodGet, append([]string{"Origin", "https://evil.example.com"}, upgrade...), true},
		"UpgradeOfNobody":      {http.MethodGet, append([]string{"Origin", ""}, upgrade...), true},
		"OwnUpgrade":           {http.MethodGet, upgrade, false},
		"OwnUpgradeBySite":     {http.MethodGet, append([]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "websocket"}, upgrade...), false},
		"UpgradeBySite":        {http.MethodGet, append([]string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example.com"}, upgrade...), true},
		"OtherUpgrade":         {http.MethodGet, []string{"Upgrade", "SPDY/3.1", "Connection", "Upgrade"}, true},
		"UpgradeWithoutSaying": {http.MethodGet, []string{"Upgrade", "websocket", "Origin", ""}, true},
		"Read":                 {http.MethodGet, []string{"Origin", ""}, false},
		"ReadByTyping":         {http.MethodGet, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}, false},
		"ReadBySite":           {http.MethodGet, []string{"Sec-Fetch-Site", "same-site"}, true},
		"ReadByAnother":        {http.MethodGet, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}, true},
		"AsScript":             {http.MethodGet, []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "script"}, true},
		"AsWorker":             {http.MethodGet, []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "serviceworker"}, true},
		"AsFrame":              {http.MethodGet, []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "iframe"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, text := b.do(c.method, hubPath+"/api/v1/namespaces/x", "", c.headers...)
			if reached := len(hub.take()) > 0; reached == c.refused || c.refused && r.StatusCode/100 != 4 {
				t.Errorf("answers %s %s; the hub was reached: %v", r.Status, text, reached)
			}
		})
	}
}

// TestAnswersAreData: an answer of a member or the hub is never a page, a script or a cookie of the
// console's origin, and no redirect.
func TestAnswersAreData(t *testing.T) {
	hub := record(t)
	s := newSite(t, hub.config, nil)
	b := s.login(alice)
	hostile := http.Header{
		"Set-Cookie": {cookieName + "=mine", "x=y"}, "Content-Security-Policy": {"default-src *"}, "Access-Control-Allow-Origin": {"*"},
		"Access-Control-Allow-Credentials": {"true"}, "Clear-Site-Data": {`"*"`}, "Service-Worker-Allowed": {"/"}, "Refresh": {"0; url=https://evil.example.com"},
		"Link": {"<https://evil.example.com>; rel=preload"}, "Strict-Transport-Security": {"max-age=1"}, "Location": {"https://evil.example.com"},
		"Alt-Svc": {"h3=\":1\""}, "Cross-Origin-Resource-Policy": {"cross-origin"}, "X-Content-Type-Options": {"none"}, "Content-Disposition": {"inline"},
		"Www-Authenticate": {"Basic realm=x"}, "Cache-Control": {"public, max-age=9999"}, "Report-To": {"x"}, "Server": {"x"},
	}
	hub.answering(func(w http.ResponseWriter, r *http.Request) {
		maps.Copy(w.Header(), hostile)
		w.Header().Set("Content-Type", "text/html")
		code := http.StatusOK
		if r.URL.Query().Get("code") == "103" {
			w.WriteHeader(http.StatusEarlyHints)
			r.URL.RawQuery = ""
		}
		_, _ = fmt.Sscanf(r.URL.Query().Get("code"), "%d", &code)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "<script>alert(1)</script>")
	})
	early := 0
	trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { early++; return nil }})
	for _, code := range []string{"200", "404", "500", "103"} {
		r, text := b.do(http.MethodGet, hubPath+"/api?code="+code, "")
		r.Header.Del("Date")
		r.Header.Del("Content-Length")
		if diff := cmp.Diff(http.Header{
			"Content-Security-Policy": {"sandbox; default-src 'none'; frame-ancestors 'none'"}, "X-Content-Type-Options": {"nosniff"}, "Content-Type": {"text/html"},
			"Referrer-Policy": {"no-referrer"}, "Cross-Origin-Resource-Policy": {"same-origin"}, "Cross-Origin-Opener-Policy": {"same-origin"}, "Cache-Control": {"no-store"},
		}, r.Header); diff != "" || text != "<script>alert(1)</script>" {
			t.Errorf("%s: %s\n%s", code, text, diff)
		}
	}
	for _, code := range []string{"301", "302", "307", "308"} {
		if r, text := b.do(http.MethodGet, hubPath+"/api?code="+code, ""); r.StatusCode != http.StatusBadGateway || r.Header.Get("Location") != "" || strings.Contains(text, "evil") {
			t.Errorf("%s: %s %v %s", code, r.Status, r.Header, text)
		}
	}
	request, err := http.NewRequestWithContext(trace, http.MethodGet, s.url+hubPath+"/api?code=103", nil)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := b.Do(request); err != nil || early > 0 {
		t.Errorf("%v; answers before the answer pass: %d", err, early)
	} else {
		response.Body.Close()
	}
	// Refused credentials of the hub itself do not end the session.
	if r, text := b.do(http.MethodGet, hubPath+"/api?code=401", ""); r.StatusCode != http.StatusBadGateway || !strings.Contains(text, "credentials of the hub") {
		t.Errorf("%s %s", r.Status, text)
	}
	if b.cookie() == "mine" {
		t.Error("a member gives cookies")
	}
	// An answer 304 refers to content that the browser has.
	hub.answering(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"x"`)
		w.WriteHeader(http.StatusNotModified)
	})
	if r, _ := b.do(http.MethodGet, hubPath+"/openapi/v3", "", "If-None-Match", `"x"`); r.StatusCode != http.StatusNotModified || r.Header.Get("Cache-Control") != "private, no-cache" {
		t.Errorf("%s %v", r.Status, r.Header)
	}
	if asked := hub.take(); asked[len(asked)-1].Header.Get("If-None-Match") != `"x"` {
		t.Error("the hub is not told what the browser has")
	}
}

// TestAnswersAreConfined: no cookies, challenges, trailers or early hints of the hub or a member
// reach the browser. Streams and WebSockets pass.
func TestAnswersAreConfined(t *testing.T) {
	hub, hostile := record(t), proxytest.NewServer()
	hub.answering(hostile.ServeHTTP)
	s := newSite(t, hub.config, nil)
	b := s.login(alice)
	proxytest.Check(t, hostile, proxytest.Proxy{
		Path: hubPath + "/api", Headers: []string{"Origin: " + s.url, "Cookie: " + cookieName + "=" + b.cookie()}, Hides401: true,
		Dial: func() net.Conn { return s.dial() },
	})
}

// TestBodiesAreBounded: bodies to the hub are limited in size and time.
func TestBodiesAreBounded(t *testing.T) {
	hub := record(t)
	hub.answering(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil { // an incomplete body
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	patient := newSite(t, hub.config, nil)
	patient.login(alice).want(http.StatusRequestEntityTooLarge, http.MethodPost, hubPath+"/api", strings.Repeat("x", longestBody+1))
	s := newSite(t, hub.config, func(c *Console) { c.bodyTime = 500 * time.Millisecond })
	b := s.login(alice)
	w := s.dial()
	w.send("POST " + hubPath + "/api HTTP/1.1\r\nHost: x\r\nOrigin: " + s.url + "\r\nCookie: " + cookieName + "=" + b.cookie() + "\r\nContent-Length: 100\r\n\r\n{")
	if r := w.answer(); r.StatusCode < 400 {
		t.Errorf("a body that never comes: %s", r.Status)
	}
	testenv.Eventually(t, "an answer takes longer than the body may", testenv.Patience, func() error {
		sent := make(chan struct{})
		hub.answering(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-sent
			w.WriteHeader(http.StatusAccepted)
		})
		time.AfterFunc(700*time.Millisecond, func() { close(sent) })
		if r, text := b.do(http.MethodPost, hubPath+"/api", "{}"); r.StatusCode != http.StatusAccepted {
			return fmt.Errorf("%s: %s", r.Status, text) // the body itself may have been late
		}
		return nil
	})
}

// TestRequestsOfASession: the open requests of one session are limited, and other sessions are not
// affected.
func TestRequestsOfASession(t *testing.T) {
	hub := record(t)
	s := newSite(t, hub.config, nil)
	b, other := s.login(alice), s.login(&user.DefaultInfo{Name: "bob"})
	session, ok := s.sessions.get(digestOf(b.cookie()))
	if !ok {
		t.Fatal("there is no session")
	}
	for range mostRequests {
		session.places <- struct{}{}
	}
	b.want(http.StatusTooManyRequests, http.MethodGet, hubPath+"/api", "")
	b.want(http.StatusOK, http.MethodGet, sessionPath, "")
	other.want(http.StatusOK, http.MethodGet, hubPath+"/api", "")
	<-session.places
	b.want(http.StatusOK, http.MethodGet, hubPath+"/api", "")
	b.want(http.StatusOK, http.MethodGet, hubPath+"/api", "")
}

// stream is an open stream of a session, which must end.
type stream struct {
	what  string
	ended chan struct{}
}

// streams opens a watch, and a watch by WebSocket.
func (b *browser) streams(path string) (open []stream) {
	b.s.t.Helper()
	testenv.Eventually(b.s.t, "open streams", testenv.Patience, func() (err error) {
		open, err = b.tryStreams(path)
		return err
	})
	return open
}

func (b *browser) tryStreams(path string) ([]stream, error) {
	b.s.t.Helper()
	response := b.start(http.MethodGet, path+"?watch=true", "")
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("a watch answers %s", response.Status)
	}
	watch := stream{"a watch", make(chan struct{})}
	go func() { _, _ = io.Copy(io.Discard, response.Body); close(watch.ended) }()
	dialer := websocket.Dialer{TLSClientConfig: b.tls()}
	conn, answer, err := dialer.DialContext(b.s.t.Context(), "wss"+strings.TrimPrefix(b.s.url, "https")+path+"?watch=true", http.Header{
		"Cookie": {cookieName + "=" + b.cookie()}, "Origin": {b.s.url},
	})
	if err != nil {
		return nil, fmt.Errorf("a watch by WebSocket: %w %v", err, answer)
	}
	b.s.t.Cleanup(func() { conn.Close() })
	upgraded := stream{"a WebSocket", make(chan struct{})}
	go func() {
		defer close(upgraded.ended)
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	}()
	return []stream{watch, upgraded}, nil
}

func (s *site) end(what string, of []stream) {
	s.t.Helper()
	for _, one := range of {
		select {
		case <-one.ended:
		case <-time.After(testenv.Patience):
			s.t.Errorf("%s does not end with %s", one.what, what)
		}
	}
}

// TestStreamsEnd: streams end with their session, for every reason, and with the permission for
// them.
func TestStreamsEnd(t *testing.T) {
	s := newSite(t, testenv.Config(0), func(c *Console) { c.rightsInterval = 50 * time.Millisecond })
	namespace, take := s.allow(userSubject("alice"))
	path := hubPath + "/api/v1/namespaces/" + namespace + "/configmaps"
	b, bystander := s.login(alice), s.login(alice)
	open, others := b.streams(path), bystander.streams(path)
	b.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	s.end("logging out", open)
	for _, one := range others {
		select {
		case <-one.ended:
			t.Errorf("%s of another session ends, too", one.what)
		default:
		}
	}
	// TestSessionExpires tests when that happens.
	old := s.login(alice)
	shown := old.streams(path)
	session, ok := s.sessions.get(digestOf(old.cookie()))
	if !ok {
		t.Fatal("there is no session")
	}
	session.end(errExpired)
	s.end("the time of the session", shown)
	old.want(http.StatusUnauthorized, http.MethodGet, path, "")
	take()
	s.end("the right to it", others)
	bystander.want(http.StatusForbidden, http.MethodGet, path, "")
	bystander.want(http.StatusOK, http.MethodGet, sessionPath, "")
}

// TestStreamsEndWithTheHub: all streams end when the hub stops.
func TestStreamsEndWithTheHub(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	namespace, _ := s.allow(userSubject("alice"))
	b := s.login(alice)
	open := b.streams(hubPath + "/api/v1/namespaces/" + namespace + "/configmaps")
	s.stop(errStopped)
	s.end("the hub", open)
	b.want(http.StatusServiceUnavailable, http.MethodGet, sessionPath, "")
}

// TestNobodyReads: an answer and a WebSocket that no client reads end with the session. The
// answer also ends after a while.
func TestNobodyReads(t *testing.T) {
	hub := record(t)
	gone := make(chan string, 3)
	hub.answering(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			for err == nil {
				_, err = c.Write(make([]byte, 1<<16))
			}
			gone <- "a WebSocket"
			return
		}
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				gone <- r.URL.Query().Get("as")
				return
			}
		}
	})
	s := newSite(t, hub.config, func(c *Console) { c.writeTime = time.Hour })
	b := s.login(alice)
	impatient := newSite(t, hub.config, func(c *Console) { c.writeTime = 500 * time.Millisecond })
	get := func(s *site, b *browser, as string, headers ...string) {
		w := s.dial()
		w.send("GET " + hubPath + "/api?as=" + url.QueryEscape(as) + " HTTP/1.1\r\nHost: x\r\nOrigin: " + s.url + "\r\nCookie: " + cookieName + "=" + b.cookie() + "\r\n" +
			strings.Join(append(headers, ""), "\r\n") + "\r\n")
		w.answer()
	}
	ends := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			select {
			case one := <-gone:
				got = append(got, one)
			case <-time.After(testenv.Patience):
				t.Fatalf("of %v only %v ended", want, got)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	get(s, b, "an answer")
	get(s, b, "", "Connection: Upgrade", "Upgrade: websocket")
	get(impatient, impatient.login(alice), "a slow browser's")
	ends("a slow browser's")
	b.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	ends("a WebSocket", "an answer")
}

// closing is a file system that reports when a file is closed.
type closing struct {
	fs.FS

	closed chan string
}

func (c closing) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if seeker, ok := f.(io.ReadSeeker); ok && err == nil && name == "assets/large.js" {
		return closingFile{f, seeker, c.closed}, nil
	}
	return f, err
}

type closingFile struct {
	fs.File
	io.Seeker

	closed chan string
}

func (c closingFile) Close() error {
	c.closed <- "assets/large.js"
	return c.File.Close()
}

// TestNobodyReadsFiles: a client without a session that requests files and does not read them holds
// no resources for long.
func TestNobodyReadsFiles(t *testing.T) {
	large := closing{fstest.MapFS{"index.html": {}, "assets/large.js": {Data: make([]byte, 64<<20)}}, make(chan string, 2)}
	s := newSite(t, testenv.Config(0), func(c *Console) {
		c.writeTime = 500 * time.Millisecond
		var err error
		if c.files, err = newFiles(large); err != nil {
			t.Fatal(err)
		}
	})
	<-large.closed // it was read for its digest
	s.dial().send("GET " + Path + "assets/large.js HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case <-large.closed:
	case <-time.After(testenv.Patience):
		t.Error("it is being sent still")
	}
}
