package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/demo"
)

func newDemo(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub and member clusters on this machine",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dataDir string
	cmd.PersistentFlags().StringVar(&dataDir, "data-dir", demo.DefaultDataDir(), "data directory of the demo")
	cmd.AddCommand(newDemoUp(s, &dataDir), newDemoStatus(s, &dataDir), newDemoDown(s, &dataDir))
	return cmd
}

func newDemoUp(s streams, dataDir *string) *cobra.Command {
	var (
		o      demo.Options
		detach bool
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the demo; Ctrl-C stops all its processes",
		Long: `Start a hub and member clusters with real API servers on this machine, join them, deploy
a sample application across them and show what runs where. The clusters' nodes are
simulated: pods become ready, but nothing runs in them.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Clusters < 1 || o.Clusters > demo.MaxClusters {
				return usageError{fmt.Errorf("--clusters %d: want 1 to %d", o.Clusters, demo.MaxClusters)}
			}
			dir, err := filepath.Abs(*dataDir)
			if err != nil {
				return err
			}
			o.DataDir = dir
			if detach {
				return detached(cmd.Context(), s, o)
			}
			keepPrivate()
			p := newProgress(s.err)
			o.Progress = p.step
			if err := demo.MakeDataDir(dir); err != nil {
				return err
			}
			// The logs of the hub and the supervisor are useful only if something fails.
			f, err := os.OpenFile(filepath.Join(dir, "demo.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // a log
			log, err := newLog(streams{err: f}, "text", 0)
			if err != nil {
				return err
			}
			err = demo.Up(cmd.Context(), o, log, func() error {
				p.done()
				if err := printDemo(cmd.Context(), s.out, dir, true); err != nil {
					return err
				}
				return os.WriteFile(readyFile(dir), nil, 0o600)
			})
			p.done()
			if err != nil && !errors.Is(err, demo.ErrRunning) {
				err = fmt.Errorf("%w\nThe logs are in %s and %s", err, f.Name(), filepath.Join(dir, "processes"))
			}
			return err
		},
	}
	cmd.Flags().IntVar(&o.Clusters, "clusters", 3, fmt.Sprintf("number of member clusters, 1 to %d", demo.MaxClusters))
	cmd.Flags().StringSliceVar(&o.ByAgent, "by-agent", nil,
		fmt.Sprintf("clusters whose agents connect to the hub; the hub connects to the others (default: %s, if the demo has it)", demo.ByAgent))
	cmd.Flags().StringVar(&o.KubeBinary, "kube-binary", "", "multicall binary of Kubernetes components (default: orrery-kube beside this executable, then in PATH)")
	cmd.Flags().BoolVar(&detach, "detach", false, "return once the demo is ready and leave it running")
	return cmd
}

// readyFile returns the path of the file that "orrery demo up" creates in the data directory when
// the demo is ready. detached waits for it.
func readyFile(dataDir string) string { return filepath.Join(dataDir, "demo.ready") }

// detached runs "orrery demo up --detach". It starts the demo as a process in a new session, with
// its output in demo.out, and waits until the demo is ready. Then it prints what printDemo prints,
// and the demo continues to run. If a demo runs already, or the new one stops before it is ready,
// it returns an error. If ctx ends first, it stops the demo.
func detached(ctx context.Context, s streams, o demo.Options) error {
	if pid, err := demo.Running(ctx, o.DataDir); err != nil {
		return err
	} else if pid != 0 {
		return fmt.Errorf("%w in %s (process %d); stop it with %q", demo.ErrRunning, o.DataDir, pid, demo.Command("down", o.DataDir))
	}
	if err := demo.MakeDataDir(o.DataDir); err != nil {
		return err
	}
	if err := os.Remove(readyFile(o.DataDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The file demo.out will contain a link that opens a session of the console, so it must be
	// private.
	name := filepath.Join(o.DataDir, "demo.out")
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // the child has its own
	// Not CommandContext: the child outlives this process.
	child := exec.Command(self, "demo", "up", "--data-dir="+o.DataDir, fmt.Sprintf("--clusters=%d", o.Clusters), //nolint:noctx // it outlives this command
		"--kube-binary="+o.KubeBinary)
	if o.ByAgent != nil {
		child.Args = append(child.Args, "--by-agent="+strings.Join(o.ByAgent, ","))
	}
	child.Stdout, child.Stderr = out, out
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()
	p := newProgress(s.err)
	defer p.done()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-exited:
			p.done()
			text, readErr := os.ReadFile(out.Name())
			return errors.Join(fmt.Errorf("the demo stopped before it was ready: %s", text), err, readErr)
		case <-ctx.Done():
			// The command was interrupted, so the demo that is not ready yet is stopped.
			if err := child.Process.Signal(syscall.SIGTERM); err != nil {
				return err
			}
			return errors.Join(ctx.Err(), <-exited)
		case <-tick.C:
			p.step("starting the demo in the background")
			if _, err := os.Stat(readyFile(o.DataDir)); err == nil {
				p.done()
				return printDemo(ctx, s.out, o.DataDir, false)
			}
		}
	}
}

func newDemoStatus(s streams, dataDir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the demo's clusters and what runs where",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := filepath.Abs(*dataDir)
			if err != nil {
				return err
			}
			pid, err := demo.Running(cmd.Context(), dir)
			if err != nil {
				return err
			}
			if pid == 0 {
				return fmt.Errorf("no demo is running in %s; start one with %q, or name another directory with --data-dir", dir, demo.Command("up", dir))
			}
			f := hubFlags{kubeconfig: demo.Kubeconfig(*dataDir)}
			cfg, c, _, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			placed, err := placements(cmd.Context(), c, "")
			if err != nil {
				return err
			}
			if output == outputJSON || output == outputYAML {
				return printDemoValue(cmd.Context(), s.out, output, pid, *dataDir, c, placed)
			}
			if err := printList(cmd.Context(), s, cfg, clusterv1alpha1.GroupVersion.WithResource("clusters"), output, false); err != nil {
				return err
			}
			if err := say(s.out, "\n"); err != nil {
				return err
			}
			return printPlacements(s.out, placed)
		},
	}
	addOutput(cmd, &output)
	return cmd
}

// printDemoValue prints the state of the demo as JSON or YAML, as output says: process ID,
// kubeconfig, clusters, and what is placed in them.
func printDemoValue(ctx context.Context, w io.Writer, output string, pid int, dataDir string, c client.Client, placed []placement) error {
	var clusters clusterv1alpha1.ClusterList
	if err := c.List(ctx, &clusters); err != nil {
		return fmt.Errorf("list clusters: %w", err)
	}
	for i := range clusters.Items {
		clusters.Items[i].ManagedFields = nil
	}
	return printValue(w, output, struct {
		PID        int                       `json:"pid"`
		Kubeconfig string                    `json:"kubeconfig"`
		Clusters   []clusterv1alpha1.Cluster `json:"clusters"`
		Placements []placement               `json:"placements"`
	}{pid, demo.Kubeconfig(dataDir), clusters.Items, placed}, nil)
}

func newDemoDown(s streams, dataDir *string) *cobra.Command {
	var deleteData bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the demo",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 30*time.Second)
			defer cancel()
			stopped, err := demo.Down(ctx, *dataDir)
			if err != nil {
				return err
			}
			if deleteData {
				if err := demo.Delete(ctx, *dataDir); err != nil {
					return err
				}
			}
			if !stopped && !deleteData {
				return fmt.Errorf("no demo is running in %s; name the directory of the one to stop with --data-dir", *dataDir)
			}
			if !stopped {
				return say(s.out, "no demo was running; deleted %s\n", *dataDir)
			}
			return say(s.out, "the demo has stopped\n")
		},
	}
	cmd.Flags().BoolVar(&deleteData, "delete-data", false, "also delete the data directory, so that the next demo starts from scratch")
	return cmd
}

// printDemo prints what runs in which cluster of the demo, commands to try, and a new link to its
// console. If foreground is true, it says that Ctrl-C stops the demo, otherwise which command stops
// it.
func printDemo(ctx context.Context, w io.Writer, dataDir string, foreground bool) error {
	f := hubFlags{kubeconfig: demo.Kubeconfig(dataDir)}
	cfg, c, _, err := f.connect(ctx)
	if err != nil {
		return err
	}
	placed, err := placements(ctx, c, "")
	if err != nil {
		return err
	}
	if err := printPlacements(w, placed); err != nil {
		return err
	}
	stop := "Stop it with: " + demo.Command("down", dataDir)
	if foreground {
		stop = "Ctrl-C stops everything."
	}
	var clusters clusterv1alpha1.ClusterList
	if err := c.List(ctx, &clusters); err != nil {
		return fmt.Errorf("list clusters: %w", err)
	}
	var dialIn []string
	for _, cluster := range clusters.Items {
		if cluster.Spec.SyncMode == clusterv1alpha1.Pull {
			dialIn = append(dialIn, cluster.Name)
		}
	}
	if len(dialIn) > 0 {
		if err := say(w, "\nThe hub connects to the clusters, except %s: an agent there connects to the hub.\n", strings.Join(dialIn, ", ")); err != nil {
			return err
		}
	}
	if err := say(w, `
Try next:
  export KUBECONFIG=%s
  kubectl --context fleet get pods -A              # the pods of all clusters
  kubectl --context hub -n demo patch website hello --type=merge -p '{"spec":{"replicas":9}}'
  orrery why deploy/hello -n demo                  # in which clusters it is placed, and why
  orrery cluster describe oak                      # the state of one cluster

No kubectl? Use "orrery kubectl". %s
`, f.kubeconfig, stop); err != nil {
		return err
	}
	return printConsole(ctx, w, cfg, f.kubeconfig)
}
