// Package addon has everything in a cluster that is applied through its API server: bootstrap
// objects of the control plane, DNS, the network, and the add-ons of the spec.
//
// Objects turns a spec into groups of objects. It reads manifests and charts, but asks no API
// server. Apply, Ready, Prune and Observe work on a cluster. For each group, a ConfigMap in the
// cluster has an inventory of the applied objects. A second Apply therefore writes nothing. Objects
// that a group no longer has are found and removed, from any machine.
//
// A chart is rendered and applied as plain objects, without a release. Its install hooks are
// applied like other objects, before or after them and by weight, but not awaited. Other hooks are
// left out, so no test or clean-up job runs.
package addon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Input is everything from which Objects makes the objects of a cluster.
type Input struct {
	// Name of the cluster.
	Name string
	// Spec has its defaults and is valid.
	Spec *clusterv1alpha1.Provision
	// Images are the full references of images by name: coredns, flannel and flannel-cni-plugin.
	Images map[string]string
	// Plugin is the manifest or chart that the catalog has for the network plugin of the spec. It is
	// empty for flannel, which is built in, and for none.
	Plugin catalog.Plugin
	// Nodes is the number of nodes of the cluster.
	Nodes int
	// ControlPlanes are the internal addresses of the control plane hosts.
	ControlPlanes []string
	// Endpoint is host:port of the API server for clients outside of the cluster, and CA the PEM of
	// the authority of its certificate. If both are set, they are published in the ConfigMap
	// cluster-info.
	Endpoint string
	CA       []byte
	// APIServer is host:port at which pods on the host's network reach the API server before Services
	// work; "" leaves the default of the plugin.
	APIServer string
	// Fetch reads manifests, charts and indexes of repositories by URL.
	Fetch func(ctx context.Context, url string) ([]byte, error)
	// Local allows the spec to name files of this machine, not only URLs.
	Local bool
}

// Group is a set of objects that are applied together and have one inventory in the cluster.
type Group struct {
	// Name is bootstrap, dns, network, or the add-on's name after "addon-".
	Name string
	// Namespace for objects that name none.
	Namespace string
	// Objects in the order of applying. Apply nevertheless applies namespaces and custom resource
	// definitions first, and webhooks and API services last.
	Objects []*unstructured.Unstructured
	// ReadinessChecks are the readiness checks of the group.
	ReadinessChecks []ReadinessCheck
	// Sources say what the objects were made from, such as a chart with its digest.
	Sources []plan.Source
}

// Planned returns the group as a plan has it: its name, namespace and sources instead of its
// objects, and the private registry for its images.
func (g Group) Planned(registry clusterv1alpha1.Registry) plan.Objects {
	return plan.Objects{
		Group: g.Name, Namespace: g.Namespace, Sources: g.Sources,
		Registry: registry.PrivateRegistry, RegistryNamespace: registry.NamespaceOverride,
	}
}

