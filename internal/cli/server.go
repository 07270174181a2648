package cli

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/server"
)

// newLog returns the logger of a server, which writes to s.err in the format text or json; other
// formats are a usageError. A higher verbosity logs more. From then on client-go and the standard
// library of this process log to it, too.
func newLog(s streams, format string, verbosity int) (logr.Logger, error) {
	level := slog.Level(-verbosity)
	var h slog.Handler
	switch format {
	case "text":
		h = neutral.NewTextLog(raw(s.err), level)
	case "json":
		h = neutral.NewJSONLog(raw(s.err), level)
	default:
		return logr.Logger{}, usageError{fmt.Errorf("--log-format %q: want text or json", format)}
	}
	log := logr.FromSlogHandler(h)
	// client-go logs through klog, and net/http through the logger of the standard library.
	klog.SetLogger(log.WithName("client-go"))
	slog.SetDefault(slog.New(h))
	return log, nil
}

func newServer(s streams) *cobra.Command {
	var (
		o         server.Options
		printPlan bool
		logFormat string
		verbosity int
		readyFile string
	)
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the hub: its API server, controllers, mirror and search",
		Long: `Run the hub until it is interrupted.

By default the hub brings its own API server: etcd, kube-apiserver and
kube-controller-manager run as child processes, with everything they store in
--data-dir. With --kubeconfig, an existing API server is used instead.`,
		Example: `  orrery server --data-dir /var/lib/orrery
  orrery server --kubeconfig ~/.kube/config
  orrery server --print-plan`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if printPlan {
				plan, err := hub.Plan(o.Hub)
				if err != nil {
					return err
				}
				return printValue(s.out, outputYAML, plan, nil)
			}
			log, err := newLog(s, logFormat, verbosity)
			if err != nil {
				return err
			}
			keepPrivate()
			if os.Getenv("GOGC") == "" {
				// Most of the heap is the state of the fleet, and stays. With Go's default,
				// garbage would take the same amount of memory again.
				debug.SetGCPercent(50)
			}
			o.Version = version
			return server.Run(cmd.Context(), o, log, func(h *hub.Hub) error {
				log.Info("hub is ready", "kubeconfig", h.KubeconfigPath())
				if readyFile == "" {
					return nil
				}
				return os.WriteFile(readyFile, nil, 0o600)
			})
		},
	}
	cmd.AddCommand(newConfirmRestore(s), newRotateKey(s))
	o.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&printPlan, "print-plan", false, "print the plan of child processes as YAML and exit")
	cmd.Flags().StringVar(&readyFile, "ready-file", "", "file to create once the hub is ready, for whoever supervises it")
	cmd.Flags().StringVar(&logFormat, "log-format", "text", "how to log to standard error: text or json")
	cmd.Flags().IntVarP(&verbosity, "verbosity", "v", 0, "how much to log: 0 what changed, 1 also why nothing did")
	return cmd
}
