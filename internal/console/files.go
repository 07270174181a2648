package console

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names in the build.
const (
	index  = "index.html"
	assets = "assets/" // these names contain a digest of the content
)

// Placeholders in the index: for the nonce of the answer, and for the description of the session.
const (
	noncePlaceholder   = "__CSP_NONCE__"
	sessionPlaceholder = "__SESSION__"
)

// notBuilt is the message if the build has no page.
const notBuilt = "this build of orrery has no console: it was built without Node. Build it with Node and \"make build\", or use a release"

// encodings of stored files, the preferred one first.
var encodings = []struct{ name, suffix string }{{"br", ".br"}, {"gzip", ".gz"}}

// file is a file of the page.
type file struct {
	media string
	as    map[string]variant // by encoding; "" is the plain file
}

type variant struct{ path, tag string }

// files serves the files of the page.
type files struct {
	content fs.FS
	byPath  map[string]*file
	index   []byte
}

func newFiles(content fs.FS) (*files, error) {
	f := &files{content: content, byPath: map[string]*file{}}
	tags := map[string]string{}
	err := fs.WalkDir(content, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		text, err := fs.ReadFile(content, name)
		if err != nil {
			return err
		}
		digest := sha256.Sum256(text)
		tags[name] = strconv.Quote(hex.EncodeToString(digest[:16]))
		if name == index {
			f.index = text
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for name, tag := range tags {
		if slices.ContainsFunc(encodings, func(e struct{ name, suffix string }) bool {
			plain, cut := strings.CutSuffix(name, e.suffix)
			return cut && tags[plain] != ""
		}) {
			continue // a compressed form of another file
		}
		one := &file{media: mime.TypeByExtension(path.Ext(name)), as: map[string]variant{"": {name, tag}}}
		for _, e := range encodings {
			if tag := tags[name+e.suffix]; tag != "" {
				one.as[e.name] = variant{name + e.suffix, tag}
			}
		}
		f.byPath[name] = one
	}
	return f, nil
}

func (f *files) built() bool { return f.index != nil }

// serve answers a request. told returns the session as JSON for the page; empty: no session. It is
// called for the index only.
func (f *files) serve(w http.ResponseWriter, r *http.Request, told func() []byte) {
	h := w.Header()
	inert(h)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the console's files are read, and nothing else", http.StatusMethodNotAllowed)
		return
	}
	if !f.built() {
		http.Error(w, notBuilt, http.StatusNotImplemented)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, Path)
	one, found := f.byPath[name]
	switch {
	case found && name != index:
		f.serveFile(w, r, name, one)
	case strings.HasPrefix(name, assets), path.Ext(name) != "" && name != index && !strings.Contains(r.Header.Get("Accept"), "text/html"):
		http.Error(w, fmt.Sprintf("the console has no file %.200q", name), http.StatusNotFound)
	default: // a path within the page, in which names may have dots
		f.serveIndex(w, r, told())
	}
}

// serveFile sends a file in the best encoding that the client accepts.
func (f *files) serveFile(w http.ResponseWriter, r *http.Request, name string, one *file) {
	h := w.Header()
	form := one.as[""]
	for _, e := range encodings {
		if v, ok := one.as[e.name]; ok && takes(r, e.name) {
			form = v
			h.Set("Content-Encoding", e.name)
			break
		}
	}
	content, err := f.content.Open(form.path)
	if err != nil {
		http.Error(w, "the console's file cannot be read", http.StatusInternalServerError)
		return
	}
	defer func() { _ = content.Close() }() // it was read
	seeker, ok := content.(io.ReadSeeker)
	if !ok {
		http.Error(w, "the console's file cannot be read", http.StatusInternalServerError)
		return
	}
	if one.media != "" {
		h.Set("Content-Type", one.media)
	} else {
		h.Set("Content-Type", "application/octet-stream")
	}
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", form.tag)
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, assets) {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, seeker)
}

// takes reports whether the client accepts an encoding.
func takes(r *http.Request, encoding string) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, q, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(name), encoding) {
			continue
		}
		weight, given := strings.CutPrefix(strings.ReplaceAll(q, " ", ""), "q=")
		value, err := strconv.ParseFloat(weight, 64)
		return !given || err == nil && value > 0
	}
	return false
}

// serveIndex sends the page. The editor and the terminal insert style elements. These need the
// nonce of the answer, so that no other code can insert styles. A page with a session must not be
// cached: the next user of the browser may be another one.
func (f *files) serveIndex(w http.ResponseWriter, r *http.Request, told []byte) {
	nonce := rand.Text()
	h := w.Header()
	policy := maps.Clone(pagePolicy)
	policy["style-src"] += " 'nonce-" + nonce + "'"
	h.Set("Content-Security-Policy", written(policy))
	h.Set("Content-Type", "text/html; charset=utf-8")
	if len(told) == 0 {
		h.Set("Cache-Control", "no-cache")
	}
	content := strings.NewReplacer(noncePlaceholder, nonce, sessionPlaceholder, html.EscapeString(string(told))).Replace(string(f.index))
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
}

// pagePolicy is the Content-Security-Policy of the page: nothing from other origins.
var pagePolicy = map[string]string{
	"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self' data:", "font-src": "'self'",
	"worker-src": "'self'", "manifest-src": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'",
}

func written(policy map[string]string) string {
	var out strings.Builder
	for i, directive := range slices.Sorted(maps.Keys(policy)) {
		if i > 0 {
			out.WriteString("; ")
		}
		out.WriteString(directive + " " + policy[directive])
	}
	return out.String()
}
