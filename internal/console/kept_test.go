package console

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/testenv"
)

// keeping returns a site that stores its sessions.
func keeping(t *testing.T) (s *site, file string) {
	file = filepath.Join(t.TempDir(), "sessions.json")
	return newSite(t, testenv.Config(0), func(c *Console) { c.options.SessionsFile, c.options.HubID = file, "one" }), file
}

// after returns the answer of the hub's next process to a request for the session with the cookie:
// its code and body.
func (s *site) after(cookie string) (int, string) {
	s.t.Helper()
	next, err := New(s.options)
	if err != nil {
		s.t.Fatal(err)
	}
	defer next.stop(errStopped)
	r := httptest.NewRequest(http.MethodGet, s.url+sessionPath, nil)
	r.Header.Set("Origin", s.url)
	r.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
	w := httptest.NewRecorder()
	next.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// TestSessionsOutliveTheHub: exactly the sessions that are open when the hub's process ends, in any
// way, are open in the next one.
func TestSessionsOutliveTheHub(t *testing.T) {
	s, file := keeping(t)
	stays, left, replaced := s.login(alice), s.login(alice), s.login(alice)
	before := replaced.cookie()
	replaced.want(http.StatusCreated, http.MethodPost, sessionPath, `{"link": "`+s.link(alice)+`"}`)
	_, token := s.serviceAccount()
	robot := s.browser()
	robot.want(http.StatusCreated, http.MethodPost, sessionPath, `{"token": "`+token+`"}`)
	gone := left.cookie()
	left.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	is := stays.want(http.StatusOK, http.MethodGet, sessionPath, "")

	for _, end := range []string{"killed", "stopped"} {
		if end == "stopped" {
			s.stop(errStopped)
			stays.want(http.StatusServiceUnavailable, http.MethodGet, sessionPath, "")
		}
		if code, body := s.after(stays.cookie()); code != http.StatusOK || body != is {
			t.Errorf("%s: a session goes on as %d %s, want %s", end, code, body, is)
		}
		if code, _ := s.after(replaced.cookie()); code != http.StatusOK {
			t.Errorf("%s: the session that took another's place answers %d", end, code)
		}
		for what, cookie := range map[string]string{"one that was logged out": gone, "one that was replaced": before, "that of a token": robot.cookie()} {
			if code, body := s.after(cookie); code != http.StatusUnauthorized {
				t.Errorf("%s: %s answers %d %s", end, what, code, body)
			}
		}
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{stays.cookie(), replaced.cookie(), robot.cookie(), token} {
		if strings.Contains(string(raw), secret) {
			t.Errorf("the file has a secret in it: %s", raw)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v %v", info, err)
	}
}

// TestNoSessionComesBack: no session is restored from a file that is too old, from another clock or
// hub, broken, or could not be written.
func TestNoSessionComesBack(t *testing.T) {
	s, file := keeping(t)
	b, other := s.login(alice), s.login(alice)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	with := func(expires time.Time) string {
		var all kept
		if err := json.Unmarshal(raw, &all); err != nil || len(all.Sessions) != 2 {
			t.Fatal(err, len(all.Sessions))
		}
		for i := range all.Sessions {
			all.Sessions[i].Expires = expires
		}
		changed, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(changed)
	}
	var session described
	for content, want := range map[string]int{
		with(time.Now().Add(-time.Second)): http.StatusUnauthorized, with(time.Now().Add(time.Hour)): http.StatusOK, with(time.Now().Add(99 * time.Hour)): http.StatusOK,
		"": http.StatusUnauthorized, `{"hub": "one", "sessions": [{}]}`: http.StatusUnauthorized,
		strings.Replace(string(raw), `"one"`, `"another"`, 1): http.StatusUnauthorized, // another hub
		string(raw[:len(raw)/2]):                              http.StatusUnauthorized,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		code, body := s.after(b.cookie())
		if code != want {
			t.Errorf("%s: %d %s", content, code, body)
		}
		if code == http.StatusOK {
			if err := json.Unmarshal([]byte(body), &session); err != nil || time.Until(session.Expires.Time) > sessionLifetime {
				t.Errorf("a session lasts until %s (%v)", session.Expires, err)
			}
		}
	}

	// A directory blocks the temporary file, so nothing can be written.
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(disk.Beside(file), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	ended := other.cookie()
	other.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	if code, _ := s.after(ended); code != http.StatusUnauthorized {
		t.Errorf("a session that was logged out answers %d", code)
	}
	b.want(http.StatusOK, http.MethodGet, sessionPath, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	if logged := s.log.String(); !strings.Contains(logged, "cannot be written down") {
		t.Errorf("nothing is logged of it: %s", logged)
	}
}
