package console

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"orrery.dev/orrery/internal/slots"
	"orrery.dev/orrery/internal/testenv"
)

var alice = &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}

func asLink(secret string) string { return `{"link": "` + secret + `"}` }

// TestLinksOpenOnce: a link opens one session, even if several clients use it at the same moment.
func TestLinksOpenOnce(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	secret := s.link(alice)
	const tries = 20
	codes := make(chan int, tries)
	var ready, done sync.WaitGroup
	ready.Add(1)
	for range tries {
		b := s.browser()
		done.Go(func() {
			ready.Wait()
			codes <- b.start(http.MethodPost, sessionPath, asLink(secret)).StatusCode
		})
	}
	ready.Done()
	done.Wait()
	close(codes)
	opened := 0
	for code := range codes {
		switch code {
		case http.StatusCreated:
			opened++
		case http.StatusUnauthorized:
		default:
			t.Errorf("an exchange answers %d", code)
		}
	}
	if opened != 1 {
		t.Errorf("a link opened %d sessions", opened)
	}
}

// TestLinksThatOpenNothing: links that were used, have expired, belong to another hub, or are older
// than a restart, have the same answer as an invented link.
func TestLinksThatOpenNothing(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	used := s.link(alice)
	s.browser().want(http.StatusCreated, http.MethodPost, sessionPath, asLink(used))
	s.linkLifetime = 0
	ended := s.link(alice)
	s.linkLifetime = linkLifetime
	other, err := New(s.options)
	if err != nil {
		t.Fatal(err)
	}
	status, err := other.Link(alice)
	if err != nil {
		t.Fatal(err)
	}
	_, others, _ := strings.Cut(status.URL, "#link=")
	said := map[string]bool{}
	for name, secret := range map[string]string{"Used": used, "Ended": ended, "AnotherHubs": others, "MadeUp": "x", "Digest": string(make([]byte, 32))} {
		b := s.browser()
		text := b.want(http.StatusUnauthorized, http.MethodPost, sessionPath, strings.ReplaceAll(asLink(secret), "\x00", `\u0000`))
		if b.cookie() != "" {
			t.Errorf("%s: a cookie is set", name)
		}
		said[text] = true
	}
	if len(said) != 1 {
		t.Errorf("what opens nothing is told apart: %v", said)
	}
	for range mostLinksOfOne {
		s.link(alice)
	}
	oldest := s.link(alice)
	for range mostLinksOfOne {
		s.link(alice)
	}
	s.browser().want(http.StatusUnauthorized, http.MethodPost, sessionPath, asLink(oldest))
	if n := len(s.links.held); n != mostLinksOfOne {
		t.Errorf("%d links of one user are kept", n)
	}
}

// TestFixation: an attacker cannot give a user a session whose secret the attacker knows. A
// page of another origin cannot log a user in.
func TestFixation(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	attacker := s.login(&user.DefaultInfo{Name: "mallory"})
	planted := cookieName + "=" + attacker.cookie()
	victim := s.browser()
	victim.want(http.StatusCreated, http.MethodPost, sessionPath, asLink(s.link(alice)), "Cookie", planted)
	if victim.cookie() == attacker.cookie() || victim.cookie() == "" {
		t.Error("a login goes on with the secret that was there")
	}
	if got := victim.want(http.StatusOK, http.MethodGet, sessionPath, ""); !strings.Contains(got, `"user":"alice"`) {
		t.Error(got)
	}
	// A login replaces the browser's earlier session.
	attacker.want(http.StatusUnauthorized, http.MethodGet, sessionPath, "")
	// If there are two cookies with the name, neither is used.
	s.browser().want(http.StatusUnauthorized, http.MethodGet, sessionPath, "", "Cookie", planted+"; "+cookieName+"="+victim.cookie())
	secret := s.link(&user.DefaultInfo{Name: "mallory"})
	victim.want(http.StatusForbidden, http.MethodPost, sessionPath, asLink(secret), "Origin", "https://evil.example.com")
	r, _ := s.browser().do(http.MethodPost, sessionPath, asLink(secret))
	set := r.Header.Get("Set-Cookie")
	for _, attribute := range []string{cookieName + "=", "Path=/", "HttpOnly", "Secure", "SameSite=Strict"} {
		if !strings.Contains(set, attribute) {
			t.Errorf("the cookie %q has no %s", set, attribute)
		}
	}
	if strings.Contains(set, "Domain") {
		t.Errorf("the cookie is for other hosts: %s", set)
	}
}

