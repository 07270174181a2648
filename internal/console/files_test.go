package console

import (
	"context"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

func newPage(t *testing.T, o Options) *Console {
	t.Helper()
	o.Hub = &rest.Config{Host: "https://127.0.0.1:1"}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get(c http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

// TestFiles: each file is sent in an encoding that the browser accepts, and with the right cache
// headers.
func TestFiles(t *testing.T) {
	c := newPage(t, Options{Files: page})
	const script, forever = "/console/assets/main-1.js", "public, max-age=31536000, immutable"
	for name, tc := range map[string]struct {
		path, accepts, accept                string
		code                                 int
		body, encoding, media, cache, varies string
	}{
		"Plain":        {path: script, code: 200, body: "hello", media: "text/javascript; charset=utf-8", cache: forever, varies: "Accept-Encoding"},
		"Brotli":       {path: script, accepts: "gzip, deflate, br, zstd", code: 200, body: "br of hello", encoding: "br", media: "text/javascript; charset=utf-8", cache: forever, varies: "Accept-Encoding"},
		"Gzip":         {path: script, accepts: "gzip;q=0.5, br; q=0", code: 200, body: "gz of hello", encoding: "gzip", media: "text/javascript; charset=utf-8", cache: forever, varies: "Accept-Encoding"},
		"NoneOfThem":   {path: script, accepts: "gzip;q=0, zstd", code: 200, body: "hello", media: "text/javascript; charset=utf-8", cache: forever, varies: "Accept-Encoding"},
		"NotPacked":    {path: "/console/favicon.svg", accepts: "br", code: 200, body: "<svg/>", media: "image/svg+xml", cache: "no-cache", varies: "Accept-Encoding"},
		"PackedItself": {path: script + ".br", code: 404, media: "text/plain; charset=utf-8", cache: "no-store"},
		"OldAsset":     {path: "/console/assets/main-0.js", accept: "text/html", code: 404, media: "text/plain; charset=utf-8", cache: "no-store"},
		"NoFile":       {path: "/console/robots.txt", accept: "*/*", code: 404, media: "text/plain; charset=utf-8", cache: "no-store"},
		"Outside":      {path: "/console/../../etc/passwd", code: 200, media: "text/html; charset=utf-8", cache: "no-cache"},
		"Page":         {path: "/console/", code: 200, media: "text/html; charset=utf-8", cache: "no-cache"},
		"Index":        {path: "/console/index.html", code: 200, media: "text/html; charset=utf-8", cache: "no-cache"},
		"Screen":       {path: "/console/clusters/oak", accept: "*/*", code: 200, media: "text/html; charset=utf-8", cache: "no-cache"},
		"NameWithDots": {path: "/console/o/orbits.sky.example.org", accept: "text/html,*/*", code: 200, media: "text/html; charset=utf-8", cache: "no-cache"},
	} {
		t.Run(name, func(t *testing.T) {
			w := get(c, tc.path, "Accept-Encoding", tc.accepts, "Accept", tc.accept)
			h := w.Header()
			if diff := cmp.Diff([]any{tc.code, tc.encoding, tc.media, tc.cache, tc.varies},
				[]any{w.Code, h.Get("Content-Encoding"), h.Get("Content-Type"), h.Get("Cache-Control"), h.Get("Vary")}); diff != "" {
				t.Error(diff)
			}
			if tc.body != "" && w.Body.String() != tc.body {
				t.Errorf("%q", w.Body)
			}
			if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cross-Origin-Opener-Policy") != "same-origin" {
				t.Error(h)
			}
		})
	}
	plain, packed := get(c, script).Header().Get("ETag"), get(c, script, "Accept-Encoding", "br").Header().Get("ETag")
	if plain == "" || plain == packed {
		t.Errorf("two forms are one to caches: %s, %s", plain, packed)
	}
	if w := get(c, script, "Accept-Encoding", "br", "If-None-Match", packed); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, script, nil)
	w := httptest.NewRecorder()
	if c.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Error(w.Code)
	}
}

