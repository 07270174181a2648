// Package demo gives the tests of a package a demo of their own: a hub and three clusters, as
// `orrery demo up` starts them.
package demo

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/cmd/get"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"orrery.dev/orrery/internal/testenv"
)

// Clusters are the members of the demo. The hub dials one of them. The agents of the other two
// dial the hub. Tests do not depend on which they are.
var Clusters = []string{"oak", "pine", "birch"}

// dir is the data directory of the demo.
var dir string

// Dir returns the data directory of the demo. It is the default directory of a demo for a user
// whose HOME is that of the tests.
func Dir() string {
	testenv.Programs()
	return dir
}

// Kubeconfig returns the path of the demo's kubeconfig, with a context for the hub, for the
// fleet and for each cluster.
func Kubeconfig() string { return filepath.Join(Dir(), "kubeconfig") }

// Main starts a demo, runs the tests of a package, stops the demo and exits.
func Main(m *testing.M) {
	code := 1
	if err := run(m, &code); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, code *int) error {
	// Tests mostly wait for processes, so four run in parallel.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		return err
	}
	home, err := os.MkdirTemp("", "orrery-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	// The commands in the documents find the demo in its default directory.
	for k, v := range map[string]string{"HOME": home, "XDG_DATA_HOME": filepath.Join(home, ".local", "share")} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	dir = filepath.Join(home, ".local", "share", "orrery-demo")
	start := time.Now()
	out, err := testenv.Program(context.Background(), Orrery(), "demo", "up", "--detach", "--by-agent=pine,birch").CombinedOutput()
	if err != nil {
		return fmt.Errorf("demo up: %w\n%s\n%s", err, out, logs(dir))
	}
	fmt.Printf("demo is ready after %s\n%s", time.Since(start).Round(time.Second), out)
	*code = m.Run()
	for _, f := range logFiles(dir) {
		if text, _ := os.ReadFile(f); testenv.Crash(string(text)) != "" {
			fmt.Printf("a process ended by a fault of its own, %s:\n%s\n", f, testenv.Crash(string(text)))
			*code = 1
		}
	}
	if *code != 0 {
		fmt.Println(logs(dir))
	}
	if out, err := testenv.Program(context.Background(), Orrery(), "demo", "down").CombinedOutput(); err != nil {
		return fmt.Errorf("demo down: %w\n%s", err, out)
	}
	if left := ProcessesOf(dir); len(left) > 0 {
		return fmt.Errorf("demo down left processes: %v", left)
	}
	return nil
}

// Orrery returns the path of bin/orrery.
func Orrery() string {
	testenv.Programs()
	return filepath.Join(testenv.Root(), "bin", "orrery")
}

// Run runs orrery and returns its output and exit code.
func Run(t testing.TB, args ...string) (string, int) {
	t.Helper()
	out, err := testenv.Program(context.Background(), Orrery(), args...).CombinedOutput()
	if err == nil {
		return string(out), 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("orrery %s: %v", strings.Join(args, " "), err)
	}
	return string(out), exit.ExitCode()
}

// logs returns the ends of the demo's logs.
func logs(dir string) string {
	var b strings.Builder
	for _, f := range logFiles(dir) {
		text, _ := os.ReadFile(f)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", f, strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
	return b.String()
}

// logFiles returns the logs of the hub and of the demo.
func logFiles(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "processes", "hub*.log"))
	more, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	return append(files, more...)
}

