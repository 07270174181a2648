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

// Names in the built page: its HTML, and the directory of its other files.
const (
	index  = "index.html"
	assets = "assets/" // the names of these files contain a digest of the content
)

// Placeholders in index.html, which each answer replaces: by a nonce for the
// Content-Security-Policy, and by the description of the session as JSON.
const (
	noncePlaceholder   = "__CSP_NONCE__"
	sessionPlaceholder = "__SESSION__"
)

// notBuilt is the message of a program that was built without the page.
const notBuilt = "this build of orrery has no console: it was built without Node. Build it with Node and \"make build\", or use a release"

// encodings are the compressions in which the build stores files, with the suffixes of their names,
// the preferred one first.
var encodings = []struct{ name, suffix string }{{"br", ".br"}, {"gzip", ".gz"}}

// file is one file of the page, with its media type and its compressed forms.
type file struct {
	media string
	as    map[string]variant // by encoding; "": not compressed
}

// variant is the path of one form of a file, and its ETag.
type variant struct{ path, tag string }

// files serves the files of the page. newFiles finds all of them. index is the content of
// index.html; nil if the program was built without the page.
type files struct {
	content fs.FS
	byPath  map[string]*file
	index   []byte
}

// newFiles reads all files of content once, and computes their ETags. Hidden files are left out.
// NAME.br or NAME.gz is the compressed form of the file NAME, if that exists.
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

// built reports whether the program was built with the page.
func (f *files) built() bool { return f.index != nil }

// serve answers a request for a path of the console that is not its API. A file of the page gets
// its content. Other paths are screens of the page and get index.html. Two sorts get 404: paths in
// assets, and paths with an extension unless the client accepts HTML. Other methods than GET and
// HEAD get 405; if the page was not built, the status is 501. session is called only for
// index.html. It returns the session as JSON, or nothing without a session.
func (f *files) serve(w http.ResponseWriter, r *http.Request, session func() []byte) {
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
		f.serveIndex(w, r, session())
	}
}

// serveFile sends the file one in the first of the encodings that is stored and that the client
// accepts. Browsers may cache files in assets for a year. They must check all others by their ETag.
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
	defer func() { _ = content.Close() }() // the file was read
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

// takes reports whether the header Accept-Encoding of a request names an encoding with a weight
// above 0. The name * does not count.
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

// serveIndex sends index.html with a new nonce and the session, which is JSON or empty. Only style
// elements with that nonce are applied: the page's editor and terminal insert some. A page with a
// session must not be cached, because another user may use the browser next.
func (f *files) serveIndex(w http.ResponseWriter, r *http.Request, session []byte) {
	nonce := rand.Text()
	h := w.Header()
	policy := maps.Clone(pagePolicy)
	policy["style-src"] += " 'nonce-" + nonce + "'"
	h.Set("Content-Security-Policy", written(policy))
	h.Set("Content-Type", "text/html; charset=utf-8")
	if len(session) == 0 {
		h.Set("Cache-Control", "no-cache")
	}
	content := strings.NewReplacer(noncePlaceholder, nonce, sessionPlaceholder, html.EscapeString(string(session))).Replace(string(f.index))
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
}

// pagePolicy has the directives of the page's Content-Security-Policy: the page loads nothing from
// other origins, and cannot be in a frame.
var pagePolicy = map[string]string{
	"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self' data:", "font-src": "'self'",
	"worker-src": "'self'", "manifest-src": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'",
}

// written returns a Content-Security-Policy as the value of the header, with its directives sorted.
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
