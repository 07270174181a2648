// Command orrery-kube is one multicall binary of the upstream Kubernetes components that Orrery
// runs as child processes. Its own file name selects the component, or else its first argument.
//
// It is a separate module because k8s.io/kubernetes needs a replace directive for every staging
// module, which the product's module must not have. The components never run inside the orrery
// process: upstream installs process-global signal handlers, feature gates and configz entries,
// and exits the process when it loses a lease.
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

// applets maps the name of a component to its main function. The function reads os.Args as a
// separate program would, and returns the exit code.
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
	// Verbosity must be set before the command is built: building it reads the kuberc file and
	// searches for plugins.
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl:", err)
		return 1
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits
	}
	return 0
}

// runKwok runs KWOK with its own fast stages unless --config names others: a node is ready at
// once and renews its lease, a pod runs and is ready at once, a Job's pod completes. The file
// in KWOK_CONTAINER_LOG is then the log of every container. With --manage-all-nodes it takes
// over the nodes of a KWOK that has ended.
func runKwok() int {
	if slices.Contains(os.Args, "--manage-all-nodes") {
		if err := releaseNodes(context.Background(), flagValue("--kubeconfig")); err != nil {
			// KWOK then only waits for the leases.
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
	// The packages of Kubernetes register a --version flag of another type in every program, so
	// cobra must not add its own.
	command.Version = ""
	if err := command.ExecuteContext(ctx); err != nil {
		logger.Error("run", "err", err)
		return 1
	}
	return 0
}

// clusterLogs is a KWOK configuration in which every container has the log in one file.
const clusterLogs = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterLogs
metadata: {name: simulated}
spec: {logs: [{logsFile: %q}]}
`

// flagValue returns the value of a flag on the command line; "": it is not set.
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

// releaseNodes deletes the leases of all nodes. Each KWOK process is another holder. Without
// this it would wait until the leases of the former process expire, up to 200 s.
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

// stagesFile returns a file in memory with the stages and, if log is not empty, the log of
// containers. KWOK opens it by name.
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
