package node

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

func binary(content string) plan.Step {
	return plan.Step{ID: "binary", Artifact: &plan.Artifact{Blob: digestOf([]byte(content)), Mode: "0755", Files: map[string]string{"": "/opt/bin/tool"}}}
}

// serving returns the address of a host that serves until the test ends.
func serving(t *testing.T, n *Node, token string) string {
	t.Helper()
	stdin, hold := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(t.Context(), stdin, "127.0.0.1:0", out) }()
	if err := json.NewEncoder(hold).Encode(ServeRequest{Token: token}); err != nil {
		t.Fatal(err)
	}
	var s Serving
	if err := json.NewDecoder(said).Decode(&s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hold.Close()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
}

// TestServesAtItsAddress: a host serves content only at the address where other hosts reach it.
func TestServesAtItsAddress(t *testing.T) {
	stdin, hold := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Rooted(t.TempDir()).Serve(t.Context(), stdin, ":0", out) }()
	if err := json.NewEncoder(hold).Encode(ServeRequest{Token: "token", Address: "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	var s Serving
	if err := json.NewDecoder(said).Decode(&s); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{"127.0.0.1": true, "127.0.0.2": false} {
		conn, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(s.Port)))
		if (err == nil) != want {
			t.Errorf("dial %s: %v, want it served: %t", address, err, want)
		}
		if err == nil {
			conn.Close()
		}
	}
	hold.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// liar returns the address of a server with a wrong answer.
func liar(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, answer)
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

func TestFetch(t *testing.T) {
	content := strings.Repeat("content of a tool", 1<<19) // more than a piece
	digest := digestOf([]byte(content))
	seed := host(t, nil)
	done(t, seed, request(), content)
	address := serving(t, seed, "token")
	cases := map[string]struct {
		fetch   []Fetch
		streams []string
		missing []string
	}{
		"Fetched":         {fetch: []Fetch{{Digest: digest, Sources: []string{address}, Token: "token"}}},
		"SecondSource":    {fetch: []Fetch{{Digest: digest, Sources: []string{"127.0.0.1:1", liar(t, "lies"), liar(t, ""), address}, Token: "token"}}},
		"NoSource":        {fetch: []Fetch{{Digest: digest, Sources: []string{"127.0.0.1:1"}, Token: "token"}}, missing: []string{digest}},
		"WrongToken":      {fetch: []Fetch{{Digest: digest, Sources: []string{address}, Token: "guess"}}, missing: []string{digest}},
		"HalfOfIt":        {fetch: []Fetch{{Digest: digest, Sources: []string{liar(t, content[:100])}, Token: "token"}}, missing: []string{digest}},
		"Streamed":        {streams: []string{content}},
		"AmongTheStreams": {streams: []string{"before", content, "after"}},
		"Nowhere":         {missing: []string{digest}},
		"NotThere": {fetch: []Fetch{{
			Digest: digestOf([]byte("unknown")), Sources: []string{address}, Token: "token",
		}}, streams: []string{content}, missing: []string{digestOf([]byte("unknown"))}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := host(t, nil)
			req := request(binary(content))
			req.Fetches = c.fetch
			if c.missing == nil {
				done(t, n, req, c.streams...)
				if got, err := os.ReadFile(n.path("/opt/bin/tool")); err != nil || string(got) != content {
					t.Errorf("the tool has %d bytes, %v", len(got), err)
				}
				return
			}
			e := failed(t, n, req, c.streams...)
			if diff := cmp.Diff(c.missing, e.Missing); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
			left, err := filepath.Glob(n.dir("blobs", "sha256", ".*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left half received: %v, %v", left, err)
			}
			done(t, n, request(binary(content)), content)
		})
	}
}

func TestServesTheAgent(t *testing.T) {
	n := host(t, map[string]string{AgentPath: "the agent"})
	var got bytes.Buffer
	if err := fetchBlob(t.Context(), serving(t, n, "token"), "token", digestOf([]byte("the agent")), &got); err != nil {
		t.Fatal(err)
	}
	if got.String() != "the agent" {
		t.Errorf("fetched %q", got.String())
	}
}