// Images lists the references of the images in the workloads of a group, sorted and each once, with
// the private registry if there is one.
func (g Group) Images() []string {
	var images []string
	for _, o := range g.Objects {
		for _, c := range containersOf(o) {
			if image, ok := c["image"].(string); ok && image != "" {
				images = append(images, image)
			}
		}
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// ReadinessCheck says that Ready must wait for a workload of a group.
type ReadinessCheck struct {
	// Kind is Deployment, DaemonSet or StatefulSet.
	Kind string
	// Namespace is empty for the namespace of the group.
	Namespace string
	Name      string
	// Nodes is, for a DaemonSet, the minimum number of nodes on which its pods must be wanted.
	Nodes int
}

// Names of the groups. Those of add-ons begin with addonPrefix.
const (
	// GroupBootstrap is the name of the group with the objects that the control plane needs.
	GroupBootstrap = "bootstrap"
	// groupDNS is the name of the group with CoreDNS.
	groupDNS = "dns"
	// GroupNetwork is the name of the group with the network plugin.
	GroupNetwork = "network"
	// addonPrefix and the name of an add-on make the name of its group.
	addonPrefix = "addon-"
)

// Objects returns the groups of a cluster in the order of applying: bootstrap, dns, network and the
// add-ons of the spec. It reads manifests and charts through in.Fetch or from files. It sends no
// request to the cluster.
func Objects(ctx context.Context, in Input) ([]Group, error) {
	groups := make([]Group, 0, 3+len(in.Spec.Addons))
	bootstrap, err := bootstrapGroup(in)
	if err != nil {
		return nil, err
	}
	dns, err := dnsGroup(in)
	if err != nil {
		return nil, fmt.Errorf("make objects of DNS: %w", err)
	}
	groups = append(groups, bootstrap, dns)
	network, err := networkGroup(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("make objects of network plugin %s: %w", in.Spec.Network.Plugin, err)
	}
	if len(network.Objects) > 0 {
		groups = append(groups, network)
	}
	for i := range in.Spec.Addons {
		g, err := addonGroup(ctx, in, &in.Spec.Addons[i])
		if err != nil {
			return nil, fmt.Errorf("make objects of spec.provision.addons[%d] (%s): %w", i, in.Spec.Addons[i].Name, err)
		}
		groups = append(groups, g)
	}
	for i := range groups {
		if g := &groups[i]; len(g.Sources) == 0 {
			g.Sources = []plan.Source{{Kind: plan.SourceBuiltIn, Digest: digestOf(g.Objects)}}
		}
		finish(&groups[i], in.Spec.Registry)
	}
	if err := settle(groups); err != nil {
		return nil, err
	}
	return groups, nil
}

// addonGroup returns the group of an add-on in the spec, with the objects of its chart and
// manifests. It returns an error if there are none.
func addonGroup(ctx context.Context, in Input, a *clusterv1alpha1.Addon) (Group, error) {
	if problems := validation.IsDNS1123Label(a.Name); len(problems) > 0 {
		return Group{}, fmt.Errorf("name %q: %s", a.Name, problems[0])
	}
	g := Group{Name: addonPrefix + a.Name, Namespace: a.Namespace}
	if g.Namespace == "" {
		g.Namespace = metav1.NamespaceSystem
	}
	if a.Chart != nil {
		objects, source, err := chartObjects(ctx, in, release{name: a.Name, namespace: g.Namespace, chart: *a.Chart})
		if err != nil {
			return Group{}, err
		}
		g.Objects, g.Sources = objects, append(g.Sources, source)
	}
	for _, source := range a.YAML {
		objects, from, err := manifestObjects(ctx, in, source)
		if err != nil {
			return Group{}, err
		}
		g.Objects, g.Sources = append(g.Objects, objects...), append(g.Sources, from)
	}
	if len(g.Objects) == 0 {
		return Group{}, errors.New("there is no object in it: name a chart or yaml that has some")
	}
	return g, nil
}

// builtinNamespace reports whether every API server creates the namespace by itself.
func builtinNamespace(name string) bool {
	return name == metav1.NamespaceSystem || name == metav1.NamespaceDefault ||
		name == metav1.NamespacePublic || name == corev1.NamespaceNodeLease
}

// finish completes a group. It replaces images by those of the private registry, if there is one.
// It adds a readiness check for each workload that has none.
func finish(g *Group, registry clusterv1alpha1.Registry) {
	for _, o := range g.Objects {
		rewriteImages(o, registry)
		check := ReadinessCheck{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
		if !isWorkload(o) || slices.ContainsFunc(g.ReadinessChecks, func(had ReadinessCheck) bool {
			return had.Kind == check.Kind && had.Name == check.Name && had.Namespace == check.Namespace
		}) {
			continue
		}
		g.ReadinessChecks = append(g.ReadinessChecks, check)
	}
}

// settle makes each object belong to one group only. If several groups have an object in the same
// form, such as a shared namespace, only the first of them keeps it. Different forms, and an object
// that is twice in a group, are an error.
//
// settle also adds the namespace of each group where no group has it.
func settle(groups []Group) error {
	type owner struct {
		group  string
		object *unstructured.Unstructured
	}
	owners := map[ref]owner{}
	for i := range groups {
		g := &groups[i]
		var own []*unstructured.Unstructured
		for _, o := range g.Objects {
			r := refOf(o, g.Namespace)
			had, twice := owners[r]
			switch {
			case !twice:
				owners[r] = owner{g.Name, o}
				own = append(own, o)
			case had.group == g.Name:
				return fmt.Errorf("%s is in %s twice: leave one of them out", r, g.Name)
			case !equality.Semantic.DeepEqual(had.object.Object, o.Object):
				return fmt.Errorf("%s is in %s and, not the same, in %s: leave one of them out", r, had.group, g.Name)
			}
		}
		g.Objects = own
	}
	for i := range groups {
		g := &groups[i]
		r := ref{Kind: kindNamespace.Kind, Name: g.Namespace}
		if _, there := owners[r]; !there && !builtinNamespace(g.Namespace) {
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": g.Namespace},
			}}
			owners[r] = owner{g.Name, o}
			g.Objects = slices.Insert(g.Objects, 0, o)
		}
	}
	return nil
}

// hostPort splits the address of the API server, such as 127.0.0.1:7443.
func hostPort(address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("split address of the API server: %w", err)
	}
	return host, port, nil
}
