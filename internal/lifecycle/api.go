package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/addon"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/safety"
	"orrery.dev/orrery/internal/pki"
)

const (
	// nodeTimeout is how long a run waits for Nodes to register, and then again for them to become
	// ready. objectsTimeout bounds each of the two parts of the work on the objects of the cluster:
	// first the early groups with the kubeconfig, then all that follows the rollout. See within.
	nodeTimeout    = 5 * time.Minute
	objectsTimeout = 10 * time.Minute
	// pollEvery is the interval between two checks while the run waits for an API server or etcd.
	pollEvery = 250 * time.Millisecond
)

// through returns the client configuration with which a run reaches the API server of a host, as
// administrator. The client connects through the SSH connection c, so it works behind a bastion and
// before any load balancer runs. port is the port of the API server, and keys has the authority and
// the administrator's certificate. Each request may take 30 seconds. Expired server certificates
// are accepted.
func through(c host.Conn, port int32, keys pki.Bundle) *rest.Config {
	address := net.JoinHostPort(loopback, strconv.Itoa(int(port)))
	return &rest.Config{
		Host: "https://" + address,
		Transport: utilnet.SetTransportDefaults(&http.Transport{
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx, "tcp", address) },
			TLSClientConfig: trusting(keys[plan.AuthorityCluster], keys[plan.LeafAdmin]),
		}),
		QPS: -1, Timeout: 30 * time.Second,
	}
}

// api returns the administrator's client configuration for the first ready API server of the
// cluster. If none is ready, it returns an error.
//
// A run first retries for settleTime if the cause may be transient, such as an election of etcd.
// Otherwise the step that needs the API server would fail and use up an attempt. A plan (r.rec is
// nil) does not wait. api never waits for API servers whose hosts were not reached or that do not
// run.
func (r *run) api(ctx context.Context) (*rest.Config, error) {
	var until time.Time
	if r.rec != nil {
		until = time.Now().Add(r.settleTime())
	}
	for {
		cfg, passes, err := r.askAPIs(ctx)
		if err == nil || !passes || time.Now().After(until) || ctx.Err() != nil {
			return cfg, err
		}
		if e := pause(ctx); e != nil {
			return nil, errors.Join(e, err)
		}
	}
}

// askAPIs asks the API servers of the cluster one after another, and returns the client
// configuration of the first that is ready. If none is ready, it returns an error. passes then
// reports whether a retry may succeed. An API server with the data of another cluster ends the
// search with a foreignDataError. askAPIs may set KubeSystemUID in r.state, see recognize.
func (r *run) askAPIs(ctx context.Context) (cfg *rest.Config, passes bool, err error) {
	var errs []error
	for _, name := range r.roles[clusterv1alpha1.RoleControlPlane] {
		if r.conns[name] == nil {
			errs = append(errs, fmt.Errorf("host %s was not reached", name))
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
		cfg, err := r.readyAPI(ctx, name)
		if err == nil {
			err = r.recognize(ctx, cfg)
		}
		cancel()
		if err == nil {
			return cfg, false, nil
		}
		if foreign, ok := errors.AsType[*foreignDataError](err); ok {
			return nil, false, fmt.Errorf("host %s: %w", name, foreign)
		}
		health, why := judge(err)
		passes = passes || health == safety.Unknown
		errs = append(errs, fmt.Errorf("host %s: %s", name, why))
	}
	return nil, passes, fmt.Errorf("no API server of cluster %s answers: %w", r.Cluster, errors.Join(errs...))
}

// readyAPI asks /readyz of the API server on a host, and returns the client configuration for that
// server. It returns an error if the server is not ready: a notReadyError if the server names
// failed checks. The configuration may be set together with an error. The host must have been
// reached.
func (r *run) readyAPI(ctx context.Context, name string) (*rest.Config, error) {
	connect := r.Connect
	if connect == nil {
		connect = through
	}
	cfg := connect(r.conns[name].current(), r.spec.ControlPlaneEndpoint.Port, r.keys)
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	_, err = cs.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if failing := failingChecks(err); len(failing) > 0 {
		return cfg, &notReadyError{failing}
	}
	return cfg, err
}

// notReadyError means that an API server answers and is not ready. It has the names of the failed
// checks of /readyz, or of the missing namespace.
type notReadyError struct{ failing []string }

// Error lists the checks that failed.
func (e *notReadyError) Error() string { return "not ready: " + strings.Join(e.failing, ", ") }

// failingChecks returns the names of the checks that /readyz reports as failed, from the error of a
// request to it. It returns nil for nil and for errors that name no checks.
func failingChecks(err error) []string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return nil
	}
	var names []string
	for _, cause := range status.ErrStatus.Details.Causes {
		for line := range strings.Lines(cause.Message) {
			if rest, failed := strings.CutPrefix(line, "[-]"); failed {
				name, _, _ := strings.Cut(rest, " ")
				names = append(names, name)
			}
		}
	}
	return names
}

