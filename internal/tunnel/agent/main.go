package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/neutral"
)

// Main runs the command line of an agent in a cluster until SIGINT or SIGTERM, and returns the
// exit code of the process: 0 for success, 1 for a printed error, 2 for an invalid command
// line. args are the arguments after the command. It writes the log, too, to errOut.
func Main(args []string, version string, errOut io.Writer) int {
	o := DefaultOptions()
	o.Version, o.Stays = version, true
	flags := flag.NewFlagSet("orrery-agent cluster", flag.ContinueOnError)
	flags.SetOutput(errOut)
	hostname, _ := os.Hostname() // without a name, --replica is required
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig of the cluster, for an agent that runs outside of it, with the rights of an administrator (default: the pod's own)")
	kubeContext := flags.String("context", "", "context in that file (default: its current context)")
	flags.StringVar(&o.Replica, "replica", hostname, "name that tells the agents of the cluster apart")
	flags.StringVar(&o.HealthAddress, "health-address", "", "address at which to serve /healthz and /readyz, such as :8081 (default: none)")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(errOut, "error: unexpected argument %q\n", flags.Arg(0)) //nolint:errcheck // nowhere to say so
		return 2
	case o.Replica == "":
		fmt.Fprintln(errOut, "error: this machine has no name: give --replica") //nolint:errcheck // nowhere to say so
		return 2
	}
	if *kubeconfig != "" {
		o.Source, o.Stays = Kubeconfig(*kubeconfig, *kubeContext), false
	}
	// The first signal stops the agent in an orderly way, the second one kills the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := Run(logr.NewContext(ctx, logr.FromSlogHandler(neutral.NewTextLog(errOut, slog.LevelInfo))), o); err != nil {
		// There is no other output for an error of this write.
		_ = neutral.Fprintf(errOut, "error: %s\n", neutral.Indented(err.Error()))
		return 1
	}
	return 0
}
