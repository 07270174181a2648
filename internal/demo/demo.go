// Package demo runs a hub, member clusters and a sample on one machine, for the commands
// "orrery demo".
package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/lifecycle/content"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/sandbox"
)

//go:embed sample.yaml
var sample []byte

// clusterNames returns the names of the MaxClusters clusters that a demonstration can have. With
// fewer clusters it has the first names.
func clusterNames() [MaxClusters]string {
	return [...]string{"oak", "pine", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "rowan"}
}

// ByAgent is the name of the cluster, "birch", that joins by agent if Options.ByAgent is nil. Its
// agent connects to the hub, as in a cluster that the hub cannot reach. No program runs on the
// simulated nodes of a demonstration, so the agent is a process beside the cluster.
const ByAgent = "birch"

// MaxClusters is the maximum number of clusters of a demonstration, 10.
const MaxClusters = 10

// Options of Up, which runs a demonstration: a hub, member clusters and a sample web site on this
// machine. All fields but ByAgent and KubeBinary are required.
type Options struct {
	// DataDir is the absolute path of the directory for all data. It is created if it does not
	// exist.
	DataDir string
	// Clusters is the number of member clusters, 1 to MaxClusters.
	Clusters int
	// ByAgent has the names of clusters that join by agent. An unknown name is an error. nil: the
	// constant ByAgent, if the demonstration has that cluster; empty: no cluster.
	ByAgent []string
	// KubeBinary is the path of the multicall binary of the Kubernetes components. "": it is
	// searched beside the running executable, then in PATH.
	KubeBinary string
	// Progress is called with messages about what the demonstration waits for, often with the
	// same message several times. Up calls it from several goroutines, but not at the same time.
	Progress func(message string)
}

// DefaultDataDir returns the directory for the data of a demonstration if the flag --data-dir is
// not set: orrery-demo, beside the default data directory of a hub.
func DefaultDataDir() string { return filepath.Join(filepath.Dir(hub.DefaultDataDir()), "orrery-demo") }

// MakeDataDir creates the data directory and its parents, accessible only to this user. An existing
// directory stays as it is.
func MakeDataDir(dataDir string) error {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w; name another with --data-dir", err)
	}
	return nil
}

// Kubeconfig returns the path of the kubeconfig of a demonstration with this data directory. Up
// creates the file, as a link to the kubeconfig of the hub.
func Kubeconfig(dataDir string) string { return filepath.Join(dataDir, "kubeconfig") }

// ErrRunning means that a demonstration with the same data directory is running. Errors of Up and
// Delete wrap it.
var ErrRunning = errors.New("a demo is already running")

