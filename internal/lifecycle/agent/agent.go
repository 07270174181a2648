// Package agent is the program that Orrery runs on the hosts of clusters. Its commands are `node
// NAME`. The engine (package lifecycle) runs most of them over SSH and exchanges JSON on standard
// input and output. A systemd unit runs the load balancer. The agent is a separate, small program,
// because every host of every cluster gets it. The same program has the command `cluster`, which
// its main function handles.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/image"
	"orrery.dev/orrery/internal/lifecycle/balancer"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/reach"
	"orrery.dev/orrery/internal/neutral"
)

// usage is the text that --help prints.
const usage = `orrery-agent is what orrery runs on the hosts of clusters, and in clusters that dial the hub. Its commands:

  node apply          do the steps of the request on standard input
  node observe        say what was applied to this host and how it is now
  node serve          give content to other hosts until standard input ends
  node check          find out which ports of other hosts can be reached, as the request on standard input says
  node image          write an image of this program, by the name --name, to standard output
  node loadbalancer   spread connections to --listen over the API servers in the file --backends
  cluster             keep the cluster joined to its hub, as the manifest of orrery cluster join --pull says; see cluster --help
`

// errUsage means that the command line of the agent is invalid.
var errUsage = errors.New("want one of the commands that --help lists")

// Main runs the command in args, which lack the name of the program, and returns the exit code.
// That is 0 for success and for --help, 1 for an error and 2 for an invalid command line. Main
// prints errors to errOut. SIGINT and SIGTERM end the command.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	// The first signal ends the command gracefully, and the second one the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	err := run(logr.NewContext(ctx, logr.FromSlogHandler(neutral.NewTextLog(errOut, slog.LevelInfo))), args, in, out)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(errOut, usage) //nolint:errcheck // no output for an error of this write
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(errOut, "error: %v\n", err) //nolint:errcheck // no output for an error of this write
		return 2
	default:
		// An error of this write is ignored, because there is no other output.
		_ = neutral.Fprintf(errOut, "error: %s\n", neutral.Indented(err.Error()))
		return 1
	}
}

// run parses and runs the command line without the name of the program. It returns flag.ErrHelp if
// help is requested. The error wraps errUsage if the command line is invalid.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
		return flag.ErrHelp
	}
	if len(args) < 2 || args[0] != "node" {
		return errUsage
	}
	flags := flag.NewFlagSet(args[1], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	host := node.New("")
	var do func() error
	switch args[1] {
	case "apply":
		do = func() error { return host.Apply(ctx, in, out) }
	case "observe":
		do = func() error { return observe(ctx, host, out) }
	case "serve":
		do = func() error { return host.Serve(ctx, in, ":0", out) }
	case "check":
		do = func() error { return check(ctx, in, out) }
	case "loadbalancer":
		listen, backends := flags.String("listen", plan.LoadBalancer, ""), flags.String("backends", "", "")
		do = func() error { return balancer.Run(ctx, *listen, *backends) }
	case "image":
		name := flags.String("name", "", "")
		do = func() error { return writeImage(*name, out) }
	default:
		return fmt.Errorf("unknown command %q: %w", args[1], errUsage)
	}
	if err := flags.Parse(args[2:]); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: %w", flags.Arg(0), errUsage)
	}
	return do()
}

// writeImage writes a container image of this program to out, as an archive that containerd on this
// host can import. name is the complete reference of the image.
func writeImage(name string, out io.Writer) error {
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	_, err = image.Write(out, image.Options{Name: name, Arch: runtime.GOARCH, Path: image.AgentPath, Program: program, User: image.AgentUser})
	return err
}

// observe implements the command node observe: it writes what was applied to the host, and the
// present state, as JSON.
func observe(ctx context.Context, host *node.Node, out io.Writer) error {
	applied, err := host.Observe(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(applied)
}

// check implements the command node check: it reads a reach.Request from in and writes the
// reach.Result to out, as JSON.
func check(ctx context.Context, in io.Reader, out io.Writer) error {
	var req reach.Request
	if err := json.NewDecoder(in).Decode(&req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	result, err := reach.Check(ctx, req)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}