// ProcessesOf lists the processes whose command line names a directory.
func ProcessesOf(dir string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(b, []byte(dir)) && filepath.Base(filepath.Dir(f)) != fmt.Sprint(os.Getpid()) {
			found = append(found, filepath.Base(filepath.Dir(f))+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// notForwarded is the answer of the hub's API server while it does not forward requests. It
// declares the hub unavailable for a moment when a probe took too long on a busy machine.
const notForwarded = "the server is currently unable to handle the request"

// unheard lists answers that leave unknown whether a request was performed. They come from an
// API server that is busy or was just restarted.
var unheard = []string{
	"Unable to connect to the server", "was refused - did you specify the right host or port", "context deadline exceeded", "Client.Timeout",
	"Error from server (Timeout)", "Error from server (ServerTimeout)", "Error from server (TooManyRequests)",
	"Error from server (ServiceUnavailable)", "Error from server (Conflict)", "Error from server: etcdserver",
}

// internalError is another answer of a busy API server. In contexts other than hub, it may also
// mean that a handler of orrery server failed.
const internalError = "Error from server (InternalError)"

// unheardByOrrery lists the same answers as orrery prints them.
var unheardByOrrery = []string{
	notForwarded, "cannot reach orrery server", "context deadline exceeded", "would exceed context deadline", "Client.Timeout", "no answer in time",
	"did not try the new credentials within", "connect: connection refused", "connection reset by peer", "EOF", "i/o timeout",
	"TLS handshake timeout", "http2: client connection lost", "etcdserver: ", "in the time allotted", "request did not complete within",
}

// Unheard reports whether the output of a failed orrery command leaves unknown whether its
// requests were performed.
func Unheard(out string) bool {
	return slices.ContainsFunc(unheardByOrrery, func(text string) bool { return strings.Contains(out, text) })
}

// Unjoin unjoins a cluster, with the arguments of orrery cluster unjoin. It repeats the command
// only if a busy hub did not answer in time.
func Unjoin(t testing.TB, args ...string) {
	t.Helper()
	lost := false // whether an earlier attempt had no answer
	testenv.Eventually(t, "unjoin", testenv.Patience, func() error {
		out, code := Run(t, append([]string{"cluster", "unjoin"}, args...)...)
		switch left := strings.Contains(out, "is not joined") || strings.Contains(out, "no cluster is named"); {
		case code == 0, left && lost:
			return nil
		case !Unheard(out):
			t.Fatalf("unjoin: exit code %d:\n%s", code, out)
		}
		lost = true
		return errors.New(out)
	})
}

// Kubectl runs the bundled kubectl against a context of the demo and returns its output. It
// fails the test when kubectl fails. It repeats a request that was not forwarded. It also
// repeats a request that may have been performed, unless the repetition would have another
// effect.
func Kubectl(t testing.TB, context string, args ...string) string {
	t.Helper()
	out, err := TryKubectl(context, "", args...)
	lost := func() bool {
		return !slices.Contains(args, "undo") && (context == "hub" && strings.Contains(out, internalError) ||
			slices.ContainsFunc(unheard, func(text string) bool { return strings.Contains(out, text) }))
	}
	performed := false // true if that is possible
	for end := time.Now().Add(testenv.Patience); err != nil && (strings.Contains(out, notForwarded) || lost()) && time.Now().Before(end); {
		performed = performed || lost()
		time.Sleep(time.Second)
		out, err = TryKubectl(context, "", args...)
		if performed && (slices.Contains(args, "create") && strings.Contains(out, "(AlreadyExists)") || slices.Contains(args, "delete") && strings.Contains(out, "(NotFound)")) {
			err = nil
		}
	}
	if err != nil {
		t.Fatalf("kubectl --context %s %s: %v\n%s", context, strings.Join(args, " "), err, out)
	}
	return out
}

// TryKubectl runs the bundled kubectl against a context of the demo, and returns the output of
// both streams.
func TryKubectl(context, stdin string, args ...string) (string, error) {
	cmd := exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "--context", context}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+Kubeconfig())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Config returns an administrator's access to a context of the demo, as kubectl has it.
func Config(t testing.TB, context string) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: Kubeconfig()},
		&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

// Client returns a client of a context of the demo.
func Client(t testing.TB, context string) kubernetes.Interface {
	t.Helper()
	cfg := Config(t, context)
	cfg.Timeout = 15 * time.Second
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TryGet is `kubectl get` within this process, without warnings. It is for frequent requests,
// because a start of kubectl takes more processor time than the answer.
func TryGet(context string, args ...string) (string, error) {
	flags := genericclioptions.NewConfigFlags(true)
	*flags.KubeConfig, *flags.Context = Kubeconfig(), context
	flags.WithWrapConfigFn(func(cfg *rest.Config) *rest.Config {
		cfg.WarningHandler = rest.NoWarnings{}
		return cfg
	})
	var out bytes.Buffer
	o := get.NewGetOptions("kubectl", genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	cmd := &cobra.Command{SilenceUsage: true, SilenceErrors: true, RunE: func(cmd *cobra.Command, args []string) error {
		f := cmdutil.NewFactory(flags)
		if err := o.Complete(f, cmd, args); err != nil {
			return err
		}
		if err := o.Validate(); err != nil {
			return err
		}
		return o.Run(f, args)
	}}
	flags.AddFlags(cmd.Flags())
	o.PrintFlags.AddFlags(cmd)
	cmd.Flags().BoolVar(&o.IgnoreNotFound, "ignore-not-found", false, "")
	cmd.Flags().BoolVarP(&o.AllNamespaces, "all-namespaces", "A", false, "")
	cmd.Flags().StringVar(&o.FieldSelector, "field-selector", "", "")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.LabelSelector)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}