// Up runs a hub, its clusters and the sample until ctx ends, which is no error. It calls ready when
// the sample is ready. An error of ready or of the setup, or a process that cannot be started, ends
// Up. Before Up returns, it stops every process that it started. If the data directory has data of
// an earlier demonstration, Up uses these again. If a running demonstration uses it, the error
// wraps ErrRunning.
func Up(ctx context.Context, o Options, log logr.Logger, ready func() error) error {
	binary, err := hub.FindKubeBinary(o.KubeBinary)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := MakeDataDir(o.DataDir); err != nil {
		return err
	}
	unlock, err := lock(ctx, o.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	names := clusterNames()
	agents, err := o.agents()
	if err != nil {
		return err
	}
	members, err := sandbox.Prepare(
		sandbox.Options{Dir: filepath.Join(o.DataDir, "members"), KubeBinary: binary, Tier: sandbox.Simulated}, names[:o.Clusters]...,
	)
	if err != nil {
		return err
	}
	defer members.Close() //nolint:errcheck // the ports are free when the demo has ended
	if err := link(filepath.Join("hub", "kubeconfig"), Kubeconfig(o.DataDir)); err != nil {
		return err
	}

	hubDir := filepath.Join(o.DataDir, "hub")
	readyFile := filepath.Join(o.DataDir, "hub.ready")
	plan := process.Plan{
		Name: "demo",
		// A higher number does not help: the processes only compete for the processors.
		Parallelism: 2,
		Processes: append([]process.Process{{
			Name: "hub",
			Command: []string{
				self, "server", "--data-dir=" + hubDir, "--kube-binary=" + binary,
				"--secure-port=0", "--fleet-port=0", "--ready-file=" + readyFile,
			},
			Ready: &process.Probe{File: &process.FileProbe{Path: readyFile}},
			// The hub has to stop its own child processes.
			DeathSignal: process.DeathSignalTerm,
		}}, members.Processes()...),
	}
	for _, m := range members.List() {
		if agent := agents[m.Name]; agent != "" {
			plan.Processes = append(plan.Processes, process.Process{
				Name:    m.Name + "-agent",
				Command: []string{agent, "cluster", "--kubeconfig=" + m.Kubeconfig(), "--replica=demo"},
				After:   []string{m.Name + "-apiserver"},
				Env:     map[string]string{"NO_PROXY": "127.0.0.1"},
			})
		}
	}
	supervisor, err := process.New(plan, process.Options{
		Dir: filepath.Join(o.DataDir, "processes"), Log: log.WithName("process"),
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- supervisor.Run(running) }()

	// Up ends when the setup fails, a process cannot be started, or ctx ends.
	settingUp, cancel := context.WithCancel(ctx)
	defer cancel()
	setUp := make(chan error, 1)
	go func() { setUp <- o.setUp(settingUp, supervisor, members, self, agents, ready) }()
	select {
	case err = <-stopped:
		cancel()
		return errors.Join(err, ignoreCanceled(<-setUp))
	case err = <-setUp:
	}
	if err == nil {
		select {
		case err := <-stopped:
			return err
		case <-ctx.Done():
		}
	}
	o.Progress("stopping")
	stop()
	return errors.Join(ignoreCanceled(err), <-stopped)
}

// ignoreCanceled returns nil if err is context.Canceled, otherwise err.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// agents returns, for the clusters that join by agent, the path of the agent's program by the name
// of the cluster. All paths are equal. A name in o.ByAgent that no cluster of the demonstration has
// is an error.
func (o *Options) agents() (map[string]string, error) {
	all := clusterNames()
	names := all[:o.Clusters]
	agents := map[string]string{}
	by := o.ByAgent
	if by == nil && slices.Contains(names, ByAgent) {
		by = []string{ByAgent}
	}
	for _, name := range by {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--by-agent %s: the demo has no such cluster; it has %s", name, strings.Join(names, ", "))
		}
		file, err := content.AgentFile(runtime.GOARCH)
		if err != nil {
			return nil, err
		}
		agents[name] = file
	}
	return agents, nil
}

// setUp prepares the hub and clusters that s runs. It waits for their processes, joins the
// clusters, deploys the sample, waits until that is ready, and calls ready. self is the path of the
// orrery program; agents has the result of Options.agents. All steps can be repeated on the data of
// an earlier demonstration.
func (o *Options) setUp(
	ctx context.Context, s *process.Supervisor, members *sandbox.Clusters, self string, agents map[string]string, ready func() error,
) error {
	if err := o.waitProcesses(ctx, s); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(o.DataDir))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return err
	}
	o.Progress("joining clusters")
	if err := o.joinAll(ctx, c, members, self, agents); err != nil {
		return err
	}
	o.Progress("deploying the sample")
	if err := applySample(ctx, cfg); err != nil {
		return err
	}
	o.Progress("waiting until the sample is ready")
	if err := waitSample(ctx, c); err != nil {
		return err
	}
	return ready()
}

// waitProcesses waits until all processes of s are ready. Meanwhile it calls o.Progress with the
// number of ready ones and the name of one that is not. If ctx ends first, it returns the error of
// ctx.
func (o *Options) waitProcesses(ctx context.Context, s *process.Supervisor) error {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		up, all := 0, s.Status()
		var waiting string
		for _, p := range all {
			if p.State == process.StateReady {
				up++
			} else if waiting == "" {
				waiting = p.Name
			}
		}
		o.Progress(fmt.Sprintf("starting a hub and %s: %d of %d processes are ready, waiting for %s", plural(o.Clusters, "cluster"), up, len(all), waiting))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Ready():
			return nil
		case <-ticker.C:
		}
	}
}

