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
	"orrery.dev/orrery/internal/lifecycle/gate"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

const (
	// nodeTimeout is how long nodes may take to register and to become ready. gateTimeout is the same
	// for the objects of the cluster.
	nodeTimeout = 5 * time.Minute
	gateTimeout = 10 * time.Minute
	// pollEvery is the interval between two checks while the run waits for an API server or etcd.
	pollEvery = 250 * time.Millisecond
)

// through returns the client configuration for the API server on a host. The client connects
// through the connection to the host, so it works behind a bastion and before any load balancer
// runs.
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

// api returns the client configuration of an API server that is ready. A run waits up to settleTime
// if the cause is transient, for instance an election of etcd. Otherwise the step would fail and
// use up an attempt. A plan (without recorder) does not wait. Nobody waits for an API server that
// cannot be reached or does not run.
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

// askAPIs asks one API server after the other until one is ready. If none is ready, passes reports
// whether the cause may be transient. No API server with the data of another cluster is returned.
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
		passes = passes || health == gate.Unknown
		errs = append(errs, fmt.Errorf("host %s: %s", name, why))
	}
	return nil, passes, fmt.Errorf("no API server of cluster %s answers: %w", r.Cluster, errors.Join(errs...))
}

// readyAPI returns the client configuration of the API server on a host, and an error if the server
// is not ready: a notReadyError if the server answered. The host must have been reached.
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

// notReadyError is the answer of an API server that is not ready, with the names of failed checks.
type notReadyError struct{ failing []string }

// Error lists the checks that failed.
func (e *notReadyError) Error() string { return "not ready: " + strings.Join(e.failing, ", ") }

// failingChecks returns the names of the checks that an answer of /readyz marks as failed. It is
// empty for other errors.
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

// objects applies the objects of the cluster. It starts when an API server is ready. When all hosts
// are rolled out, it waits until the nodes and the objects are ready. Nodes are not awaited
// earlier, because a rollout may pause for longer than nodeTimeout.
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

// within runs f, which waits for the cluster. The context of f ends after gateTimeout, and when the
// Operation is paused or canceled.
func (r *run) within(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, gateTimeout, fmt.Errorf("the cluster is not ready after %s", gateTimeout))
	defer stop()
	ctx, end := r.rec.wait(ctx)
	defer end(nil)
	return f(ctx)
}

// complete waits for the nodes and the early groups, applies the late groups, prunes, and waits for
// the late groups.
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

// split separates the groups that are applied first: bootstrap objects and the network. The kubelet
// retries a pod that started before the network only after a delay.
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

// apply applies groups, one after the other. It stops between groups if the Operation is paused or
// canceled.
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

// ready waits until the workloads of groups are ready. Without a network no pod becomes ready, so
// ready does not wait if the user installs the network. A run that takes hosts out waits only for
// groups that it has changed.
func (r *run) ready(ctx context.Context, cfg *rest.Config, groups []addon.Group) error {
	if r.spec.Network.Plugin == plan.NetworkNone {
		return nil
	}
	for _, g := range groups {
		if len(g.Gates) == 0 || r.op.Spec.Action == lifecyclev1alpha1.ActionDeleteNode && !r.applied[g.Name] {
			continue
		}
		if err := r.rec.do("ready/"+g.Name, func() (bool, error) { return false, addon.Ready(ctx, cfg, g) }); err != nil {
			return fmt.Errorf("wait for %s: %w", g.Name, err)
		}
	}
	return nil
}

// settle waits until the nodes are registered and ready. It does not wait for ready nodes if the
// user installs the network.
func (r *run) settle(ctx context.Context, cs kubernetes.Interface) error {
	if err := r.rec.do("nodes/registered", func() (bool, error) { return r.settleNodes(ctx, cs) }); err != nil {
		return err
	}
	if r.spec.Network.Plugin == plan.NetworkNone {
		return nil
	}
	return r.rec.do("nodes/ready", func() (bool, error) { return false, r.nodesReady(ctx, cs) })
}

// content lists the files, images and objects that the plan refers to.
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

// makeGroups returns the objects of the cluster in groups. Charts and manifests are read once in a
// run, so the run applies what the plan shows.
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

// nodeHosts returns the hosts of the plan that run a kubelet.
func (r *run) nodeHosts() []plan.Host {
	return slices.DeleteFunc(slices.Clone(r.plan.Hosts), func(h plan.Host) bool { return len(stepsOf(h, plan.StageNode)) == 0 })
}

// settleNodes waits until the kubelets have registered their nodes, see waitsFor. It then sets the
// labels and taints that a kubelet must not set on its own node.
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

// settleNode patches the labels and taints of a node that differ from want. It does nothing if
// there is no such node.
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

// nodePatch returns the merge patch for the labels and for the control plane's taint. It is empty
// if the node is as wanted. Labels that Orrery did not set, and other taints of the node, stay.
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
		metadata["resourceVersion"] = n.ResourceVersion // the list of taints is replaced: no lost update
	}
	if len(metadata) > 0 {
		patch["metadata"] = metadata
	}
	return patch
}

// nodesReady waits until the nodes of the reached hosts are ready, see waitsFor. It waits at most
// nodeTimeout.
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

// pause waits for pollEvery. It returns the cause if ctx ends before.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollEvery):
		return nil
	}
}

// kubeconfig returns the administrator's kubeconfig for the cluster's endpoint.
func (r *run) kubeconfig() ([]byte, error) {
	return plan.Kubeconfig(r.spec.Kubernetes.ClusterName, r.plan.Endpoint, "kubernetes-admin", r.keys[plan.AuthorityCluster].Cert, r.keys[plan.LeafAdmin])
}

// localAPIServer returns the address at which programs on a host reach an API server before
// Services work.
func localAPIServer(spec *clusterv1alpha1.Provision) string {
	if a := spec.ControlPlaneEndpoint.Address; a != "" {
		return net.JoinHostPort(a, strconv.Itoa(int(spec.ControlPlaneEndpoint.Port)))
	}
	return plan.LoadBalancer
}
