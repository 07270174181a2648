package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/presence"
)

// observeHosts sets Presence in the facts of each reached host: what the cluster shows of its Node,
// of its etcd member, and of the data behind its API server. If a component does not answer, the
// part is Unknown, which is no error. For a cluster that is not built, it asks nothing, and all
// parts are Unknown. The only error is that of ctx. It may set KubeSystemUID in r.state, see
// recognize.
func (r *run) observeHosts(ctx context.Context) error {
	for name, f := range r.facts {
		f.Presence = plan.Presence{}
		r.facts[name] = f
	}
	if r.state.Applied == nil {
		return nil
	}
	qctx, cancel := context.WithTimeout(ctx, 2*etcdTimeout)
	defer cancel()
	var (
		group   errgroup.Group
		nodes   []string
		listed  bool
		members []*etcdserverpb.Member
		planes  = slices.DeleteFunc(slices.Clone(r.roles[clusterv1alpha1.RoleControlPlane]), func(name string) bool { return r.conns[name] == nil })
		data    = make([]plan.Presence, len(planes))
	)
	group.Go(func() error { members = r.listMembers(qctx); return nil })
	for i, name := range planes {
		group.Go(func() error { data[i] = r.observeData(qctx, name); return nil })
	}
	if len(planes) > 0 {
		group.Go(func() error { nodes, listed = r.listNodes(qctx); return nil })
	}
	_ = group.Wait() // no goroutine returns an error
	for name, f := range r.facts {
		if i := slices.Index(planes, name); i >= 0 {
			f.Presence = data[i]
		}
		if listed {
			f.Presence.Node = presenceOf(slices.Contains(nodes, name))
		}
		if members != nil && r.has(name, clusterv1alpha1.RoleEtcd) {
			m := r.memberOf(members, name)
			f.Presence.Member, f.Presence.Started = presenceOf(m != nil), m != nil && m.Name != ""
		}
		r.facts[name] = f
	}
	return ctx.Err()
}

// presenceOf returns presence.Present for true and presence.Absent for false.
func presenceOf(there bool) presence.Presence {
	if there {
		return presence.Present
	}
	return presence.Absent
}

// listMembers returns the list of etcd members if a majority of them confirms it, else nil. It asks
// all hosts with the role etcd at the same time. It returns nil for an external etcd.
func (r *run) listMembers(ctx context.Context) []*etcdserverpb.Member {
	if r.spec.Etcd.Type == plan.EtcdExternal {
		return nil
	}
	hosts := r.roles[clusterv1alpha1.RoleEtcd]
	answers := make([]etcdAnswer, len(hosts))
	var group errgroup.Group
	for i, name := range hosts {
		group.Go(func() error { answers[i] = r.askEtcd(ctx, name); return nil })
	}
	_ = group.Wait() // no goroutine returns an error
	for _, a := range answers {
		if a.list != nil {
			return a.list
		}
	}
	return nil
}

// listNodes returns the names of all Nodes. The API server reads them from etcd, because its cache
// may lack a new Node. ok is false if no API server answers.
func (r *run) listNodes(ctx context.Context) (names []string, ok bool) {
	cs, err := r.clientset(ctx)
	if err != nil {
		return nil, false
	}
	nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, false
	}
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	return names, true
}

// observeData asks the API server of a host whether it reads the data of this cluster. Data of the
// result is Present for this cluster. For the data of another cluster it is Absent, and Found says
// what was found. Data is Unknown if the API server does not answer within etcdTimeout. No other
// field is set.
func (r *run) observeData(ctx context.Context, name string) plan.Presence {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	cfg, err := r.readyAPI(ctx, name)
	if err == nil {
		err = r.recognize(ctx, cfg)
	}
	if foreign, ok := errors.AsType[*foreignDataError](err); ok {
		return plan.Presence{Data: presence.Absent, Found: foreign.found()}
	}
	if err != nil {
		return plan.Presence{}
	}
	return plan.Presence{Data: presence.Present}
}

// foreignDataError means that an API server reads the data of another cluster, or of none. uid is
// the UID of its namespace kube-system, or "" if it has no such namespace. want is the UID in the
// cluster.
type foreignDataError struct {
	cluster   string
	uid, want types.UID
}

// Error says which namespace kube-system was found, and what the user can do.
func (e *foreignDataError) Error() string {
	return fmt.Sprintf("its API server does not read the data of cluster %s: %s; nothing is written to it: see what etcd has there with %q",
		e.cluster, e.found(), "orrery cluster preflight")
}

// found returns a text for messages that compares the namespace kube-system of the API server with
// that of the cluster.
func (e *foreignDataError) found() string {
	if e.uid == "" {
		return fmt.Sprintf("it has no namespace kube-system, and that of the cluster has the UID %s", e.want)
	}
	return fmt.Sprintf("its namespace kube-system has the UID %s, and that of the cluster %s", e.uid, e.want)
}

// recognize checks that an API server reads the data of this cluster: the UID of its namespace
// kube-system must be that in r.state. Otherwise it returns a foreignDataError. If r.state has no
// UID, recognize sets the one that the API server shows, and does not save it. A missing namespace
// is then a notReadyError, because only a cluster that is just starting lacks kube-system.
// recognize takes r.identity.
func (r *run) recognize(ctx context.Context, cfg *rest.Config) error {
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	system, err := cs.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("read namespace %s: %w", metav1.NamespaceSystem, err)
	}
	if apierrors.IsNotFound(err) {
		system = &corev1.Namespace{}
	}
	r.identity.Lock()
	defer r.identity.Unlock()
	known := &r.state.KubeSystemUID
	switch {
	case *known == "" && system.UID == "":
		return &notReadyError{[]string{"namespace " + metav1.NamespaceSystem}}
	case *known == "":
		*known = system.UID
	case *known != system.UID:
		return &foreignDataError{cluster: r.Cluster, uid: system.UID, want: *known}
	}
	return nil
}

// lostData returns the findings about reached hosts whose etcd has lost its data, or whose API
// server reads the data of another cluster.
func (r *run) lostData() []plan.Finding {
	in := plan.Input{Name: r.Cluster, ID: r.state.ID, Spec: r.spec, Facts: r.facts, EtcdBootstrap: r.state.EtcdBootstrap, HasData: r.state.KubeSystemUID != ""}
	return slices.DeleteFunc(plan.Preflight(in), func(f plan.Finding) bool { return f.Check != plan.CheckData })
}

// hasData reports whether a host is not among the hosts in r.lost, whose etcd has lost its data.
func (r *run) hasData(name string) bool {
	return !slices.ContainsFunc(r.lost, func(f plan.Finding) bool { return f.Host == name })
}

// waitsFor reports whether the run waits until the Node of a host is registered and ready. A run
// that removes hosts waits only for the hosts that it changes, and other runs for all.
func (r *run) waitsFor(name string) bool {
	return r.op.Spec.Action != lifecyclev1alpha1.ActionDeleteNode || r.changing[name]
}