// plural returns the number with the noun, such as "1 cluster" or "3 clusters".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// joinAll adds nodes to the clusters members, joins these to the hub of c in parallel, and waits
// until all are ready. The clusters that agents names join by agent, with the program at self.
func (o *Options) joinAll(ctx context.Context, c client.WithWatch, members *sandbox.Clusters, self string, agents map[string]string) error {
	var system corev1.Namespace
	if err := c.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &system); err != nil {
		return fmt.Errorf("read the hub's id: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	for i, m := range members.List() {
		g.Go(func() error {
			if err := m.AddNodes(ctx, 3); err != nil {
				return err
			}
			region := "region-" + strconv.Itoa(i%2+1)
			if agents[m.Name] != "" {
				return joinByAgent(ctx, c, self, Kubeconfig(o.DataDir), m, region)
			}
			kubeconfig, err := os.ReadFile(m.Kubeconfig())
			if err != nil {
				return err
			}
			_, err = member.Join(ctx, c, member.JoinOptions{
				Name: m.Name, Kubeconfig: kubeconfig, HubID: string(system.UID), Account: true,
				Labels: map[string]string{"env": "demo"}, Provider: "demo", Region: region,
			})
			if err != nil {
				return fmt.Errorf("join cluster %s: %w", m.Name, err)
			}
			_, err = member.WaitReady(ctx, c, m.Name)
			return err
		})
	}
	return g.Wait()
}

// joinByAgent joins the cluster m by the agent that runs beside it, and waits until the cluster is
// ready. It runs "orrery cluster join --pull" of the program at self. If the cluster has joined by
// agent before, joinByAgent only waits.
func joinByAgent(ctx context.Context, c client.WithWatch, self, hubKubeconfig string, m *sandbox.Cluster, region string) error {
	var cluster clusterv1alpha1.Cluster
	err := c.Get(ctx, types.NamespacedName{Name: m.Name}, &cluster)
	switch {
	case err == nil && cluster.Spec.SyncMode == clusterv1alpha1.Pull && cluster.Spec.SecretRef.Name != "":
		_, err = member.WaitReady(ctx, c, m.Name)
		return err
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("get cluster %s: %w", m.Name, err)
	}
	out, err := exec.CommandContext(ctx, self, "cluster", "join", m.Name, "--kubeconfig="+hubKubeconfig, "--pull", "--agent-process",
		"--apply-with-kubeconfig="+m.Kubeconfig(), "--timeout=10m", "--labels=env=demo", "--provider=demo", "--region="+region).CombinedOutput()
	if err != nil {
		return fmt.Errorf("join cluster %s by agent: %w\n%s", m.Name, err, out)
	}
	return nil
}

// applySample applies the objects of sample.yaml to the hub. It does not wait until they are ready.
func applySample(ctx context.Context, cfg *rest.Config) error {
	c, err := manifest.NewClient(cfg, manifest.Options{FieldManager: "orrery-demo"})
	if err != nil {
		return err
	}
	objects, err := manifest.Parse(sample, yaml.YAMLToJSONStrict)
	if err != nil {
		return err
	}
	return c.ApplyAll(ctx, objects)
}

// waitSample waits until the Website of the sample is ready in its present generation and the
// health of all its copies is known. If ctx ends first, it returns an error.
func waitSample(ctx context.Context, c client.Client) error {
	key := types.NamespacedName{Namespace: "demo", Name: "hello"}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var site appsv1alpha1.Website
		if err := c.Get(ctx, key, &site); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		for _, cond := range site.Status.Conditions {
			if cond.Type == appsv1alpha1.ConditionReady {
				if cond.Status != metav1.ConditionTrue || cond.ObservedGeneration != site.Generation {
					return false, nil
				}
				return known(ctx, c, key.Namespace)
			}
		}
		return false, nil
	})
}

// known reports whether the bindings in a namespace say for every copy whether it is healthy. After
// a restart the Website still has the status of the last run, until all clusters have reported.
func known(ctx context.Context, c client.Client, namespace string) (bool, error) {
	var bindings workv1alpha2.ResourceBindingList
	if err := c.List(ctx, &bindings, client.InNamespace(namespace)); err != nil {
		return false, err
	}
	for _, b := range bindings.Items {
		if slices.ContainsFunc(b.Status.AggregatedStatus, func(i workv1alpha2.AggregatedStatusItem) bool { return i.Health == workv1alpha2.ResourceUnknown }) {
			return false, nil
		}
	}
	return true, nil
}

