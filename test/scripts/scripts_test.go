// Package scripts checks that the scripts of hack/ do what CONTRIBUTING.md says. Fake go and
// git programs only record their arguments.
package scripts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checkout is a directory with scripts of this project, and with programs that precede those of
// PATH.
type checkout struct {
	t   *testing.T
	dir string
}

// nobody is the user and group for run if the test runs as root.
const nobody = 65534

// newCheckout copies scripts of hack/ into a directory that belongs to the user of run.
func newCheckout(t *testing.T, files map[string]string, scripts ...string) *checkout {
	t.Helper()
	// The directory of t.TempDir would be closed to the user of run.
	dir, err := os.MkdirTemp("", "orrery-scripts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := own(dir); err != nil {
		t.Fatal(err)
	}
	c := &checkout{t: t, dir: dir}
	for _, name := range scripts {
		text, err := os.ReadFile(filepath.Join("..", "..", "hack", name))
		if err != nil {
			t.Fatal(err)
		}
		c.write("hack/"+name, string(text))
	}
	for name, text := range files {
		c.write(name, text)
	}
	return c
}

func (c *checkout) write(name, text string) {
	c.t.Helper()
	file := filepath.Join(c.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
		c.t.Fatal(err)
	}
	for at := file; at != c.dir; at = filepath.Dir(at) {
		if err := own(at); err != nil {
			c.t.Fatal(err)
		}
	}
}

// own makes the user of run the owner of a file or directory.
func own(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, nobody, nobody)
}

func (c *checkout) read(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	return string(text)
}

// run runs a command in the checkout and returns its exit code and output. If the test runs as
// root, the command runs as an ordinary user.
func (c *checkout) run(variables []string, command ...string) (code int, out string) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), command[0], command[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "HOME="+c.dir, "ORRERY_CACHE="+filepath.Join(c.dir, "cache"), "PATH="+filepath.Join(c.dir, "bin")+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, variables...)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// fakeGo records each `go test` in the file calls. It fails for the package named in the file
// failing.
const fakeGo = `#!/bin/sh
case "$*" in
version | list*-export*) echo any ;;
'list -m') echo example.org/m ;;
'list ./...') for p in a b test/lab; do echo example.org/m/$p; done ;;
test*)
  echo "$*" >>calls
  for package; do :; done
  [ "$package" != "$(cat failing)" ] || { echo it failed; exit 1; } ;;
esac
`

const fakeGit = `#!/bin/sh
case "$*" in
'rev-parse HEAD') cat commit ;;
*--verify*) exit 1 ;;
esac
`

// TestSoakContinues: soak runs failed tests again, but not those that passed. For repeated
// tests, a pass counts for all commits. For tests with all their cases, it counts for its own
// commit.
func TestSoakContinues(t *testing.T) {
	c := newCheckout(t, map[string]string{
		"bin/go": fakeGo, "bin/git": fakeGit, "commit": "c1", "failing": "./b",
		"bin/orrery-kube": "", "bin/orrery-agent-any": "", "internal/console/any.go": "", "internal/console/dist/any": "",
		"internal/mirror/killed_test.go": "package mirror; var kills = testenv.Count(nil, \"KILLS\", 3, 10)",
		"test/other/other_test.go":       "package other",
	}, "soak.sh", "phase.sh", "go-tests.sh", "digests.sh", "times.sh")
	soak := func(mode string) (code int, calls []string, out string) {
		c.write("calls", "")
		code, out = c.run([]string{"ROUNDS=2"}, "hack/soak.sh", mode)
		for line := range strings.Lines(c.read("calls")) {
			words := strings.Fields(line)
			calls = append(calls, words[len(words)-1])
		}
		return code, calls, out
	}
	hold := func(step string, code, wantCode int, calls []string, want ...string) {
		t.Helper()
		if code != wantCode || !slices.Equal(calls, want) {
			t.Errorf("%s: exit code %d, ran %v; want %d, %v", step, code, calls, wantCode, want)
		}
	}

	code, calls, out := soak("tests")
	hold("the first run", code, 1, calls, "./a", "./b", "./a", "./b")
	if !strings.Contains(out, "2 passed, 2 failed on the way") {
		t.Errorf("it says: %s", out)
	}
	if log := c.read("cache/soak/tests-b-1.log"); log != "it failed\n" {
		t.Errorf("what the failed test printed: %q", log)
	}
	c.write("failing", "")
	c.write("commit", "c2")
	code, calls, _ = soak("tests")
	hold("after a mend", code, 0, calls, "./b", "./b")
	code, calls, out = soak("tests")
	hold("when all has passed", code, 0, calls)
	if !strings.Contains(out, "4 passed, 2 failed on the way") {
		t.Errorf("it says: %s", out)
	}
	var lines []string
	for line := range strings.Lines(c.read("cache/soak/tests.tsv")) {
		words := strings.Split(line, "\t")
		lines = append(lines, strings.Join(slices.Delete(words, 3, 4)[:4], " "))
	}
	if diff := cmp.Diff([]string{
		"ok 1 ./a c1", "FAIL 1 ./b c1", "ok 2 ./a c1", "FAIL 2 ./b c1", "ok 1 ./b c2", "ok 2 ./b c2",
	}, lines); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}

	code, calls, _ = soak("all")
	hold("all cases", code, 0, calls, "./internal/mirror")
	code, calls, _ = soak("all")
	hold("all cases again", code, 0, calls)
	c.write("commit", "c3")
	code, calls, _ = soak("all")
	hold("all cases of another commit", code, 0, calls, "./internal/mirror")
}

