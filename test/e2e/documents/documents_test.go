// Package documents runs the commands of the documents, with a demo of its own. So a change of
// a document reruns only these tests.
package documents

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(kubectl())
	}
	demo.Main(m)
}

const (
	// bundled is the variable that has the path of bin/orrery-kube, for kubectl.
	bundled = "ORRERY_TEST_KUBECTL"
	// notForwarded is the answer of the hub's API server while it forwards no requests to orrery
	// server. The request then had no effect.
	notForwarded = "the server is currently unable to handle the request"
)

// kubectl is the program kubectl of the commands in the documents: it runs the bundled kubectl, and
// returns its exit code. The hub's API server forwards nothing for a moment when a probe of orrery
// server took too long on a busy machine. The bundled kubectl then fails at once. This one waits
// until the API server forwards requests, and asks again.
func kubectl() int {
	in, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "read the input of kubectl:", err)
		return 1
	}
	run := func(args ...string) (code int, out, errOut []byte) {
		var o, e bytes.Buffer
		cmd := exec.Command(os.Getenv(bundled), append([]string{"kubectl"}, args...)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &o, &e
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			fmt.Fprintln(&e, err)
		}
		return cmd.ProcessState.ExitCode(), o.Bytes(), e.Bytes()
	}
	code, out, errOut := run(os.Args[1:]...)
	for end := time.Now().Add(testenv.Patience); code != 0 && bytes.Contains(errOut, []byte(notForwarded)) && time.Now().Before(end); {
		service := fleetv1alpha1.GroupVersion.Version + "." + fleetv1alpha1.GroupVersion.Group
		if failed, _, why := run("--context=hub", "wait", "--for=condition=Available", "apiservice/"+service, "--timeout=3m"); failed != 0 {
			errOut = append(errOut, why...)
			break
		}
		code, out, errOut = run(os.Args[1:]...)
	}
	_, _ = os.Stdout.Write(out)
	_, _ = os.Stderr.Write(errOut)
	return code
}

// inFleet is a test whose API servers have kubelets and metrics.
const inFleet = "TestKubectlInTheFleet of internal/cli"

// elsewhere lists the commands of the documents that another test runs, or that run before or
// after all others.
var elsewhere = map[string]string{
	"make build":              "`make test` depends on it",
	"make demo":               "make build, then the `orrery demo up` of these tests",
	"make check":              "continuous integration runs it first",
	"make words":              "it writes into the checkout what `make check` compares",
	"make test":               "this is it",
	"make bench":              "it measures; it is run when figures are taken",
	"make generate":           "`make check` runs it",
	"make console-test":       "make test runs it",
	"make screenshots":        "pictures are looked at, not compared",
	"make quick":              "it runs a part of `make test`",
	"make fleet":              "`make quick` uses the demo that it starts, which stays",
	"make verify":             "it runs all tests, and so this one, in a clone",
	"make soak":               "it runs all cases of these tests, for long",
	"make soak-tests":         "it runs all tests again and again",
	"make race":               "it runs most of these tests again, slower",
	"orrery demo up --detach": "it starts the demo of these tests",
	"orrery demo down":        "it ends the demo of these tests",
	"orrery cluster join mine --cluster-kubeconfig mine.kubeconfig --region eu-west-1 --labels env=dev": "TestJoinAndUnjoin of test/e2e, with a cluster to join",
	"orrery cluster unjoin mine": "TestJoinAndUnjoin of test/e2e",
	// The demo's nodes are simulated: their pods write no logs, and there is no metrics server.
	"orrery logs deploy/web -n shop":                                  inFleet,
	"orrery logs deploy/web -n shop -f --since 10m -C 'eu-*'":         inFleet,
	"orrery logs -l app=web --all-containers --tail 100 --timestamps": inFleet,
	"orrery exec deploy/web -n shop -C oak -it -- sh":                 inFleet,
	"orrery attach web-5d-x7 -n shop -C oak -it":                      inFleet,
	"orrery top pods -A --sort-by memory":                             inFleet,
	"orrery top nodes -C 'eu-*'":                                      inFleet,
}

// TestDocuments runs every command in a document, block after block in one shell for each
// document, as a reader would.
func TestDocuments(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(testenv.Root(), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md"} {
		documents = append(documents, filepath.Join(testenv.Root(), name))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, target := range map[string]string{"orrery": demo.Orrery(), "orrery-kube": testenv.KubeBinary(), "kubectl": self} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, document := range documents {
		script := commands(t, document)
		if script == "" {
			continue
		}
		t.Run(filepath.Base(document), func(t *testing.T) {
			cmd := exec.Command("bash", "-euo", "pipefail", "-x", "-c", script)
			cmd.Dir = testenv.Root()
			// The documents use the default directory of the demo, the hub's context unless
			// they name another, and a kubectl on PATH.
			cmd.Env = append(os.Environ(), "KUBECONFIG="+demo.Kubeconfig(), "PATH="+bin+":"+os.Getenv("PATH"), bundled+"="+testenv.KubeBinary())
			start := time.Now()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("after %s: %v\n%s", time.Since(start), err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// commands returns the shell blocks of a document without the lines that run elsewhere.
func commands(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	inside := false
	for line := range strings.SplitSeq(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "```sh"):
			inside = true
			continue
		case strings.HasPrefix(line, "```"):
			inside = false
		}
		command, _, _ := strings.Cut(line, " #")
		if _, ok := elsewhere[strings.TrimSpace(command)]; inside && !ok {
			fmt.Fprintln(&script, patient(line))
		}
	}
	return strings.TrimSpace(script.String())
}

var (
	limit = regexp.MustCompile(`--timeout=\S+`)
	waits = regexp.MustCompile(`^orrery (promote|rebalance|rerun) `)
)

// patient returns a line of a document with a longer limit for what it waits for: the machine may
// be much slower than a user's.
func patient(line string) string {
	const long = "--timeout=10m"
	line = limit.ReplaceAllString(line, long)
	if waits.MatchString(line) && !strings.Contains(line, "--dry-run") && !strings.Contains(line, long) && !strings.HasSuffix(line, `\`) {
		command, comment, _ := strings.Cut(line, " #")
		if line = strings.TrimRight(command, " ") + " " + long; comment != "" {
			line += " #" + comment
		}
	}
	return line
}
