package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	type want struct {
		Out    string
		Code   int
		Stderr string
	}
	cases := map[string]struct {
		argv  []string
		stdin io.Reader
		want  want
	}{
		"Output":       {argv: []string{"echo", "hello"}, want: want{Out: "hello\n"}},
		"Root":         {argv: []string{"id", "-u"}, want: want{Out: "0\n"}},
		"Environment":  {argv: []string{"sh", "-c", "echo $HOME $LC_ALL $PATH"}, want: want{Out: "/root C /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"}},
		"Words":        {argv: []string{"printf", "%s|", "", "a b", "it's", `"$HOME"`, "*", "-n", "a\nb", `\`, "ü"}, want: want{Out: "|a b|it's|\"$HOME\"|*|-n|a\nb|\\|ü|"}},
		"Stdin":        {argv: []string{"cat"}, stdin: strings.NewReader("one\ntwo"), want: want{Out: "one\ntwo"}},
		"NoStdin":      {argv: []string{"cat"}},
		"StdinUnread":  {argv: []string{"true"}, stdin: bytes.NewReader(make([]byte, 8<<20))},
		"Exit":         {argv: []string{"sh", "-c", "echo partial; echo no disk >&2; exit 42"}, want: want{Out: "partial\n", Code: 42, Stderr: "no disk"}},
		"Killed":       {argv: []string{"sh", "-c", "kill -KILL $$"}, want: want{Code: 137}},
		"NoProgram":    {argv: []string{"/no/such/program"}, want: want{Code: 127, Stderr: "sh: 1: exec: /no/such/program: not found"}},
		"SecretHidden": {argv: []string{"sh", "-c", "cat >&2; exit 1"}, stdin: strings.NewReader("it is " + password), want: want{Code: 1, Stderr: "it is [hidden]"}},
	}
	for _, user := range []string{"root", "operator", "free", "chatty"} {
		t.Run(user, func(t *testing.T) {
			c := server.dial(t, user)
			for name, tc := range cases {
				t.Run(name, func(t *testing.T) {
					if s, ok := tc.stdin.(io.Seeker); ok {
						s.Seek(0, io.SeekStart)
					}
					var out bytes.Buffer
					err := c.Run(t.Context(), tc.argv, tc.stdin, &out)
					got := want{Out: out.String()}
					if exit, ok := errors.AsType[*ExitError](err); ok {
						got.Code, got.Stderr = exit.Code, exit.Stderr
					} else if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(tc.want, got); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				})
			}
		})
	}
}

// TestRunManyBytes streams 64 MiB through cat.
func TestRunManyBytes(t *testing.T) {
	const size = 64 << 20
	for _, user := range []string{"root", "operator"} {
		t.Run(user, func(t *testing.T) {
			c := server.dial(t, user)
			sent, got := sha256.New(), sha256.New()
			in := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
			var count bytes.Buffer
			if err := c.Run(t.Context(), []string{"cat"}, in, got); err != nil {
				t.Fatal(err)
			}
			if want, got := hex.EncodeToString(sent.Sum(nil)), hex.EncodeToString(got.Sum(nil)); want != got {
				t.Errorf("digest: want %s, got %s", want, got)
			}
			err := c.Run(t.Context(), []string{"wc", "-c"}, io.LimitReader(rand.NewChaCha8([32]byte{2}), size), &count)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(count.String()); got != fmt.Sprint(size) {
				t.Errorf("the host counts %s bytes, want %d", got, size)
			}
		})
	}
}

// TestRunConcurrently needs more sessions than sshd allows: 10 for root, 2 for free.
func TestRunConcurrently(t *testing.T) {
	for _, user := range []string{"root", "free"} {
		t.Run(user, func(t *testing.T) {
			c := server.dial(t, user)
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					var out bytes.Buffer
					if err := c.Run(t.Context(), []string{"echo", fmt.Sprint(i)}, nil, &out); err != nil {
						t.Error(err)
					}
					if want := fmt.Sprintln(i); out.String() != want {
						t.Errorf("want %q, got %q", want, out.String())
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestRunTooManyBytesOfWords(t *testing.T) {
	c := server.dial(t, "root")
	err := c.Run(t.Context(), []string{"echo", strings.Repeat("a", 200<<10)}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "give them as its input") {
		t.Errorf("got %v", err)
	}
}

var errStop = errors.New("stop it")

// TestCancel checks that the command is dead when Run returns, for each user and however the
// command handles TERM.
func TestCancel(t *testing.T) {
	scripts := map[string]string{
		"Kind":    `echo $$; sleep 600`,
		"Child":   `sleep 600 & echo $!; wait`,
		"Defiant": `trap '' TERM; echo $$; while :; do sleep 1; done`,
	}
	for _, user := range []string{"root", "operator"} {
		for name, script := range scripts {
			t.Run(user+name, func(t *testing.T) {
				t.Parallel()
				c := server.dial(t, user)
				ctx, cancel := context.WithCancelCause(t.Context())
				r, w := io.Pipe()
				done := make(chan error)
				go func() { done <- c.Run(ctx, []string{"sh", "-c", script}, nil, w) }()
				var pid int
				if _, err := fmt.Fscanln(r, &pid); err != nil {
					t.Fatal(err)
				}
				go io.Copy(io.Discard, r)
				cancel(errStop)
				if err := <-done; !errors.Is(err, errStop) {
					t.Errorf("want the cause, got %v", err)
				}
				if got := shell(t, c, fmt.Sprintf("cut -d' ' -f3 /proc/%d/stat 2>/dev/null || true", pid)); got != "" && got != "Z" {
					t.Errorf("the command is in state %s", got)
				}
			})
		}
	}
}

// TestCancelBeforeStart checks that the wait for a session ends with the context.
func TestCancelBeforeStart(t *testing.T) {
	c := server.dial(t, "root")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var ran bytes.Buffer
	if err := c.Run(ctx, []string{"echo", "ran"}, nil, &ran); !errors.Is(err, context.Canceled) {
		t.Errorf("want context.Canceled, got %v", err)
	}
}

type failing struct{ after io.Reader }

func (f failing) Read(p []byte) (int, error) {
	n, err := f.after.Read(p)
	if errors.Is(err, io.EOF) {
		err = errStop
	}
	return n, err
}

func (failing) Write([]byte) (int, error) { return 0, errStop }

// TestInputFails checks that a command does not take a partial input for the whole.
func TestInputFails(t *testing.T) {
	for _, user := range []string{"root", "operator"} {
		t.Run(user, func(t *testing.T) {
			c := server.dial(t, user)
			file := t.TempDir() + "/file"
			err := c.Run(t.Context(), []string{"sh", "-c", "cat >$1.part && mv $1.part $1", "sh", file},
				failing{strings.NewReader("half")}, nil)
			if !errors.Is(err, errStop) {
				t.Errorf("want the reader's error, got %v", err)
			}
			if got := shell(t, c, "test -e "+Quote(file)+" && echo whole || echo absent"); got != "absent" {
				t.Errorf("the file is %s", got)
			}
		})
	}
}

func TestOutputFails(t *testing.T) {
	c := server.dial(t, "root")
	if err := c.Run(t.Context(), []string{"yes"}, nil, failing{}); !errors.Is(err, errStop) {
		t.Errorf("want the writer's error, got %v", err)
	}
}

// TestInputBlocks checks that Run does not wait for the input after the command has ended.
func TestInputBlocks(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	if err := server.dial(t, "operator").Run(t.Context(), []string{"true"}, r, nil); err != nil {
		t.Error(err)
	}
}

func TestSudoRefused(t *testing.T) {
	cases := map[string]struct {
		user, password string
		want           SudoReason
	}{
		"WrongPassword": {"operator", "wrong", WrongPassword},
		"NeedsPassword": {"operator", "", NeedsPassword},
		"NotInSudoers":  {"guest", password, NotInSudoers},
		"RequiresTTY":   {"terminal", password, RequiresTTY},
		"NoSudo":        {"bare", password, NoSudo},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := server.target(tc.user)
			target.SudoPassword = Secret(tc.password)
			c := connect(t, server.trusting(t), target)
			var out bytes.Buffer
			err := c.Run(t.Context(), []string{"cat"}, strings.NewReader("for the command only"), &out)
			var refused *SudoRefused
			if !errors.As(err, &refused) {
				t.Fatalf("want SudoRefused, got %v", err)
			}
			if refused.Reason != tc.want || refused.Host != "cp-1" || refused.User != tc.user {
				t.Errorf("want %s, got %#v", tc.want, refused)
			}
			noSecrets(t, err.Error(), fmt.Sprintf("%#v", refused))
			if strings.Contains(err.Error(), "for the command only") || out.Len() > 0 {
				t.Errorf("the input reached sudo: %v, %q", err, out.String())
			}
		})
	}
}

func TestLoginRefused(t *testing.T) {
	for user, output := range map[string]string{"closed": "This account is currently not available.", "mute": ""} {
		t.Run(user, func(t *testing.T) {
			target := server.target(user)
			c := connect(t, server.trusting(t), target)
			// Root does not use sudo.
			c.(*conn).target.User = "root"
			err := c.Run(t.Context(), []string{"true"}, nil, nil)
			var refused *LoginRefused
			if !errors.As(err, &refused) {
				t.Fatalf("want LoginRefused, got %v", err)
			}
			if refused.Output != output {
				t.Errorf("want %q, got %q", output, refused.Output)
			}
		})
	}
}

func TestClose(t *testing.T) {
	c := server.dial(t, "root")
	started := make(chan struct{})
	done := make(chan error)
	r, w := io.Pipe()
	go func() { done <- c.Run(t.Context(), []string{"sh", "-c", "echo; sleep 600"}, nil, w) }()
	go func() {
		r.Read(make([]byte, 1))
		close(started)
		io.Copy(io.Discard, r)
	}()
	<-started
	c.Close()
	if err := <-done; !errors.Is(err, errClosed) {
		t.Errorf("want %v, got %v", errClosed, err)
	}
	if err := c.Run(t.Context(), []string{"true"}, nil, nil); !errors.Is(err, errClosed) {
		t.Errorf("want %v, got %v", errClosed, err)
	}
}
