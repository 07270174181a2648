package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// orderVariable has the openOrder of a child process.
const orderVariable = "ORRERY_TEST_OPEN"

type openOrder struct {
	Base, Dir string
	File      File
	Digest    string
	// Small makes Dir a file system of that many bytes.
	Small int
}

var proxied = make(chan string, 100)

func TestMain(m *testing.M) {
	if text := os.Getenv(orderVariable); text != "" {
		os.Exit(obey(text))
	}
	// The standard library reads the variable once per process, and never uses a proxy for this
	// machine.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied <- r.URL.String()
		io.WriteString(w, content)
	}))
	os.Setenv("HTTP_PROXY", proxy.URL)
	os.Exit(m.Run())
}

func obey(text string) int {
	var o openOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	if o.Small > 0 {
		if err := syscall.Mount("tmpfs", o.Dir, "tmpfs", 0, fmt.Sprint("size=", o.Small)); err != nil {
			fmt.Println("mount:", err)
			return 1
		}
	}
	s := &Source{Base: o.Base, Dir: o.Dir, Idle: patience}
	file, err := s.Open(context.Background(), o.File, o.Digest)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	io.Copy(os.Stdout, file)
	return 0
}

func (o openOrder) command(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	return cmd
}

const upstream = "https://dl.example.com/v1/runc"

var (
	content = strings.Repeat("0123456789abcdef", 1<<14)
	runc    = File{Name: "runc", Version: "v1", Arch: "amd64", URL: upstream, ChecksumURL: upstream + ".sha256sum"}
)

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// mirror answers by path, and records the requests.
type mirror struct {
	*httptest.Server
	answers map[string]http.HandlerFunc

	mu       sync.Mutex
	requests []string // path, or path and range
}

func newMirror(t *testing.T, answers map[string]http.HandlerFunc) *mirror {
	t.Helper()
	m := &mirror{answers: answers}
	m.Server = httptest.NewServer(m)
	t.Cleanup(func() { m.CloseClientConnections(); m.Close() })
	return m
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.requests = append(m.requests, strings.TrimSpace(r.URL.Path+" "+r.Header.Get("Range")))
	m.mu.Unlock()
	if answer, ok := m.answers[r.URL.Path]; ok {
		answer(w, r)
		return
	}
	http.NotFound(w, r)
}

func (m *mirror) asked() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

func (m *mirror) source(t *testing.T) *Source {
	t.Helper()
	return &Source{Base: m.URL + "/files/", Dir: t.TempDir(), Client: m.Client(), Idle: patience}
}

const (
	runcPath     = "/files/dl.example.com/v1/runc"
	checksumPath = runcPath + ".sha256sum"
)

// whole serves the file with ranges, as web servers do.
func whole(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	}
}

// plain serves the file without ranges.
func plain(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		io.WriteString(w, text)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// inTurn answers each request with the next handler. The last one handles all further requests.
func inTurn(answers ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		answer := answers[0]
		answers = answers[min(1, len(answers)-1):]
		mu.Unlock()
		answer(w, r)
	}
}

// cutAfter breaks the connection after n bytes of each answer.
func cutAfter(n int, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer(&cutter{ResponseWriter: w, left: n}, r)
	}
}

type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	c.left -= n
	if c.left == 0 {
		http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// hang sends n bytes, and then nothing until the client disconnects.
func hang(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		io.WriteString(w, content[:n])
		if n > 0 {
			http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}
}

func page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, "<html>Please log in</html>")
}

