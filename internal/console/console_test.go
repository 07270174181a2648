package console

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/listener"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

var page = fstest.MapFS{
	"index.html":           {Data: []byte(`<meta property="csp-nonce" nonce="__CSP_NONCE__"><meta name="session" content="__SESSION__"><script src="/console/assets/main-1.js"></script>`)},
	"assets/main-1.js":     {Data: []byte("hello")},
	"assets/main-1.js.br":  {Data: []byte("br of hello")},
	"assets/main-1.js.gz":  {Data: []byte("gz of hello")},
	"favicon.svg":          {Data: []byte("<svg/>")},
	"assets/other-2.woff2": {Data: []byte("font")},
}

// site is a console on a public listener. Its hub is a real API server.
type site struct {
	*Console

	t     *testing.T
	hub   kubernetes.Interface
	url   string
	roots *x509.CertPool

	mu  sync.Mutex
	log strings.Builder
}

func newSite(t *testing.T, config *rest.Config, change func(*Console)) *site {
	t.Helper()
	s := &site{t: t}
	var err error
	if s.hub, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewAuthority("server", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Leaf{Name: "public", CommonName: "public", Server: true, IPs: []string{"127.0.0.1"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "public.pem")
	if err := os.WriteFile(file, slices.Concat(leaf.Cert, leaf.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(ca.Cert)
	public, err := listener.New(listener.Options{}, listener.Serving{Address: tcp.Addr().String(), CertFile: file, KeyFile: file}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	s.url = public.URL()
	s.Console, err = New(Options{
		Hub: config, URL: s.url, Files: page, Version: "v1.2.3",
		Log: funcr.New(func(prefix, args string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			fmt.Fprintln(&s.log, prefix, args)
		}, funcr.Options{Verbosity: 9}),
		Authorize: s.authorize,
	})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(s.Console)
	}
	public.Handle(Path, s.Console)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- public.Serve(ctx, tcp) }()
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
	return s
}

// authorize asks the hub, as the fleet API does.
func (s *site) authorize(ctx context.Context, what authorizationv1.ResourceAttributes) error {
	who, _ := request.UserFrom(ctx)
	review, err := s.hub.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: who.GetName(), Groups: who.GetGroups(), ResourceAttributes: &what},
	}, metav1.CreateOptions{})
	if err == nil && !review.Status.Allowed {
		return apierrors.NewForbidden(schema.GroupResource{Group: what.Group, Resource: what.Resource}, what.Name, errors.New("no role"))
	}
	return err
}

