// Command orrery-kube is one multicall binary of the upstream Kubernetes
// components that Orrery runs as child processes: it acts as the component
// named by its own file name or, failing that, by its first argument.
//
// It is a module of its own because k8s.io/kubernetes needs a replace directive
// for every staging module; these must not leak into the product's module.
// The components are never run inside the orrery process: upstream installs
// process-global signal handlers, feature gates and configz entries, and exits
// the process on a lost lease.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones, as upstream's own mains import it

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's auth plugins
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/component-base/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwoksignals "sigs.k8s.io/kwok/pkg/utils/signals"
)

// applets maps a component's name to its main. Each reads os.Args as if it were
// a program of its own and returns the exit code.
var applets = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-proxy":              func() int { return cli.Run(kubeproxy.NewProxyCommand()) },
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
	"version":                 func() int { fmt.Println(version.Get().GitVersion); return 0 },
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := applets[name]; !ok && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run, ok := applets[name]
	if !ok {
		names := make([]string, 0, len(applets))
		for n := range applets {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "orrery-kube: unknown component %q; it is one of %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}

func runKubectl() int {
	// Verbosity must be set before the command is built: building it already
	// reads the kuberc file and looks for plugins.
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl:", err)
		return 1
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits
	}
	return 0
}

// runKwok runs KWOK with its own fast stages (a node is ready at once and renews its
// lease, a pod runs and is ready at once, a Job's pod completes) unless --config names
// others. The file that KWOK_CONTAINER_LOG names is the log of every container then. With
// --manage-all-nodes it takes the nodes over from a KWOK that has ended.
func runKwok() int {
	if slices.Contains(os.Args, "--manage-all-nodes") {
		if err := releaseNodes(context.Background(), flagValue("--kubeconfig")); err != nil {
			// Only the wait for the leases is not saved.
			fmt.Fprintln(os.Stderr, "kwok: delete the leases of nodes:", err)
		}
	}
	if !slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--config") }) {
		stages, err := stagesFile(os.Getenv("KWOK_CONTAINER_LOG"))
		if err != nil {
			fmt.Fprintln(os.Stderr, "kwok: keep stages:", err)
			return 1
		}
		defer stages.Close()
		os.Args = append(os.Args, "--config="+stages.Name())
	}
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, logger := kwoklog.InitFlags(kwoksignals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		logger.Error("parse flags", "err", err)
		return 1
	}
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	// Kubernetes' packages register a --version flag of another type for every program
	// they are in; cobra must not expect its own.
	command.Version = ""
	if err := command.ExecuteContext(ctx); err != nil {
		logger.Error("run", "err", err)
		return 1
	}
	return 0
}

// clusterLogs gives every container the log in a file.
const clusterLogs = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterLogs
metadata: {name: simulated}
spec: {logs: [{logsFile: %q}]}
`

// flagValue returns the value of a flag of the command line; empty: it is not there.
func flagValue(name string) string {
	for i, arg := range os.Args {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			return value
		}
		if arg == name && i+1 < len(os.Args) {
			return os.Args[i+1]
		}
	}
	return ""
}

// releaseNodes deletes the leases of all nodes. Each start of KWOK is another holder, and would
// wait until the leases of the one before have run out, up to 200 s.
func releaseNodes(ctx context.Context, kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	return c.CoordinationV1().Leases(corev1.NamespaceNodeLease).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// stagesFile holds the stages, and the log of containers if it has a path, in memory; KWOK reads
// them by name.
func stagesFile(log string) (*os.File, error) {
	fd, err := unix.MemfdCreate("stages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	all := []string{
		nodefast.DefaultNodeInit, nodeheartbeat.DefaultNodeHeartbeatWithLease,
		podfast.DefaultPodReady, podfast.DefaultPodComplete, podfast.DefaultPodDelete,
	}
	if log != "" {
		all = append(all, fmt.Sprintf(clusterLogs, log))
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	_, err = f.WriteString(strings.Join(all, "\n---\n"))
	return f, err
}