// clientset returns a client for a ready API server of the cluster. Like api, it waits in a run if
// the cause of a failure may be transient. If no API server is ready, it returns an error.
func (r *run) clientset(ctx context.Context) (kubernetes.Interface, error) {
	cfg, err := r.api(ctx)
	if err != nil {
		return nil, err
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster %s: %w", r.Cluster, err)
	}
	return cs, nil
}

// objects applies the objects of the cluster (r.groups), and hands out its kubeconfig. converge
// runs it beside the rollout of the hosts. It waits for apiReady, which is closed when an API
// server answers. After rolled is closed at the end of the rollout, it waits until the Nodes and
// the objects are ready. Earlier it does not wait for Nodes, because a rollout may pause for longer
// than nodeTimeout. If ctx ends during one of these waits, it returns the cause.
func (r *run) objects(ctx context.Context, apiReady, rolled <-chan struct{}) error {
	select {
	case <-apiReady:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.rec.checkpoint(); err != nil {
		return err
	}
	cfg, err := r.api(ctx)
	if err != nil {
		return err
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("connect to cluster %s: %w", r.Cluster, err)
	}
	early, late := split(r.groups)
	if err := r.within(ctx, func(ctx context.Context) error {
		if err := r.apply(ctx, early); err != nil {
			return err
		}
		return r.do(ctx, plan.WriteKubeconfig(r.plan.Endpoint))
	}); err != nil {
		return err
	}
	select {
	case <-rolled:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return r.within(ctx, func(ctx context.Context) error { return r.complete(ctx, cfg, cs, early, late) })
}

// within calls f, which works on the cluster through its API server, and returns the error of f.
// The context of f ends after objectsTimeout. It also ends when the Operation is paused or
// canceled, with ErrPaused or ErrCanceled as its cause.
func (r *run) within(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, objectsTimeout, fmt.Errorf("the cluster is not ready after %s", objectsTimeout))
	defer stop()
	ctx, end := r.rec.wait(ctx)
	defer end(nil)
	return f(ctx)
}

// complete does the work on objects that follows the rollout. It waits for the Nodes and for the
// early groups of objects, and applies the late groups. Then it deletes objects that no group has
// any more, and waits for the late groups. It returns the first error.
func (r *run) complete(ctx context.Context, cfg *rest.Config, cs kubernetes.Interface, early, late []addon.Group) error {
	if err := r.settle(ctx, cs); err != nil {
		return err
	}
	if err := r.ready(ctx, cfg, early); err != nil {
		return err
	}
	if err := r.apply(ctx, late); err != nil {
		return err
	}
	if err := r.rec.do("objects/prune", func() (bool, error) {
		removed, err := addon.Prune(ctx, cfg, r.groups)
		return len(removed) > 0, err
	}); err != nil {
		return fmt.Errorf("remove objects that do not belong in the cluster any more: %w", err)
	}
	return r.ready(ctx, cfg, late)
}

// split divides the groups of objects, in their order. early has the bootstrap objects and the
// network, and late has all others. The network is early because the kubelet retries a pod that
// started before the network only after a delay.
func split(groups []addon.Group) (early, late []addon.Group) {
	for _, g := range groups {
		if g.Name == addon.GroupBootstrap || g.Name == addon.GroupNetwork {
			early = append(early, g)
		} else {
			late = append(late, g)
		}
	}
	return early, late
}

// apply applies groups of objects, one after another, and records each as a step of the cluster. If
// the Operation is paused or canceled, it stops between two groups and returns ErrPaused or
// ErrCanceled.
func (r *run) apply(ctx context.Context, groups []addon.Group) error {
	for _, g := range groups {
		if err := r.rec.checkpoint(); err != nil {
			return err
		}
		if err := r.do(ctx, plan.ApplyObjects(g.Planned(r.spec.Registry))); err != nil {
			return fmt.Errorf("apply the objects of %s: %w", g.Name, err)
		}
	}
	return nil
}

// ready waits until the workloads of the groups of objects are ready. The end of ctx is an error.
// Groups without readiness checks are skipped. ready returns at once if the spec names no network
// plugin (plan.NetworkNone), because no pod becomes ready until the user installs one. A run that
// removes hosts waits only for groups in which it has changed an object.
func (r *run) ready(ctx context.Context, cfg *rest.Config, groups []addon.Group) error {
	if r.spec.Network.Plugin == plan.NetworkNone {
		return nil
	}
	for _, g := range groups {
		if len(g.ReadinessChecks) == 0 || r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode && !r.applied[g.Name] {
			continue
		}
		if err := r.rec.do("ready/"+g.Name, func() (bool, error) { return false, addon.Ready(ctx, cfg, g) }); err != nil {
			return fmt.Errorf("wait for %s: %w", g.Name, err)
		}
	}
	return nil
}

// settle waits until the Nodes are registered, sets their labels and taints, and waits until they
// are ready. The last wait is skipped if the spec names no network plugin (plan.NetworkNone),
// because the user then installs the network.
func (r *run) settle(ctx context.Context, cs kubernetes.Interface) error {
	if err := r.rec.do("nodes/registered", func() (bool, error) { return r.settleNodes(ctx, cs) }); err != nil {
		return err
	}
	if r.spec.Network.Plugin == plan.NetworkNone {
		return nil
	}
	return r.rec.do("nodes/ready", func() (bool, error) { return false, r.nodesReady(ctx, cs) })
}

// content lists everything from external sources that the plan uses: the files in r.plan, the
// objects in r.groups, and the images that hosts pull for them. Changes show the list to the user.
func (r *run) content(in plan.Input) plan.Content {
	c := plan.Content{Files: r.plan.Blobs}
	for _, name := range sortedKeys(in.Images) {
		c.Images = append(c.Images, plan.Image{Reference: in.Images[name], For: "sandbox"})
	}
	for _, g := range r.groups {
		c.Objects = append(c.Objects, g.Planned(r.spec.Registry))
		for _, image := range g.Images() {
			c.Images = append(c.Images, plan.Image{Reference: image, For: g.Name})
		}
	}
	return c
}

// makeGroups renders the objects of the cluster and returns them in groups that are applied
// together. It reads charts and manifests, also from URLs. The run keeps the result in r.groups, so
// it applies exactly the objects of the plan. r.plan must be set.
func (r *run) makeGroups(ctx context.Context) ([]addon.Group, error) {
	images := map[string]string{}
	for _, name := range []string{"coredns", "flannel", "flannel-cni-plugin"} {
		image, err := r.Catalog.Image(r.spec.Kubernetes.Version, name)
		if err != nil {
			return nil, err
		}
		images[name] = image
	}
	in := addon.Input{
		Name: r.Cluster, Spec: r.spec, Images: images, Fetch: r.Env.Fetch, Nodes: len(r.nodeHosts()), Local: r.Local,
		APIServer: localAPIServer(r.spec), Endpoint: strings.TrimPrefix(r.plan.Endpoint, "https://"),
		CA: r.keys[plan.AuthorityCluster].Cert,
	}
	for _, h := range r.plan.Hosts {
		if slices.Contains(h.Roles, clusterv1alpha1.RoleControlPlane) {
			in.ControlPlanes = append(in.ControlPlanes, h.Address)
		}
	}
	if p := r.spec.Network.Plugin; p != plan.NetworkNone && p != plan.NetworkFlannel {
		plugin, err := r.Catalog.Plugin(r.spec.Kubernetes.Version, p)
		if err != nil {
			return nil, err
		}
		in.Plugin = plugin
	}
	return addon.Objects(ctx, in)
}

// nodeHosts returns the hosts of r.plan that run a kubelet, and so have a Node.
func (r *run) nodeHosts() []plan.Host {
	return slices.DeleteFunc(slices.Clone(r.plan.Hosts), func(h plan.Host) bool { return len(stepsOf(h, plan.StageNode)) == 0 })
}

// settleNodes waits, at most nodeTimeout, until the kubelets of the reached hosts have registered
// their Nodes. A run that removes hosts waits only for the hosts that it changes. settleNodes sets
// the labels and taints that a kubelet must not set on its own Node. changed is true if a Node had
// to be changed. Failed lists of Nodes are retried, and a timeout is an error.
func (r *run) settleNodes(ctx context.Context, cs kubernetes.Interface) (changed bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeTimeout, fmt.Errorf("not there after %s; see the log of orrery-kubelet on the host", nodeTimeout))
	defer cancel()
	want := map[string]plan.Node{}
	for _, h := range r.nodeHosts() {
		if r.conns[h.Name] != nil {
			want[h.Name] = h.Node
		}
	}
	for {
		nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil {
			for _, n := range nodes.Items {
				node, ok := want[n.Name]
				if !ok {
					continue
				}
				delete(want, n.Name)
				if len(nodePatch(&n, node)) == 0 {
					continue
				}
				if err := r.do(ctx, plan.SettleNode(n.Name, node)); err != nil {
					return true, err
				}
				changed = true
			}
		}
		awaited := slices.DeleteFunc(sortedKeys(want), func(name string) bool { return !r.waitsFor(name) })
		if len(want) == 0 || err == nil && len(awaited) == 0 {
			return changed, nil
		}
		if e := pause(ctx); e != nil {
			return changed, fmt.Errorf("nodes %v: %w", awaited, errors.Join(e, err))
		}
	}
}