// Command returns the command line "orrery demo VERB" for a data directory, for messages to the
// user. It has the flag --data-dir unless that is the default.
func Command(verb, dataDir string) string {
	if dataDir == DefaultDataDir() {
		return "orrery demo " + verb
	}
	return "orrery demo " + verb + " --data-dir=" + dataDir
}

// lock locks the data directory, which must exist, for this process, and writes the process ID into
// the lock file. unlock releases it. If another process has the lock, the error wraps ErrRunning
// and has the command that stops that demonstration. ctx bounds how long lock looks for the process
// ID of that demonstration.
func lock(ctx context.Context, dataDir string) (unlock func(), err error) {
	f, err := disk.TryLock(lockFile(dataDir))
	if errors.Is(err, disk.ErrLocked) {
		pid, _ := Running(ctx, dataDir)
		return nil, fmt.Errorf("%w in %s (process %d): stop it with %q or use another --data-dir", ErrRunning, dataDir, pid, Command("down", dataDir))
	}
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := fmt.Fprintf(f, "%d\n", os.Getpid()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		_ = f.Truncate(0) // the ID may soon be that of another process
		disk.Unlock(f)
	}, nil
}

// lockFile returns the path of the lock file in a data directory.
func lockFile(dataDir string) string { return filepath.Join(dataDir, "demo.lock") }

// Limits for reading the process ID of a demonstration that has just taken the lock and has not
// written the ID yet.
const (
	pidInterval = 10 * time.Millisecond
	pidLimit    = 5 * time.Second
)

// Running returns the process ID of the running demonstration with this data directory; 0 if there
// is none. It waits up to pidLimit for a demonstration that is starting and has not written its ID.
// If ctx ends first, Running returns an error.
func Running(ctx context.Context, dataDir string) (pid int, err error) {
	for waited := time.Duration(0); ; waited += pidInterval {
		if locked, err := disk.IsLocked(lockFile(dataDir)); err != nil || !locked {
			return 0, err
		}
		b, err := os.ReadFile(lockFile(dataDir))
		if err != nil {
			return 0, err
		}
		text := string(b)
		if pid, err := strconv.Atoi(strings.TrimSuffix(text, "\n")); err == nil && strings.HasSuffix(text, "\n") {
			return pid, nil
		}
		if waited >= pidLimit {
			return 0, fmt.Errorf("a demo runs in %s, but %s has no process ID: stop its processes", dataDir, lockFile(dataDir))
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for the process ID of the demo in %s: %w", dataDir, ctx.Err())
		case <-time.After(pidInterval):
		}
	}
}

// Down stops the demonstration with this data directory, and waits until it has ended. stopped is
// false if none was running. If ctx ends first, Down returns an error, and the demonstration may
// stop later.
func Down(ctx context.Context, dataDir string) (stopped bool, err error) {
	pid, err := Running(ctx, dataDir)
	if err != nil || pid == 0 {
		return false, err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("stop process %d: %w", pid, err)
	}
	ended := err != nil
	if !ended {
		defer unix.Close(process) //nolint:errcheck // nothing was written
		if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, fmt.Errorf("stop process %d: %w", pid, err)
		}
	}
	// The process releases the lock of the data directory before it ends.
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if !ended {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
			if err != nil && !errors.Is(err, unix.EINTR) {
				return false, err
			}
			ended = n == 1
		}
		locked, err := Running(ctx, dataDir)
		return ended && locked == 0, err
	})
	if err != nil {
		return false, fmt.Errorf("wait until process %d has stopped: %w", pid, err)
	}
	return true, nil
}

// link makes path a symbolic link to target. It replaces a file or another link at path; a
// directory that is not empty is an error.
func link(target, path string) error {
	if now, err := os.Readlink(path); err == nil && now == target {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

// Delete removes the data directory of a demonstration that has stopped. If the demonstration runs,
// the error wraps ErrRunning. A directory without the lock file of a demonstration is an error, and
// nothing is deleted.
func Delete(ctx context.Context, dataDir string) error {
	if _, err := os.Stat(lockFile(dataDir)); err != nil {
		// The directory is not that of a demonstration, so nothing in it is deleted.
		return fmt.Errorf("delete %s: it is not the data directory of a demo: %w", dataDir, err)
	}
	unlock, err := lock(ctx, dataDir)
	if err != nil {
		return err
	}
	defer unlock()
	return os.RemoveAll(dataDir)
}