// TestPolicy: the page may run only its own files, and insert styles only with the nonce, which
// changes with each answer.
func TestPolicy(t *testing.T) {
	c := newPage(t, Options{Files: page})
	nonces := map[string]bool{}
	for range 3 {
		w := get(c, "/console/")
		policy := w.Header().Get("Content-Security-Policy")
		found := regexp.MustCompile(`'nonce-([A-Z0-9]{20,})'`).FindStringSubmatch(policy)
		if found == nil || !strings.Contains(w.Body.String(), `nonce="`+found[1]+`"`) || strings.Contains(w.Body.String(), noncePlaceholder) || !strings.Contains(w.Body.String(), `name="session" content=""`) {
			t.Fatalf("%s\n%s", policy, w.Body)
		}
		nonces[found[1]] = true
		want := "base-uri 'none'; connect-src 'self'; default-src 'none'; font-src 'self'; form-action 'none'; frame-ancestors 'none'; img-src 'self' data:; " +
			"manifest-src 'self'; script-src 'self'; style-src 'self' 'nonce-" + found[1] + "'; worker-src 'self'"
		if diff := cmp.Diff(want, policy); diff != "" {
			t.Error(diff)
		}
	}
	if len(nonces) != 3 {
		t.Error("a nonce is used again")
	}
}

// TestWithoutPage: a build without the page says how to get it, on its path and to requests for
// links; so does a hub that does not know its URL.
func TestWithoutPage(t *testing.T) {
	c := newPage(t, Options{URL: "https://x", Files: fstest.MapFS{".gitkeep": {}}})
	if w := get(c, "/console/"); w.Code != http.StatusNotImplemented || !strings.Contains(w.Body.String(), "make build") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, err := c.Link(alice); apierrors.ReasonForError(err) != fleetv1alpha1.ReasonNoConsole || !strings.Contains(err.Error(), "make build") {
		t.Error(err)
	}
	c = newPage(t, Options{Files: page})
	if _, err := c.Link(alice); apierrors.ReasonForError(err) != fleetv1alpha1.ReasonNoConsole || !strings.Contains(err.Error(), "--public-url") {
		t.Error(err)
	}
}

// TestPageHasSession: the page contains the session of its browser, as GET of the session returns
// it, and is not cached. Requests from other origins get no session.
func TestPageHasSession(t *testing.T) {
	s := newSite(t, testenv.Config(0), nil)
	b := s.login(&user.DefaultInfo{Name: `a"><script>`, Groups: []string{"<g>"}})
	content := regexp.MustCompile(`name="session" content="([^"]*)"`)
	page := func(b *browser, headers ...string) (string, *http.Response) {
		response, text := b.do(http.MethodGet, Path+"table", "", headers...)
		found := content.FindStringSubmatch(text)
		if found == nil || strings.Contains(text, sessionPlaceholder) {
			t.Fatalf("%s\n%s", response.Status, text)
		}
		return html.UnescapeString(found[1]), response
	}
	navigation := []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}
	got, response := page(b, navigation...)
	if want := strings.TrimSpace(b.want(http.StatusOK, http.MethodGet, sessionPath, "")); got != want || !strings.Contains(got, "a") {
		t.Errorf("session %s, want %s", got, want)
	}
	if response.Header.Get("Cache-Control") != "no-store" {
		t.Error(response.Header)
	}
	for name, headers := range map[string][]string{
		"OfAnotherOrigin": {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"},
		"InAFrame":        {"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "iframe"},
	} {
		if got, _ := page(b, headers...); got != "" {
			t.Errorf("%s: session %s", name, got)
		}
	}
	if got, _ := page(s.browser(), navigation...); got != "" {
		t.Errorf("a browser without a session gets %s", got)
	}
	b.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	if got, _ := page(b, navigation...); got != "" {
		t.Errorf("after the session ended, the page has %s", got)
	}
}