func TestOpen(t *testing.T) {
	half := len(content) / 2
	first := runcPath
	rest := fmt.Sprintf("%s bytes=%d-", runcPath, half)
	for name, c := range map[string]struct {
		partial string // left by an earlier run
		kept    string // stored under the file's digest
		answer  http.HandlerFunc
		asked   []string
	}{
		"Download":             {"", "", whole(content), []string{first}},
		"ServerWithoutRanges":  {"", "", plain(content), []string{first}},
		"Kept":                 {"", content, nil, nil},
		"KeptButDamaged":       {"", content[:half], whole(content), []string{first}},
		"Resumed":              {content[:half], "", whole(content), []string{rest}},
		"ResumedWithoutRanges": {content[:half], "", plain(content), []string{rest}},
		"PartIsAll":            {content, "", nil, nil},
		"PartIsOfAnotherFile":  {strings.Repeat("x", half), "", whole(content), []string{rest, first}},
		"PartIsTooLong":        {content + "x", "", whole(content), []string{fmt.Sprintf("%s bytes=%d-", runcPath, len(content)+1), first}},
		"CutOff":               {"", "", inTurn(cutAfter(half, whole(content)), whole(content)), []string{first, rest}},
		"CutOffWithoutRanges":  {"", "", inTurn(cutAfter(half, plain(content)), plain(content)), []string{first, rest}},
		"BusyServer":           {"", "", inTurn(status(http.StatusServiceUnavailable), status(http.StatusTooManyRequests), whole(content)), []string{first, first, first}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t, map[string]http.HandlerFunc{runcPath: c.answer})
			s := m.source(t)
			digest := digestOf(content)
			put(t, s.Dir, "partial", digest, c.partial)
			put(t, s.Dir, "sha256", digest, c.kept)
			for range 2 { // the second time, the file is stored
				if diff := cmp.Diff(content, open(t, s, digest)); diff != "" {
					t.Fatal(diff)
				}
				if diff := cmp.Diff(c.asked, m.asked()); diff != "" {
					t.Error(diff)
				}
			}
			if left := entries(t, filepath.Join(s.Dir, "partial")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestSilentServer(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string // error if the server stays silent
	}{
		"BeforeTheAnswer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "the server sent nothing for 50ms"},
		"InTheMiddle":     {hang(1000), "the server sent nothing for 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t, map[string]http.HandlerFunc{runcPath: c.answer})
			s := m.source(t)
			s.Idle = 50 * time.Millisecond
			if err := openError(t, s, digestOf(content)); !strings.Contains(err, c.want) {
				t.Error(err)
			}
			recovering := newMirror(t, map[string]http.HandlerFunc{runcPath: inTurn(c.answer, whole(content))})
			s = recovering.source(t)
			s.Idle = 2 * time.Second // on a busy machine the server that recovers may take a moment, too
			if diff := cmp.Diff(content, open(t, s, digestOf(content))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		partial string
		answer  http.HandlerFunc
		want    []string
		asked   int
		left    bool // of the part
	}{
		"AnotherFile":     {"", whole("x"), []string{digestOf("x"), digestOf(content), "the mirror has another file", "was removed"}, 1, false},
		"AnotherAndAPart": {content[:100], whole("x"), []string{digestOf("x"), "was removed"}, 2, false},
		"TruncatedAsAll":  {"", whole(content[:1000]), []string{digestOf(content[:1000])}, 1, false},
		"AlwaysCutOff":    {"", cutAfter(1000, plain(content)), []string{"EOF", "asked 3 times"}, 4, true},
		"Page":            {"", page, []string{"web page", "login page"}, 1, true},
		"NotThere":        {"", http.NotFound, []string{"404", "the mirror has no such file; its layout is that of the upstream URLs"}, 1, true},
		"Forbidden":       {"", status(http.StatusForbidden), []string{"403", "user and password"}, 1, true},
		"Teapot":          {"", status(http.StatusTeapot), []string{"418"}, 1, true},
		"AlwaysBusy":      {"", status(http.StatusServiceUnavailable), []string{"503", "asked 3 times"}, 3, true},
		"AnotherPart": {content[:100], func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 7-9/10")
			w.WriteHeader(http.StatusPartialContent)
		}, []string{"another part of the file"}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t, map[string]http.HandlerFunc{runcPath: c.answer})
			s := m.source(t)
			put(t, s.Dir, "partial", digestOf(content), c.partial)
			err := openError(t, s, digestOf(content))
			for _, part := range append(c.want, runc.Key(), m.URL+runcPath) {
				if !strings.Contains(err, part) {
					t.Errorf("%q is not in: %s", part, err)
				}
			}
			if diff := cmp.Diff(c.asked, len(m.asked())); diff != "" {
				t.Error(diff)
			}
			if left := entries(t, filepath.Join(s.Dir, "partial")); (len(left) > 0) != c.left {
				t.Errorf("left: %v", left)
			}
			if kept := entries(t, filepath.Join(s.Dir, "sha256")); len(kept) > 0 {
				t.Errorf("kept: %v", kept)
			}
		})
	}
}

func TestOpenRefusesWhatIsNoDigest(t *testing.T) {
	for name, digest := range map[string]string{"Empty": "", "Path": "sha256:../../etc/passwd", "Short": "sha256:abc", "Other": "md5:" + strings.Repeat("a", 64)} {
		t.Run(name, func(t *testing.T) {
			if err := openError(t, &Source{Dir: t.TempDir()}, digest); !strings.Contains(err, "is not a digest") {
				t.Error(err)
			}
		})
	}
}

func TestNothingListens(t *testing.T) {
	s := &Source{Base: "http://user:secret@127.0.0.1:1", Dir: t.TempDir()}
	if err := openError(t, s, digestOf(content)); !strings.Contains(err, "refused") || strings.Contains(err, "secret") {
		t.Error(err)
	}
}

func TestPasswordIsNotShown(t *testing.T) {
	m := newMirror(t, map[string]http.HandlerFunc{runcPath: func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, "x")
	}})
	s := m.source(t)
	s.Base = strings.Replace(s.Base, "//", "//user:secret@", 1)
	err := openError(t, s, digestOf(content))
	if !strings.Contains(err, digestOf("x")) || strings.Contains(err, "secret") {
		t.Error(err)
	}
}

