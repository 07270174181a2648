package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/kubectl/pkg/cmd/attach"
	"k8s.io/kubectl/pkg/cmd/exec"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/kubectl/pkg/util/interrupt"
)

// podTimeout is the default of --pod-running-timeout, how long exec and attach wait for a pod of a
// workload: one minute.
const podTimeout = time.Minute

// session has the flags of "orrery exec" and "orrery attach".
type session struct {
	reaching

	container         string
	stdin, tty, quiet bool
}

func (e *session) addTo(cmd *cobra.Command) {
	e.add(cmd, "in this cluster, or in the one whose name matches a pattern; needed if several have it")
	flags := cmd.Flags()
	flags.StringVarP(&e.container, "container", "c", "", "in this container (default: the one that the pod's annotation kubectl.kubernetes.io/default-container names, or its first)")
	flags.BoolVarP(&e.stdin, "stdin", "i", false, "pass standard input on")
	flags.BoolVarP(&e.tty, "tty", "t", false, "standard input is a terminal")
	flags.BoolVarP(&e.quiet, "quiet", "q", false, "print nothing but what the container prints")
	cmdutil.AddPodRunningTimeoutFlag(cmd, podTimeout)
}

// options returns the options that the exec and attach commands of kubectl share, from the flags
// and streams.
func (e *session) options() exec.StreamOptions {
	return exec.StreamOptions{
		ContainerName: e.container, Stdin: e.stdin, TTY: e.tty, Quiet: e.quiet, IOStreams: e.kube(),
		// Without InterruptParent, kubectl would end the process on a signal, with another exit code.
		InterruptParent: interrupt.New(func(os.Signal) {}),
	}
}

// one returns the name of the one cluster that has an object, and its API. what is POD or
// TYPE/NAME. If no cluster or several have the object, it returns an error. If --cluster names the
// cluster, it is not checked for the object. The API replaces control characters in responses,
// because kubectl prints names from them.
func (e *session) one(ctx context.Context, what string) (at *below, cluster string, err error) {
	h, err := e.hub.api(ctx, e.err)
	if err != nil {
		return nil, "", err
	}
	clusters, err := e.having(ctx, h, what, "")
	if err != nil {
		return nil, "", err
	}
	if len(clusters) > 1 {
		return nil, "", e.several(what, clusters)
	}
	at, err = h.member(clusters[0], e.namespace)
	if err == nil {
		at.config.Wrap(neutralAnswers)
	}
	return at, clusters[0], err
}

// podOf returns the function with which kubectl's exec and attach find a pod of the workload what.
// If the workload has no pod within the timeout, its error says so: kubectl's own error says only
// that the wait has ended.
func podOf(what, cluster string) polymorphichelpers.AttachablePodForObjectFunc {
	return func(of genericclioptions.RESTClientGetter, o runtime.Object, timeout time.Duration) (*corev1.Pod, error) {
		pod, err := polymorphichelpers.AttachablePodForObjectFn(of, o, timeout)
		// A request that times out, or is canceled, says nothing about pods.
		broken := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
		if wait.Interrupted(err) && !broken || errors.Is(err, watchtools.ErrWatchClosed) {
			return nil, fmt.Errorf("%s has no pods in cluster %s; the command waits up to %s for one (--pod-running-timeout)", what, cluster, timeout)
		}
		return pod, err
	}
}

// remote runs commands in containers, and attaches to containers, for kubectl's exec and attach. It
// ends them when the context that the function returns ends, which kubectl's own executor ignores.
// It passes the bytes of both directions unchanged.
type remote func() context.Context

// ExecuteWithContext implements exec.RemoteExecutor. It passes the output to the streams below
// those that replace control characters.
func (remote) ExecuteWithContext(ctx context.Context, u *url.URL, cfg *rest.Config, in io.Reader, out, errOut io.Writer, tty bool, sizes remotecommand.TerminalSizeQueue) error {
	return (&exec.DefaultRemoteExecutor{}).ExecuteWithContext(ctx, u, cfg, in, raw(out), raw(errOut), tty, sizes)
}

// Execute implements exec.RemoteExecutor.
func (r remote) Execute(u *url.URL, cfg *rest.Config, in io.Reader, out, errOut io.Writer, tty bool, sizes remotecommand.TerminalSizeQueue) error {
	return r.ExecuteWithContext(r(), u, cfg, in, out, errOut, tty, sizes)
}

// Attach implements attach.RemoteAttach.
func (r remote) Attach(u *url.URL, cfg *rest.Config, in io.Reader, out, errOut io.Writer, tty bool, sizes remotecommand.TerminalSizeQueue) error {
	return r.ExecuteWithContext(r(), u, cfg, in, out, errOut, tty, sizes)
}

func newExec(s streams) *cobra.Command {
	e := &session{reaching: reaching{streams: s}}
	cmd := &cobra.Command{
		Use:   "exec POD | TYPE/NAME [-C CLUSTER] -- COMMAND [ARG ...]",
		Short: "Run a command in a container of any cluster",
		Long: `Run a command in a container, as kubectl does, in the cluster that has the pod or the workload.
If several have it, --cluster says which. The exit code is the command's.`,
		Example: `  orrery exec web-5d-x7 -n shop -- date
  orrery exec deploy/web -n shop -C oak -it -- sh`,
		ValidArgsFunction: e.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash != 1 || len(args) < 2 { //nolint:mnd // what it runs in, and what it runs
				return usageError{fmt.Errorf("want a pod, or TYPE/NAME as in deploy/web, and after -- the command; see %q", cmd.CommandPath()+" --help")}
			}
			return asKubectl(e.exec(cmd, args, dash))
		},
	}
	e.addTo(cmd)
	return cmd
}

func (e *session) exec(cmd *cobra.Command, args []string, dash int) error {
	at, cluster, err := e.one(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	o := &exec.ExecOptions{StreamOptions: e.options(), Executor: remote(cmd.Context)}
	if err := o.Complete(cmdutil.NewFactory(at), cmd, args, dash); err != nil {
		return err
	}
	o.ExecutablePodFn = podOf(args[0], cluster)
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	return o.Run()
}

func newAttach(s streams) *cobra.Command {
	e := &session{reaching: reaching{streams: s}}
	keys := "ctrl-p,ctrl-q"
	cmd := &cobra.Command{
		Use:   "attach POD | TYPE/NAME [-C CLUSTER]",
		Short: "Attach to a running container of any cluster",
		Long: `Attach to the process of a container, as kubectl does, in the cluster that has the pod or the
workload. If several have it, --cluster says which.`,
		Example: `  orrery attach web-5d-x7 -n shop -C oak -it`,

		ValidArgsFunction: e.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("want exactly one argument, a pod or TYPE/NAME as in deploy/web")}
			}
			return asKubectl(e.attach(cmd, args, keys))
		},
	}
	e.addTo(cmd)
	cmd.Flags().StringVar(&keys, "detach-keys", keys, "the keys that end it, and not the process")
	return cmd
}

func (e *session) attach(cmd *cobra.Command, args []string, keys string) error {
	at, cluster, err := e.one(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	o := attach.NewAttachOptions(e.kube())
	o.StreamOptions, o.DetachKeys, o.Attach = e.options(), keys, remote(cmd.Context)
	o.CommandName = strings.TrimSpace(cmd.CommandPath())
	if err := o.Complete(cmdutil.NewFactory(at), cmd, args); err != nil {
		return err
	}
	o.AttachablePodFn = podOf(args[0], cluster)
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	return o.Run()
}
