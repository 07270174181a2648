// Package cli is the commands of orrery: each turns flags and files into a call of one
// room and prints what came of it.
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

// Stamped by the linker.
var (
	version = "v0.0.0"
	commit  = "unknown"
)

// streams are the files that a command talks through.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// programName is what the program is called, also in what it says of its commands.
const programName = "orrery"

// kubectl's plugins are programs with such names, of which the second completes the first.
const (
	pluginName   = "kubectl-" + programName
	completeName = "kubectl_complete-" + programName
)

// Run is Main for a program of a name: by that of a plugin, or of what completes one, it is the plugin.
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

// asPlugin has a program speak of itself as kubectl's plugin.
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

// Main runs the command line and returns the process's exit code: 0 for success, 1 for
// an error, which was printed, 2 for a command line that makes no sense, 130 if Ctrl-C ended it
// (128 and the number of the signal), and that of a command which ran in a container.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	return execute(func(*cobra.Command) {}, args, in, out, errOut)
}

// execute runs a command line of the program, after it is changed, until it ends or a signal comes.
func execute(change func(root *cobra.Command), args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	return executeIn(ctx, change, args, in, out, errOut)
}

// executeIn is execute until a context ends.
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
		err = usageError{err} // of a command that is cobra's own
	}
	lines, code := outcome(ctx, err)
	for _, line := range lines {
		complain(errOut, line)
	}
	return code
}

// outcome is what is printed of the error of a command, and the process's exit code.
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
	case likeKubectl && cut && errors.Is(err, context.Canceled): // kubectl says nothing of it
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

// complain prints an error. Lines of its text after the first are indented, so that no text of a
// member looks like another error.
func complain(w io.Writer, text string) {
	_ = say(w, "%s\n", neutral.Indented(text)) // nowhere to say so
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

// Command is the tree of all commands, to be looked at and not to be run.
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

// oneName wants exactly one argument, the name of a cluster.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("want exactly one argument, the cluster's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}

// atMostOneName wants the name of a cluster, or none.
func atMostOneName(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("want at most one argument, the cluster's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}