// TestQueryIsNotShown: queries of the mirror's URL and of redirects may have signatures.
func TestQueryIsNotShown(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"Refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"Hangs":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"Redirected": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, gone.URL+"/?signature=secret", http.StatusFound)
		},
		"Unprotected": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/?signature=secret", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := httptest.NewServer(answer)
			defer mirror.Close()
			s := &Source{Base: mirror.URL + "/?token=secret&path=", Dir: t.TempDir(), Idle: time.Second}
			digest := digestOf(content)
			if name == "Unprotected" { // the path of a checksum file
				_, err := s.Resolve(t.Context(), []File{{Name: "x", URL: "https://example.com/x", ChecksumURL: "https://example.com/x.sha256"}})
				if err == nil || strings.Contains(err.Error(), "secret") {
					t.Error(err)
				}
				return
			}
			if err := openError(t, s, digest); !strings.Contains(err, "token=xxxxx") && !strings.Contains(err, "signature=xxxxx") || strings.Contains(err, "secret") {
				t.Error(err)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	m := newMirror(t, map[string]http.HandlerFunc{runcPath: hang(1000)})
	s := m.source(t)
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error)
	go func() {
		_, err := s.Open(ctx, runc, digestOf(content))
		opened <- err
	}()
	eventually(t, "it has begun", func() bool { return sizeOfPart(s.Dir) == 1000 })
	waiting := make(chan error)
	go func() {
		_, err := s.Open(ctx, runc, digestOf(content))
		waiting <- err
	}()
	cancel()
	for _, c := range []chan error{opened, waiting} {
		if err := <-c; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestWithoutMirror(t *testing.T) {
	m := newMirror(t, map[string]http.HandlerFunc{"/runc": whole(content)})
	s := &Source{Dir: t.TempDir()}
	_, err := s.Open(t.Context(), File{Name: "crun", URL: m.URL + "/crun"}, digestOf(content))
	if err == nil || !strings.Contains(err.Error(), "upstream has no such file, or the catalogue has the wrong URL") {
		t.Error(err)
	}
	file, err := s.Open(t.Context(), File{Name: "runc", URL: m.URL + "/runc"}, digestOf(content))
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
}

func TestProxyOfTheEnvironment(t *testing.T) {
	s := &Source{Base: "http://mirror.test/files", Dir: t.TempDir()}
	if diff := cmp.Diff(content, open(t, s, digestOf(content))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("http://mirror.test/files/dl.example.com/v1/runc", <-proxied); diff != "" {
		t.Error(diff)
	}
}

func TestManyProcessesDownloadOnce(t *testing.T) {
	m := newMirror(t, map[string]http.HandlerFunc{})
	s := m.source(t)
	order := openOrder{Base: s.Base, Dir: s.Dir, File: runc, Digest: digestOf(content)}
	const processes, goroutines = 3, 3
	// The server answers only when all processes wait.
	m.answers[runcPath] = func(w http.ResponseWriter, r *http.Request) {
		eventually(t, "all wait", func() bool { return openers(filepath.Join(s.Dir, "partial")) >= processes })
		whole(content)(w, r)
	}
	got := make(chan string)
	for range processes {
		cmd := order.command(t)
		go func() {
			out, _ := cmd.Output()
			got <- string(out)
		}()
	}
	for range goroutines {
		go func() {
			file, err := s.Open(context.Background(), runc, digestOf(content))
			if err != nil {
				got <- err.Error()
				return
			}
			defer file.Close()
			text, _ := io.ReadAll(file)
			got <- string(text)
		}()
	}
	for range processes + goroutines {
		if diff := cmp.Diff(content, <-got); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff([]string{runcPath}, m.asked()); diff != "" {
		t.Error(diff)
	}
	if left := entries(t, filepath.Join(s.Dir, "partial")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestKilledDownloadGoesOn(t *testing.T) {
	m := newMirror(t, map[string]http.HandlerFunc{runcPath: inTurn(hang(1000), whole(content))})
	s := m.source(t)
	cmd := openOrder{Base: s.Base, Dir: s.Dir, File: runc, Digest: digestOf(content)}.command(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has begun", func() bool { return sizeOfPart(s.Dir) == 1000 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if diff := cmp.Diff(content, open(t, s, digestOf(content))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{runcPath, runcPath + " bytes=1000-"}, m.asked()); diff != "" {
		t.Error(diff)
	}
}

func TestNoSpace(t *testing.T) {
	m := newMirror(t, map[string]http.HandlerFunc{runcPath: whole(content)})
	s := m.source(t)
	cmd := openOrder{Base: s.Base, Dir: s.Dir, File: runc, Digest: digestOf(content), Small: 1 << 16}.command(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, _ := cmd.Output()
	for _, part := range []string{"no space left", "make room in " + s.Dir, runc.Key()} {
		if !strings.Contains(string(out), part) {
			t.Errorf("%q is not in: %s", part, out)
		}
	}
}

func TestResolve(t *testing.T) {
	hexOf := func(text string) string { return strings.TrimPrefix(digestOf(text), "sha256:") }
	many := hexOf("a") + "  runc.arm64\n" + hexOf("b") + "  runc.asc\n" + hexOf(content) + "  runc\n"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string // digest, or part of the error
	}{
		"Alone":            {plain(hexOf(content)), digestOf(content)},
		"AloneWithNewline": {plain(hexOf(content) + "\n"), digestOf(content)},
		"WithName":         {plain(hexOf(content) + "  runc\n"), digestOf(content)},
		"Binary":           {plain(hexOf(content) + " *runc\n"), digestOf(content)},
		"WithPath":         {plain(hexOf(content) + "  ./dist/runc\n"), digestOf(content)},
		"Windows":          {plain(hexOf(content) + "  runc\r\n"), digestOf(content)},
		"UpperCase":        {plain(strings.ToUpper(hexOf(content)) + "  runc\n"), digestOf(content)},
		"OfMany":           {plain(many), digestOf(content)},
		"Signed":           {plain("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n" + many + "-----BEGIN PGP SIGNATURE-----\nabc\n"), digestOf(content)},
		"BusyServer":       {inTurn(status(http.StatusBadGateway), plain(many)), digestOf(content)},
		"CutOff":           {inTurn(cutAfter(80, plain(many)), plain(many)), digestOf(content)},
		"OfOthers":         {plain(hexOf("a") + "  runc.arm64\n"), "has no SHA-256 of runc"},
		"TwoWithoutName":   {plain(hexOf("a") + "\n" + hexOf("b") + "\n"), "has no SHA-256 of runc"},
		"SHA512":           {plain(hexOf("a") + hexOf("b") + "  runc\n"), "has no SHA-256 of runc"},
		"Empty":            {plain(""), "has no SHA-256 of runc"},
		"Page":             {page, "web page"},
		"NotThere":         {http.NotFound, "the mirror has no such file; its layout"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t, map[string]http.HandlerFunc{checksumPath: c.answer})
			got, err := m.source(t).Resolve(t.Context(), []File{runc})
			if strings.HasPrefix(c.want, "sha256:") {
				if diff := cmp.Diff(map[string]string{"runc/v1/amd64": c.want}, got); diff != "" || err != nil {
					t.Error(diff, err)
				}
				return
			}
			if err == nil {
				t.Fatal("there was no error")
			}
			for _, part := range []string{c.want, runc.Key(), m.URL + checksumPath} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
		})
	}
}

func TestResolveAsksOnce(t *testing.T) {
	hexOf := func(text string) string { return strings.TrimPrefix(digestOf(text), "sha256:") }
	file := func(name, sums string) File {
		return File{Name: name, Version: "v1", URL: "https://dl.example.com/" + name, ChecksumURL: "https://dl.example.com/" + sums}
	}
	pinned := file("pinned", "none")
	pinned.Digest = digestOf("pinned")
	m := newMirror(t, map[string]http.HandlerFunc{
		"/files/dl.example.com/SHA256SUMS": plain(hexOf("a") + "  a\n" + hexOf("b") + "  b\n"),
		"/files/dl.example.com/c.sha256":   plain(hexOf("c")),
	})
	s := m.source(t)
	got, err := s.Resolve(t.Context(), []File{file("a", "SHA256SUMS"), file("b", "SHA256SUMS"), file("c", "c.sha256"), pinned})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a/v1/": digestOf("a"), "b/v1/": digestOf("b"), "c/v1/": digestOf("c"), "pinned/v1/": digestOf("pinned")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	asked := m.asked()
	slices.Sort(asked)
	if diff := cmp.Diff([]string{"/files/dl.example.com/SHA256SUMS", "/files/dl.example.com/c.sha256"}, asked); diff != "" {
		t.Error(diff)
	}

	// One error lists all missing checksums.
	_, err = s.Resolve(t.Context(), []File{file("a", "SHA256SUMS"), file("x", "x.sha256"), file("y", "SHA256SUMS")})
	if err == nil || !strings.Contains(err.Error(), "x/v1/") || !strings.Contains(err.Error(), "y/v1/") {
		t.Error(err)
	}
}

// TestResolveOverPlainHTTP: somebody who can change a file in transit can also change its checksum.
// The checksum is therefore not requested.
func TestResolveOverPlainHTTP(t *testing.T) {
	pinned := runc
	pinned.Digest = digestOf(content)
	asked := 0
	client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		asked++
		return nil, errors.New("no network")
	})}
	for _, base := range []string{"http://mirror.test/files", "http://10.0.0.1"} {
		s := &Source{Base: base, Dir: t.TempDir(), Client: client}
		_, err := s.Resolve(t.Context(), []File{runc})
		for _, part := range []string{runc.Key(), base + "/dl.example.com/v1/runc.sha256sum", "use https", `digests["runc/v1/amd64"]`} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in: %v", base, part, err)
			}
		}
		if got, err := s.Resolve(t.Context(), []File{pinned}); err != nil || got[runc.Key()] != pinned.Digest {
			t.Errorf("%s, with a digest in the catalogue: %v, %v", base, got, err)
		}
	}
	if asked > 0 {
		t.Errorf("%d requests", asked)
	}
}