// allow lets a user read ConfigMaps in a new namespace, until take is called.
func (s *site) allow(subject rbacv1.Subject) (namespace string, take func()) {
	s.t.Helper()
	created, err := s.hub.CoreV1().Namespaces().Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	namespace = created.Name
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch", "create", "delete"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
	}
	if _, err := s.hub.RbacV1().Roles(namespace).Create(s.t.Context(), role, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.hub.RbacV1().RoleBindings(namespace).Create(s.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	who := &user.DefaultInfo{Name: "somebody", Groups: []string{subject.Name}}
	if subject.Kind == rbacv1.UserKind {
		who = &user.DefaultInfo{Name: subject.Name}
	}
	testenv.Eventually(s.t, "the hub knows of the right", testenv.Patience, func() error {
		return s.authorize(request.WithUser(s.t.Context(), who), authorizationv1.ResourceAttributes{Verb: "watch", Resource: "configmaps", Namespace: namespace})
	})
	return namespace, func() {
		testenv.Eventually(s.t, "take the right away", testenv.Patience, func() error {
			err := s.hub.RbacV1().RoleBindings(namespace).Delete(s.t.Context(), "reader", metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
}

func userSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// browser is a browser with its cookies.
type browser struct {
	*http.Client

	s *site
}

func (s *site) browser() *browser {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &browser{&http.Client{
		Jar: jar, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, s}
}

// tls returns the configuration for an HTTP/1.1 connection.
func (b *browser) tls() *tls.Config { return &tls.Config{RootCAs: b.s.roots} }

// start starts a request as the page makes it. headers (name, value) replace its headers; an empty
// value removes one.
func (b *browser) start(method, path, body string, headers ...string) *http.Response {
	b.s.t.Helper()
	r, err := http.NewRequestWithContext(b.s.t.Context(), method, b.s.url+path, strings.NewReader(body))
	if err != nil {
		b.s.t.Fatal(err)
	}
	r.Header.Set("Origin", b.s.url)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Del(headers[i]); headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	client := b.Client
	if r.Header.Get("Upgrade") != "" { // browsers open a connection of HTTP/1.1 for it
		old := &http.Transport{TLSClientConfig: b.tls()}
		b.s.t.Cleanup(old.CloseIdleConnections)
		client = &http.Client{Jar: b.Jar, Transport: old}
	}
	response, err := client.Do(r)
	if err != nil {
		b.s.t.Fatalf("%s %s: %v", method, path, err)
	}
	b.s.t.Cleanup(func() { response.Body.Close() })
	return response
}

func (b *browser) do(method, path, body string, headers ...string) (*http.Response, string) {
	b.s.t.Helper()
	response := b.start(method, path, body, headers...)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.s.t.Fatal(err)
	}
	return response, string(text)
}

// want calls do, and checks the status of the answer. It asks again if the hub does not answer for
// a moment.
func (b *browser) want(code int, method, path, body string, headers ...string) string {
	b.s.t.Helper()
	var response *http.Response
	var text string
	testenv.Eventually(b.s.t, method+" "+path, testenv.Patience, func() error {
		response, text = b.do(method, path, body, headers...)
		if is := response.StatusCode; is != code && (is == http.StatusServiceUnavailable || is == http.StatusGatewayTimeout) {
			return fmt.Errorf("%s: %s", response.Status, text)
		}
		return nil
	})
	if response.StatusCode != code {
		b.s.t.Errorf("%s %s %s answers %s, want %d: %s", method, path, headers, response.Status, code, text)
	}
	return text
}

// link creates a link, and returns its secret.
func (s *site) link(who user.Info) string {
	s.t.Helper()
	made, err := s.Link(who)
	if err != nil {
		s.t.Fatal(err)
	}
	_, secret, _ := strings.Cut(made.URL, Path+"#link=")
	return secret
}

// login opens a session with a link.
func (s *site) login(who user.Info) *browser {
	s.t.Helper()
	b := s.browser()
	testenv.Eventually(s.t, "log in", testenv.Patience, func() error {
		if response, text := b.do(http.MethodPost, sessionPath, `{"link": "`+s.link(who)+`"}`); response.StatusCode != http.StatusCreated {
			return fmt.Errorf("%s: %s", response.Status, text)
		}
		return nil
	})
	return b
}

func (b *browser) cookie() string {
	r, _ := http.NewRequest(http.MethodGet, b.s.url+Path, nil)
	for _, c := range b.Jar.Cookies(r.URL) {
		if c.Name == cookieName {
			return c.Value
		}
	}
	return ""
}

// TestSession: a link opens a session of its user, with the user's rights on the hub, until logout.
func TestSession(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	namespace, take := s.allow(rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "readers"})
	b := s.browser()
	b.want(http.StatusUnauthorized, http.MethodGet, sessionPath, "")
	b = s.login(&user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"readers", user.AllAuthenticated}, Extra: map[string][]string{"a/b": {"c"}}})
	var got described
	if err := json.Unmarshal([]byte(b.want(http.StatusOK, http.MethodGet, sessionPath, "")), &got); err != nil || got.User != "alice" || got.Version != "v1.2.3" ||
		!slices.Equal(got.Groups, []string{"readers", user.AllAuthenticated}) || time.Until(got.Expires.Time) > sessionLifetime {
		t.Errorf("%+v, %v", got, err)
	}
	maps := hubPath + "/api/v1/namespaces/" + namespace + "/configmaps"
	b.want(http.StatusOK, http.MethodGet, maps, "")
	b.want(http.StatusForbidden, http.MethodGet, hubPath+"/api/v1/namespaces/default/configmaps", "")
	b.want(http.StatusCreated, http.MethodPost, maps, `{"metadata": {"name": "made"}}`)
	self := b.want(http.StatusCreated, http.MethodPost, hubPath+"/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`)
	for _, part := range []string{`"username":"alice"`, `"uid":"1"`, `"readers"`, `"a/b":["c"]`} {
		if !strings.Contains(self, part) {
			t.Errorf("the hub takes the session for %s, which has no %s", self, part)
		}
	}
	take()
	testenv.Eventually(t, "the right that is gone opens nothing", testenv.Patience, func() error {
		if r, text := b.do(http.MethodGet, maps, ""); r.StatusCode != http.StatusForbidden {
			return errors.New(text)
		}
		return nil
	})
	stolen := b.cookie()
	b.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	b.want(http.StatusUnauthorized, http.MethodGet, sessionPath, "")
	s.browser().want(http.StatusUnauthorized, http.MethodGet, sessionPath, "", "Cookie", cookieName+"="+stolen)
}

// TestSessionExpires: a session ends after its lifetime, and not before.
func TestSessionExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Console{ctx: t.Context(), sessions: newVault[*Session](mostSessions, mostSessionsOfOne), lifetime: sessionLifetime}
		session, secret := c.open(&user.DefaultInfo{Name: "alice"}, "")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, sessionPath, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.AddCookie(&http.Cookie{Name: cookieName, Value: secret})
		time.Sleep(sessionLifetime - time.Nanosecond)
		synctest.Wait()
		if found, err := c.find(r); found != session || err != nil || session.Context().Err() != nil {
			t.Errorf("before its end the session has ended: %v, %v", err, context.Cause(session.Context()))
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if cause := context.Cause(session.Context()); !errors.Is(cause, errExpired) {
			t.Errorf("at its end the session has ended with %v", cause)
		}
		if _, err := c.find(r); !apierrors.IsUnauthorized(err) {
			t.Errorf("the session is found after its end: %v", err)
		}
	})
}

// wire is a connection on which a test writes what clients cannot send.
type wire struct {
	*tls.Conn

	t      *testing.T
	reader *bufio.Reader
}

func (s *site) dial() *wire {
	s.t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: s.roots})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return &wire{c, s.t, bufio.NewReader(c)}
}

func (w *wire) send(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) answer() *http.Response {
	w.t.Helper()
	r, err := http.ReadResponse(w.reader, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}