// TestExchangesAreBounded: an invalid exchange is refused without quoting it, and the rate of
// tokens is limited.
func TestExchangesAreBounded(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	b := s.browser()
	for name, c := range map[string]struct {
		body, media string
		code        int
	}{
		"Empty": {"", "application/json", http.StatusBadRequest}, "Garbage": {`{"link": "secret-1`, "application/json", http.StatusBadRequest},
		"Both": {`{"link": "secret-1", "token": "secret-1"}`, "application/json", http.StatusBadRequest}, "Neither": {`{}`, "application/json", http.StatusBadRequest},
		"MoreThanThat": {`{"link": "secret-1", "user": "root"}`, "application/json", http.StatusBadRequest},
		"AForm":        {`link=secret-1`, "application/x-www-form-urlencoded", http.StatusBadRequest}, "Untyped": {`{"link": "secret-1"}`, "text/plain", http.StatusBadRequest},
		"TooLong": {`{"link": "` + strings.Repeat("x", longestExchange) + `"}`, "application/json", http.StatusBadRequest},
		"AToken":  {`{"token": "secret-1"}`, "application/json", http.StatusUnauthorized},
	} {
		if text := b.want(c.code, http.MethodPost, sessionPath, c.body, "Content-Type", c.media); strings.Contains(text, "secret-1") {
			t.Errorf("%s: the answer has what was sent: %s", name, text)
		}
	}
	b.want(http.StatusMethodNotAllowed, http.MethodPut, sessionPath, "", "Cookie", cookieName+"="+s.login(alice).cookie())
	// A body that never arrives does not block the hub.
	impatient := newSite(t, testenv.Config(0), func(c *Console) { c.bodyTime = 500 * time.Millisecond })
	slow := impatient.dial()
	slow.send("POST " + sessionPath + " HTTP/1.1\r\nHost: x\r\nOrigin: " + impatient.url + "\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	if got := slow.answer(); got.StatusCode != http.StatusBadRequest {
		t.Errorf("a body that never comes: %s", got.Status)
	}
	s.tokens = slots.NewRates(slots.Rate{Burst: 3}, slots.Rate{Burst: 2})
	for _, code := range []int{http.StatusUnauthorized, http.StatusUnauthorized, http.StatusTooManyRequests} {
		b.want(code, http.MethodPost, sessionPath, `{"token": "secret-1"}`)
	}
	b.want(http.StatusCreated, http.MethodPost, sessionPath, asLink(s.link(alice)))
	// One address does not use up the attempts of others.
	elsewhere := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}, Config: &tls.Config{RootCAs: s.roots}}
	c, err := elsewhere.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := `{"token": "secret-1"}`
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", sessionPath, s.url, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusUnauthorized {
		t.Errorf("a token from another address: %v, %v", r, err)
	}
}