// TestRedirectToPlainHTTP: a checksum is not read after an unencrypted redirect, not even in
// between. A file with a known digest is.
func TestRedirectToPlainHTTP(t *testing.T) {
	hops := map[string]string{
		"https://mirror.test/dl.example.com/v1/runc.sha256sum":     "http://cdn.test/sums",
		"https://detour.test/dl.example.com/v1/runc.sha256sum":     "http://cdn.test/away",
		"http://cdn.test/away":                                     "https://cdn.test/sums",
		"https://good.test/dl.example.com/v1/runc.sha256sum":       "https://cdn.test/sums",
		"https://mirror.test/" + strings.Split(runc.URL, "://")[1]: "http://cdn.test/runc",
	}
	asked := 0
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		asked++
		answer := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Request: r}
		text := strings.TrimPrefix(digestOf(content), "sha256:") + "  " + filepath.Base(runc.URL)
		if to := hops[r.URL.String()]; to != "" {
			answer.StatusCode, text = http.StatusFound, ""
			answer.Header.Set("Location", to)
		} else if r.URL.Path == "/runc" {
			text = content
		}
		answer.Body = io.NopCloser(strings.NewReader(text))
		return answer, nil
	})}
	for base, ok := range map[string]bool{"https://mirror.test": false, "https://detour.test": false, "https://good.test": true} {
		asked = 0
		s := &Source{Base: base, Dir: t.TempDir(), Client: client}
		got, err := s.Resolve(t.Context(), []File{runc})
		switch {
		case ok && (err != nil || got[runc.Key()] != digestOf(content)):
			t.Errorf("%s: %v, %v", base, got, err)
		case !ok && (err == nil || !strings.Contains(err.Error(), "redirected to http://cdn.test/") || !strings.Contains(err.Error(), "--catalog")):
			t.Errorf("%s: %v, %v", base, got, err)
		case !ok && asked != 1:
			t.Errorf("%s: %d requests", base, asked)
		}
	}
	if got := open(t, &Source{Base: "https://mirror.test", Dir: t.TempDir(), Client: client}, digestOf(content)); got != content {
		t.Errorf("the file is %q", got)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func put(t *testing.T, dir, kind, digest, text string) {
	t.Helper()
	if text == "" {
		return
	}
	if err := os.MkdirAll(filepath.Join(dir, kind), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, kind, strings.TrimPrefix(digest, "sha256:")), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, s *Source, digest string) string {
	t.Helper()
	file, err := s.Open(t.Context(), runc, digest)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func openError(t *testing.T, s *Source, digest string) string {
	t.Helper()
	file, err := s.Open(t.Context(), runc, digest)
	if err == nil {
		file.Close()
		t.Fatal("there was no error")
	}
	return err.Error()
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

func sizeOfPart(dir string) int64 {
	info, err := os.Stat(filepath.Join(dir, "partial", strings.TrimPrefix(digestOf(content), "sha256:")))
	if err != nil {
		return 0
	}
	return info.Size()
}

// openers counts the processes that have a file in the directory open.
func openers(dir string) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	processes := map[string]bool{}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, dir) {
			processes[filepath.Dir(link)] = true
		}
	}
	return len(processes)
}

// patience is how long something may take that should take a moment, on a busy machine.
const patience = 3 * time.Minute

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("it never came to this: %s", what)
			return
		}
	}
}
