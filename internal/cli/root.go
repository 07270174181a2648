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

// The version of the release and its Git commit, set by the linker.
var (
	version = "v0.0.0"
	commit  = "unknown"
)

// streams are the standard streams of a command. Writers out and err replace control characters in
// what is written to them; text.go says how to write bytes unchanged.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// programName is the name of the program in its messages and in the usage of its commands.
const programName = "orrery"

// Names under which kubectl runs the program as a plugin: pluginName for commands, completeName for
// completions.
const (
	pluginName   = "kubectl-" + programName
	completeName = "kubectl_complete-" + programName
)

// Run runs the command line args, and returns the exit code of the process as Main does. program is
// the name or path under which the program was started. If its base name is kubectl-orrery, texts
// name the program "kubectl orrery". If it is kubectl_complete-orrery, Run prints the completions
// for args. Otherwise Run is the same as Main.
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

// asPlugin changes the texts of root and of all its commands so that they name the program "kubectl
// orrery".
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

// Main runs the command line args, without the name of the program, until it ends or SIGINT or
// SIGTERM cancels it. It prints errors to errOut. It returns the exit code of the process: 0
// for success, 1 for an error, 2 for an invalid command line, 128 and the number of the signal
// after a signal (130 for Ctrl-C), and the exit code of a command that ran in a container.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	return execute(func(*cobra.Command) {}, args, in, out, errOut)
}

// execute lets change modify the root command, runs the command line args, and returns the exit
// code. The first SIGINT or SIGTERM ends the context of the command.
func execute(change func(root *cobra.Command), args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	return executeIn(ctx, change, args, in, out, errOut)
}

// executeIn does what execute does, with ctx in place of the signals. It also stops client-go from
// logging to standard error in this process.
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

// outcome returns the lines to print for the error of a command, and the exit code of the process.
// For a nil error these are none and 0. An interruption of a command of kubectl has no lines, too,
// but another code. For an unknown cluster it requests the names of the clusters, until ctx ends.
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
	case likeKubectl && cut && errors.Is(err, context.Canceled): // kubectl prints nothing then
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

// complain prints an error on w. It indents lines after the first, so that text of a member cannot
// look like another error. An error of w is ignored.
func complain(w io.Writer, text string) {
	_ = say(w, "%s\n", neutral.Indented(text)) // an error of the stream can be printed nowhere
}

// usageError is the error of an invalid command line. The exit code of the process is then 2.
type usageError struct{ error }

// Command returns the root command with all subcommands, from which documentation is generated. It
// has no streams, so it must not be run.
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
		newFailover(s),
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

// noArgs checks the arguments of a command that takes none: it returns a usageError that names the
// first argument. For a command with subcommands it suggests the most similar one.
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

// oneName checks the arguments of a command: it returns a usageError unless there is exactly one,
// the name of a cluster. Whether the name is valid is not checked.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("want exactly one argument, the cluster's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}

// atMostOneName checks the arguments of a command: it returns a usageError if there is more than
// one, the name of a cluster. Whether the name is valid is not checked.
func atMostOneName(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("want at most one argument, the cluster's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}
