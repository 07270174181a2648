// Package cli has the commands of orrery. Each parses flags and files, calls one package, and
// prints the result.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"orrery.dev/orrery/internal/neutral"
)

// Set by the linker.
var (
	version = "v0.0.0"
	commit  = "unknown"
)

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// programName is the name of the program in its messages.
const programName = "orrery"

// Names of kubectl plugins: the program itself, and the one that provides completions for it.
const (
	pluginName   = "kubectl-" + programName
	completeName = "kubectl_complete-" + programName
)

// Run is Main for a program with a name. With the name of a kubectl plugin, or of the completion
// of one, it behaves as the plugin.
func Run(program string, args []string, in io.Reader, out, errOut io.Writer) int {
	switch strings.TrimSuffix(filepath.Base(program), ".exe") {
	case pluginName:
		return execute(asPlugin, args, in, out, errOut)
	case completeName:
		return execute(asPlugin, append([]string{cobra.ShellCompRequestCmd}, args...), in, out, errOut)
	default:
		return Main(args, in, out, errOut)
	}
}

// asPlugin makes the texts of the program name it as a plugin of kubectl.
func asPlugin(root *cobra.Command) {
	root.Use = pluginName
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl " + programName}
	replace := strings.NewReplacer("\n  "+programName+" ", "\n  kubectl "+programName+" ", `"`+programName+" ", `"kubectl `+programName+" ")
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.Long = replace.Replace(c.Long)
		c.Example = strings.TrimPrefix(replace.Replace("\n"+c.Example), "\n")
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

// Main runs the command line and returns the exit code of the process: 0 for success, 1 for an
// error, which was printed, 2 for an invalid command line, 130 if Ctrl-C ended it (128 and the
// number of the signal), and the exit code of a command that ran in a container.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	return execute(func(*cobra.Command) {}, args, in, out, errOut)
}

// execute applies change to the commands of the program, then runs a command line until it ends
// or a signal arrives.
func execute(change func(root *cobra.Command), args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	return executeIn(ctx, change, args, in, out, errOut)
}

// executeIn is execute with a context instead of signals.
func executeIn(ctx context.Context, change func(root *cobra.Command), args []string, in io.Reader, out, errOut io.Writer) int {
	quiet()
	out, errOut = neutral.NewWriter(out), neutral.NewWriter(errOut)
	root := newRoot(streams{in: in, out: out, err: errOut}) //nolint:contextcheck // commands get the context below
	change(root)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	err := root.ExecuteContext(ctx)
	if _, known := errors.AsType[usageError](err); err != nil && !understood && !known {
		err = usageError{err} // an error of cobra itself
	}
	lines, code := outcome(ctx, err)
	for _, line := range lines {
		complain(errOut, line)
	}
	return code
}

// outcome returns the lines to print for the error of a command, and the exit code of the
// process.
func outcome(ctx context.Context, err error) (lines []string, code int) {
	interrupted, cut := errors.AsType[interruptedError](context.Cause(ctx))
	unreached, away := errors.AsType[unreachedError](err)
	kubectl, likeKubectl := errors.AsType[kubectlError](err)
	_, usage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return nil, 0
	case away:
		lines, code = []string{"error: " + unreached.Error()}, 1
	case likeKubectl && cut && errors.Is(err, context.Canceled): // kubectl prints nothing for it
		code = 1
	case likeKubectl:
		lines, code = kubectl.lines(ctx), kubectl.code()
	case usage:
		lines, code = []string{"error: " + err.Error()}, 2
	default:
		lines, code = []string{"error: " + explained(ctx, err)}, 1
	}
	if cut && code == 1 {
		code = interrupted.code()
	}
	return lines, code
}

// complain prints an error. Lines after the first are indented, so that text of a member cannot
// look like another error.
func complain(w io.Writer, text string) {
	_ = say(w, "%s\n", neutral.Indented(text)) // there is no other stream for the error
}

// usageError is the error of an invalid command line.
type usageError struct{ error }

// Command returns the tree of all commands, for documentation. The commands must not be run.
func Command() *cobra.Command { return newRoot(streams{}) }

func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "One control plane for many Kubernetes clusters",
		Long: `Orrery is one control plane for many Kubernetes clusters: join clusters, place
workloads on them, see and search everything in them. All of it is the Kubernetes API.

Start with "orrery demo up".`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %q", err, c.CommandPath()+" --help")}
	})
	root.AddCommand(
		newServer(s),
		newDemo(s),
		newConsole(s),
		newCluster(s),
		newAgentImage(s),
		newOperation(s),
		newGet(s),
		newDescribeObjects(s),
		newTop(s),
		newLogs(s),
		newExec(s),
		newAttach(s),
		newCordon(s),
		newUncordon(s),
		newTaint(s),
		newPromote(s),
		newRebalance(s),
		newRerun(s),
		newWhy(s),
		newSearch(s),
		newGraph(s),
		newHistory(s),
		newDiff(s),
		newAPIResources(s),
		newMigrate(s),
		newKubectl(s),
		newVersion(s),
	)
	return root
}

func newVersion(s streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version   string `json:"version"`
				Commit    string `json:"commit"`
				GoVersion string `json:"goVersion"`
				Platform  string `json:"platform"`
			}{version, commit, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return printValue(s.out, output, v, func(w io.Writer) error {
				return say(w, "orrery %s (commit %s, %s, %s)\n", v.Version, v.Commit, v.GoVersion, v.Platform)
			})
		},
	}
	addOutput(cmd, &output)
	return cmd
}

// noArgs refuses positional arguments with an error that names the first.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasSubCommands():
		return usageError{fmt.Errorf("unexpected argument %q; see %q", args[0], cmd.CommandPath()+" --help")}
	}
	const typos = 2
	cmd.SuggestionsMinimumDistance = typos
	meant := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		meant = fmt.Sprintf("; did you mean %q? See", near[0])
	}
	return usageError{fmt.Errorf("unknown command %q%s %q", args[0], cmp.Or(meant, "; see"), cmd.CommandPath()+" --help")}
}

// oneName requires exactly one argument, the name of a cluster.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("want exactly one argument, the cluster's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}

// atMostOneName requires at most one argument, the name of a cluster.
func atMostOneName(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("want at most one argument, the cluster's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}