// settleNode patches the labels and the control plane taint of a Node that differ from want.
// changed is true if it has patched the Node. A Node that does not exist is no error and no change.
func settleNode(ctx context.Context, cs kubernetes.Interface, name string, want plan.Node) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := getNode(ctx, cs, name)
		if n == nil || err != nil {
			return err
		}
		patch := nodePatch(n, want)
		if len(patch) == 0 {
			return nil
		}
		content, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("node %s: marshal patch: %w", name, err)
		}
		_, err = cs.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, content, metav1.PatchOptions{FieldManager: addon.FieldManager})
		changed = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("label node %s: %w", name, err)
	}
	return changed, nil
}

// nodePatch returns the merge patch that gives a Node the labels in want, labelsAnnotation, and the
// taint of dedicated control planes. It is empty if the Node has them already. Labels that Orrery
// did not set, and other taints, stay. A patch of the taints has the resourceVersion, so it fails
// with a conflict if the Node has changed since.
func nodePatch(n *corev1.Node, want plan.Node) map[string]any {
	metadata := labelsPatch(n, want.Labels)
	isOurs := func(t corev1.Taint) bool {
		return t.Key == plan.ControlPlaneTaint && t.Effect == corev1.TaintEffectNoSchedule
	}
	patch := map[string]any{}
	if has := slices.ContainsFunc(n.Spec.Taints, isOurs); has != want.Dedicated {
		taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), isOurs)
		if want.Dedicated {
			taints = append(taints, corev1.Taint{Key: plan.ControlPlaneTaint, Effect: corev1.TaintEffectNoSchedule})
		}
		patch["spec"] = map[string]any{"taints": taints}
		metadata["resourceVersion"] = n.ResourceVersion // the patch replaces the whole list of taints
	}
	if len(metadata) > 0 {
		patch["metadata"] = metadata
	}
	return patch
}