// TestCIRun: .ci/run passes on the caller's variables that it documents, and no others.
func TestCIRun(t *testing.T) {
	c := newCheckout(t, map[string]string{"hack/ci.sh": "#!/bin/sh\nenv\n"}, "tree.sh", filepath.Join("..", ".ci", "run"))
	code, out := c.run([]string{"CI=true", "SECRET=s3cret", "LANG=xx", "NO_PROXY=no proxy"}, ".ci/run")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for _, want := range []string{"CI=true\n", "LANG=C.UTF-8\n", "TZ=UTC\n", "NO_PROXY=no proxy\n", "HOME=" + c.dir + "\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the environment lacks %q", want)
		}
	}
	if strings.Contains(out, "SECRET") {
		t.Error("the environment has SECRET")
	}
}

// TestTree: a command that root runs with tree.sh sees its checkout at a path that all
// checkouts share, and returns its exit code.
func TestTree(t *testing.T) {
	if os.Geteuid() != 0 || exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run() != nil {
		t.Skip("only root can mount a checkout at the common path")
	}
	for _, name := range []string{"one", "two"} {
		c := newCheckout(t, map[string]string{"file": name}, "tree.sh")
		cmd := exec.CommandContext(t.Context(), filepath.Join(c.dir, "hack", "tree.sh"), "bash", "-c", "pwd; cat file; exit 3")
		out, _ := cmd.CombinedOutput()
		if got, want := string(out), "/tmp/orrery-tree\n"+name; got != want || cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("exit code %d, it prints %q, want %q", cmd.ProcessState.ExitCode(), got, want)
		}
	}
}

// TestVerify: a commit is recorded when .ci/run passes in a clean clone of it, without the
// caller's changes.
func TestVerify(t *testing.T) {
	c := newCheckout(t, nil, "verify.sh", "phase.sh")
	c.write(".ci/run", `#!/usr/bin/env bash
set -e
cd "$(dirname "$0")/.."
echo "CI=$CI untracked=$(ls untracked 2>/dev/null) changed=$(cat file)"
printf 'ok  \texample.org/m/a\t1.500s\nok  \texample.org/m/b\t(cached)\n'
. hack/phase.sh
phase "all of it" test "$(cat file)" = good
`)
	c.write("file", "good")
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"}, args...)
		if code, out := c.run(nil, args...); code != 0 {
			t.Fatalf("%v: %s", args, out)
		}
	}
	git("init", "-q")
	git("add", ".ci", "hack", "file")
	git("commit", "-qm", "one")
	c.write("untracked", "")
	c.write("file", "changed, and not committed")

	code, out := c.run(nil, "hack/verify.sh")
	for _, want := range []string{
		"CI=true untracked= changed=good", "working tree has changes", "?? untracked", " M file",
		" s  all of it", "1 packages ran, 1 came from the cache", "1.5 s  example.org/m/a", "passes .ci/run in ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	noted := c.read(".git/verified")
	if code != 0 || strings.Count(noted, "\n") != 1 {
		t.Errorf("exit code %d, noted: %q; it says:\n%s", code, noted, out)
	}

	git("commit", "-qam", "two")
	code, out = c.run(nil, "hack/verify.sh")
	if code == 0 || !strings.Contains(out, "FAILS .ci/run") || !strings.Contains(out, "all of it and failed (exit code 1)") {
		t.Errorf("exit code %d; it says:\n%s", code, out)
	}
	if after := c.read(".git/verified"); after != noted {
		t.Errorf("noted: %q", after)
	}
}