// TestServeIsNoFileServer requests files that are not content.
func TestServeIsNoFileServer(t *testing.T) {
	n := host(t, map[string]string{"/etc/shadow": "secret"})
	address := serving(t, n, "token")
	for _, question := range []string{"token ../../../../etc/shadow", "token sha256:../../../../etc/shadow", "token", "", strings.Repeat("x", 4096)} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, question+"\n")
		answer, _ := io.ReadAll(conn) // it may be cut off
		if len(answer) > 0 {
			t.Errorf("%q is answered with %q", question, answer)
		}
		conn.Close()
	}
}

// TestAllMissingAtOnce: one event names all content that the rest of the request needs.
func TestAllMissingAtOnce(t *testing.T) {
	n := host(t, nil)
	other := plan.Step{ID: "other", Artifact: &plan.Artifact{Blob: digestOf([]byte("b")), Mode: "0755", Files: map[string]string{"": "/opt/bin/other"}}}
	e := failed(t, n, request(binary("a"), fileStep("f", "/etc/f", "f"), other))
	if diff := cmp.Diff([]string{digestOf([]byte("a")), digestOf([]byte("b"))}, e.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestDamagedContentIsMissing(t *testing.T) {
	n := host(t, nil)
	done(t, n, request(), "tool")
	blob, err := n.blobPath(digestOf([]byte("tool")))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blob, []byte("to"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := failed(t, n, request(binary("tool")))
	if diff := cmp.Diff([]string{digestOf([]byte("tool"))}, e.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	done(t, n, request(binary("tool")), "tool")
}

// TestUnusedContentGoes: unused content is removed at the end of the Operation, and not before,
// because other hosts may fetch it.
func TestUnusedContentGoes(t *testing.T) {
	n := host(t, nil)
	kept := func() []string {
		list, err := names(n.dir("blobs", "sha256"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			list[i] = digestPrefix + list[i]
		}
		return list
	}
	done(t, n, request(), "for others")
	done(t, n, request(binary("tool")), "tool")
	if got := kept(); len(got) != 2 {
		t.Errorf("kept %v", got)
	}
	release := request(binary("tool"))
	release.Release = true
	done(t, n, release)
	if diff := cmp.Diff([]string{digestOf([]byte("tool"))}, kept()); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// TestRunningBinaryIsReplaced replaces a running program.
func TestRunningBinaryIsReplaced(t *testing.T) {
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	n := Rooted(t.TempDir()) // programs in memory may be forbidden
	done(t, n, request(binary(string(sleep))), string(sleep))
	start(t, n.path("/opt/bin/tool"), "600")
	done(t, n, request(binary("newer")), "newer")
	if got := tree(t, n, false)["/opt/bin/tool"]; got != "-rwxr-xr-x newer" {
		t.Errorf("the tool is %q", got)
	}
}

func TestArchives(t *testing.T) {
	archive := targz(t, map[string]string{"bin/tool": "tool"})
	step := func(kind, member string) plan.Step {
		return plan.Step{ID: "a", Artifact: &plan.Artifact{
			Blob: digestOf([]byte(archive)), Archive: kind, Mode: "0755", Files: map[string]string{member: "/opt/bin/tool"},
		}}
	}
	cases := map[string]struct {
		step    plan.Step
		message string
	}{
		"NoSuchMember": {step("tar.gz", "bin/none"), "has no file bin/none"},
		"WrongKind":    {step("tar", "bin/tool"), "read archive"},
		"UnknownKind":  {step("zip", "bin/tool"), `archive of kind "zip": want tar or tar.gz`},
		"NoArchive":    {step("", "bin/tool"), "an artifact without an archive has one file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := host(t, nil)
			if e := failed(t, n, request(c.step), archive); !strings.Contains(e.Message, c.message) {
				t.Errorf("message %q, want %q in it", e.Message, c.message)
			}
			done(t, n, request(step("tar.gz", "bin/tool")))
			done(t, n, removal())
			sameTree(t, "after the removal", tree(t, n, true), map[string]string{})
		})
	}
}