// serviceAccount creates a ServiceAccount, and a token of it.
func (s *site) serviceAccount() (namespace, token string) {
	s.t.Helper()
	namespace = testenv.Namespace(s.t, testenv.Config(0))
	accounts := s.hub.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	made, err := accounts.CreateToken(s.t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return namespace, made.Status.Token
}

// TestTokens: a token opens a session of its user on the hub. The session ends when the hub no
// longer accepts the token, but not because the hub does not answer for a while.
func TestTokens(t *testing.T) {
	api := testenv.StartServer(t)
	s := newSite(t, api.Config(), func(c *Console) { c.reviewInterval = 50 * time.Millisecond })
	accounts := s.hub.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := accounts.CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := s.browser()
	if got := b.want(http.StatusCreated, http.MethodPost, sessionPath, `{"token": "`+made.Status.Token+`"}`); !strings.Contains(got, `"user":"system:serviceaccount:default:robot"`) {
		t.Error(got)
	}
	b.want(http.StatusForbidden, http.MethodGet, hubPath+"/api/v1/secrets", "")
	api.Signal(t, 9)
	before := testutil.ToFloat64(openSessions)
	if _, err := s.whoHas(t.Context(), made.Status.Token); err == nil {
		t.Error("a hub that is not there says who has a token")
	}
	b.want(http.StatusOK, http.MethodGet, sessionPath, "")
	b.want(http.StatusServiceUnavailable, http.MethodGet, hubPath+"/api/v1/secrets", "")
	api.Restart(t)
	b.want(http.StatusOK, http.MethodGet, sessionPath, "")
	if err := accounts.Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the session of a token that was revoked ends", testenv.Patience, func() error {
		if r, _ := b.do(http.MethodGet, sessionPath, ""); r.StatusCode != http.StatusUnauthorized {
			return errors.New(r.Status)
		}
		return nil
	})
	// The session is counted until what it has open is closed, a moment after the answer.
	testenv.Eventually(t, "the session is not counted any more", testenv.Patience, func() error {
		if after := testutil.ToFloat64(openSessions); after != before-1 {
			return fmt.Errorf("sessions that are open: %v, then %v", before, after)
		}
		return nil
	})
}

// TestSessionsAreBounded: sessions are limited in all and for each user. The oldest one ends, with
// the limit as its cause. A user at the own limit ends no session of others.
func TestSessionsAreBounded(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	bob := s.login(&user.DefaultInfo{Name: "bob"})
	other, _ := s.sessions.get(digestOf(bob.cookie()))
	first, _ := s.open(alice, "")
	second, _ := s.open(alice, "")
	ended := func(s *Session, want error) {
		t.Helper()
		if got := context.Cause(s.Context()); !errors.Is(got, want) {
			t.Errorf("a session ended with %v, want %v", got, want)
		}
	}
	for range mostSessionsOfOne - 2 {
		s.open(alice, "")
	}
	ended(first, nil)
	s.sessions.mu.Lock()
	s.sessions.most = mostSessionsOfOne + 1
	s.sessions.mu.Unlock()
	s.open(alice, "")
	ended(first, errTooManySessions)
	ended(second, nil)
	ended(other, nil)
	bob.want(http.StatusOK, http.MethodGet, sessionPath, "")
	s.open(&user.DefaultInfo{Name: "carol"}, "")
	ended(other, errConsoleFull)
	bob.want(http.StatusUnauthorized, http.MethodGet, sessionPath, "")
	ended(second, nil)
	s.open(&user.DefaultInfo{Name: "dave"}, "")
	ended(second, errConsoleFull)
}

// TestSecretsAreKept: no link, token or cookie is in logs, metrics or answers.
func TestSecretsAreKept(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	_, token := s.serviceAccount()
	b := s.browser()
	secret := s.link(alice)
	said := b.want(http.StatusCreated, http.MethodPost, sessionPath, asLink(secret))
	secrets := []string{secret, token, b.cookie()}
	said += b.want(http.StatusUnauthorized, http.MethodPost, sessionPath, asLink(secret))
	said += b.want(http.StatusCreated, http.MethodPost, sessionPath, `{"token": "`+token+`"}`)
	secrets = append(secrets, b.cookie())
	said += b.want(http.StatusUnauthorized, http.MethodPost, sessionPath, `{"token": "`+token+`x"}`)
	said += b.want(http.StatusBadRequest, http.MethodPost, sessionPath, `{"token": "`+token)
	said += b.want(http.StatusForbidden, http.MethodGet, hubPath+"/api/v1/secrets", "")
	said += b.want(http.StatusForbidden, http.MethodGet, sessionPath, "", "Sec-Fetch-Site", "cross-site")
	b.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	var logged string
	for _, part := range []string{`"user"="alice"`, `"by"="token"`, "logged out"} {
		testenv.Eventually(t, "the log has "+part, testenv.Patience, func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if logged = s.log.String(); !strings.Contains(logged, part) {
				return errors.New(logged)
			}
			return nil
		})
	}
	for i, one := range secrets {
		if one == "" || strings.Contains(logged, one) || strings.Contains(said, one) {
			t.Errorf("secret %d is told:\n%s\n%s", i, logged, said)
		}
	}
}