// TestTimes: a file with the same content as in HEAD gets a time that depends on the content,
// equal in each clone. Other files keep their time.
func TestTimes(t *testing.T) {
	c := newCheckout(t, map[string]string{"dir/same": "same", "dir/twin": "same", "other": "another", "changed": "one"}, "times.sh")
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"}, args...)
		if code, out := c.run(nil, args...); code != 0 {
			t.Fatalf("%v: %s", args, out)
		}
	}
	times := func(root string) map[string]string {
		t.Helper()
		if code, out := c.run(nil, filepath.Join(root, "hack/times.sh")); code != 0 {
			t.Fatal(out)
		}
		all := map[string]string{}
		for _, name := range []string{"dir", "dir/same", "dir/twin", "other", "changed", "new"} {
			if info, err := os.Stat(filepath.Join(c.dir, root, name)); err == nil {
				all[name] = info.ModTime().UTC().String()
			}
		}
		return all
	}
	git("init", "-q")
	git("add", "dir", "other", "changed", "hack")
	git("commit", "-qm", "one")
	git("clone", "-q", ".", "clone")
	first, second := times("."), times("clone")
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("two clones differ (-first +second):\n%s", diff)
	}
	if first["dir/same"] != first["dir/twin"] || first["dir/same"] == first["other"] {
		t.Errorf("times are not those of contents: %v", first)
	}
	c.write("changed", "two") // the size stays the same
	c.write("new", "")
	before := map[string]string{}
	for _, name := range []string{"changed", "new"} {
		info, err := os.Stat(filepath.Join(c.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = info.ModTime().UTC().String()
	}
	after := times(".")
	for name, was := range before {
		if after[name] != was || was == first[name] {
			t.Errorf("%s differs from HEAD; its time was %s, and is %s", name, was, after[name])
		}
	}
}

// TestFailures passes the output of go test to failures: lines of passed and failed tests, of a
// panic and of packages.
func TestFailures(t *testing.T) {
	long := strings.Repeat("x", 300)
	var in []string
	in = append(in, "ok  \torrery.dev/orrery/a\t1.0s", "=== RUN   TestA", "    a_test.go:1: noise", "--- FAIL: TestA (0.00s)")
	for i := range 9 {
		in = append(in, fmt.Sprintf("    a_test.go:%d: wrong", i))
	}
	in = append(in, "        --- FAIL: TestB/Sub (0.00s)", "        b_test.go:1: "+long, "ok  \torrery.dev/orrery/b\t2.0s", "more noise",
		"panic: runtime error", "goroutine 1 [running]:", "?   \torrery.dev/orrery/c\t[no test files]", "FAIL\torrery.dev/orrery/d\t3.0s")
	want := []string{"what failed, shortened:", "--- FAIL: TestA (0.00s)"}
	for i := range 7 { // eight lines of each
		want = append(want, fmt.Sprintf("    a_test.go:%d: wrong", i))
	}
	want = append(want, "        --- FAIL: TestB/Sub (0.00s)", ("        b_test.go:1: " + long)[:240],
		"panic: runtime error", "goroutine 1 [running]:", "FAIL\torrery.dev/orrery/d\t3.0s")
	for range 20 { // in all, 120 lines
		in = append(in, slices.Repeat([]string{"--- FAIL: TestMany (0.00s)"}, 8)...)
		want = append(want, slices.Repeat([]string{"--- FAIL: TestMany (0.00s)"}, 8)...)
	}
	want = want[:121]

	file := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(file, []byte(strings.Join(in, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("bash", "-c", "set -euo pipefail; source ../../hack/go-tests.sh; failures "+file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(string(out)), "\n")); diff != "" {
		t.Errorf("what is printed (-want +got):\n%s", diff)
	}
}