// nodesReady waits until the Nodes of the reached hosts are ready. A run that removes hosts waits
// only for the hosts that it changes. After nodeTimeout it returns an error that names the Nodes
// which are not ready. Failed lists of Nodes are retried.
func (r *run) nodesReady(ctx context.Context, cs kubernetes.Interface) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeTimeout, fmt.Errorf("not ready after %s", nodeTimeout))
	defer cancel()
	var last error
	for {
		waiting := map[string]string{}
		for _, h := range r.nodeHosts() {
			if r.conns[h.Name] != nil && r.waitsFor(h.Name) {
				waiting[h.Name] = "no status yet"
			}
		}
		nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil {
			for _, n := range nodes.Items {
				for _, c := range n.Status.Conditions {
					switch {
					case c.Type != corev1.NodeReady:
					case c.Status == corev1.ConditionTrue:
						delete(waiting, n.Name)
					case waiting[n.Name] != "":
						waiting[n.Name] = c.Message
					}
				}
			}
			if len(waiting) == 0 {
				return nil
			}
			last = fmt.Errorf("nodes are not ready: %v; see the log of orrery-kubelet on the host", waiting)
		} else if ctx.Err() == nil {
			last = err
		}
		if e := pause(ctx); e != nil {
			return errors.Join(e, last)
		}
	}
}

// pause waits for pollEvery and returns nil. If ctx ends earlier, pause returns the cause at once.
// It is the delay in loops that poll an API server or etcd.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollEvery):
		return nil
	}
}

// kubeconfig returns the administrator's kubeconfig for the cluster's endpoint, as YAML.
func (r *run) kubeconfig() ([]byte, error) {
	return plan.Kubeconfig(r.spec.Kubernetes.ClusterName, r.plan.Endpoint, "kubernetes-admin", r.keys[plan.AuthorityCluster].Cert, r.keys[plan.LeafAdmin])
}

// localAPIServer returns the host:port at which pods on the network of a host reach an API server
// before Services work. It is the control plane address of the spec, or the load balancer on the
// host if the spec has none.
func localAPIServer(spec *clusterv1alpha1.Provision) string {
	if a := spec.ControlPlaneEndpoint.Address; a != "" {
		return net.JoinHostPort(a, strconv.Itoa(int(spec.ControlPlaneEndpoint.Port)))
	}
	return plan.LoadBalancer
}
