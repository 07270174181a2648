package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
)

// Reasons why a copy in a member is an orphan: nothing on the hub refers to it any more.
const (
	// orphanNoBinding, "NoBinding": the hub does not have the binding that placed the copy.
	orphanNoBinding = "NoBinding"
	// orphanEarlierJoin, "EarlierJoin": the copy was placed when the cluster was joined before, and
	// its binding does not place it there any more.
	orphanEarlierJoin = "EarlierJoin"
	// orphanLeftAtUnjoin, "LeftAtUnjoin": the copy stayed when the cluster was unjoined. The cluster
	// has joined again, and the hub has no template for the copy.
	orphanLeftAtUnjoin = "LeftAtUnjoin"
)

// orphan is a copy in a member to which nothing on the hub refers: a row of "orrery cluster
// orphans". findOrphans makes it.
type orphan struct {
	Cluster   string `json:"cluster"`
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Reason    string `json:"reason"`

	UID types.UID `json:"uid"`
	// ResourceVersion is the version of the object in its cluster.
	ResourceVersion string `json:"resourceVersion"`

	kind   string // kind of the type
	before bool   // the object existed in the cluster before the hub placed it
}

// String returns CLUSTER/RESOURCE.GROUP/NAMESPACE/NAME, without the namespace for a
// cluster-scoped object.
func (o *orphan) String() string {
	return strings.Join(o.parts(), "/")
}

// parts returns the cluster, RESOURCE.GROUP, namespace and name of the orphan, without the
// namespace if there is none.
func (o *orphan) parts() []string {
	resource := schema.GroupResource{Group: o.Group, Resource: o.Resource}.String()
	return slices.DeleteFunc([]string{o.Cluster, resource, o.Namespace, o.Name}, func(s string) bool { return s == "" })
}

// placedOnHub is what the hub says about placements, as readPlaced has read it: its Clusters and
// bindings, and how it recognizes its own copies.
type placedOnHub struct {
	// clusters has the UID of each Cluster by its name.
	clusters map[string]types.UID
	// bindings has the names of the clusters of each binding by its UID, also those from which copies
	// are being removed.
	bindings map[types.UID]map[string]bool
	// templates that have a binding.
	templates map[binding.Template]bool
	// hub is the ID of the hub; see hubID.
	hub string
	// key verifies the signed annotations of copies. Copies of another hub in the same cluster fail
	// that, and are no orphans.
	key mark.Key
}

// readPlaced requests from the hub which clusters it has and what it has placed. It adds a warning
// to unseen for each cluster with unknown types. The caller needs the right to read the Secret
// whose key verifies the marks of copies.
func readPlaced(ctx context.Context, c client.Client, unseen *missed) (*placedOnHub, error) {
	var clusters clusterv1alpha1.ClusterList
	if err := c.List(ctx, &clusters); err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	unseen.clusters(clusters.Items)
	bindings, err := listBindings(ctx, c)
	if err != nil {
		return nil, err
	}
	var key corev1.Secret
	name := types.NamespacedName{Namespace: clusterv1alpha1.SecretNamespace, Name: mark.KeySecret}
	if err := c.Get(ctx, name, &key); err != nil {
		return nil, fmt.Errorf("read secret %s, by which the hub knows its own copies: %w", name, err)
	}
	hub, err := hubID(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &placedOnHub{
		clusters: map[string]types.UID{}, bindings: map[types.UID]map[string]bool{}, templates: map[binding.Template]bool{},
		hub: hub, key: key.Data[mark.KeyField],
	}
	for i := range clusters.Items {
		p.clusters[clusters.Items[i].Name] = clusters.Items[i].UID
	}
	for _, b := range bindings {
		named := map[string]bool{}
		for _, target := range b.Spec.Clusters {
			named[target.Name] = true
		}
		for _, task := range b.Spec.GracefulEvictionTasks {
			named[task.FromCluster] = true
		}
		p.bindings[b.UID] = named
		p.templates[binding.TemplateOf(b)] = true
	}
	return p, nil
}

// orphaned returns why an object in a cluster is an orphan, orphanNoBinding or orphanEarlierJoin;
// "" if it is none. An object that a controller created from a copy has the labels of the copy and
// is no orphan. Copies of another hub are none either.
func (p *placedOnHub) orphaned(cluster string, o metav1.Object) string {
	if metav1.GetControllerOf(o) != nil {
		return ""
	}
	source, err := p.key.Verify(o.GetAnnotations()[workv1alpha2.SourceAnnotation])
	if err != nil {
		return "" // a copy of another hub, or an object that only has the label of a copy
	}
	named, known := p.bindings[types.UID(o.GetLabels()[workv1alpha2.BindingLabel])]
	switch {
	case !known:
		return orphanNoBinding
	case source.Cluster != p.clusters[cluster] && !named[cluster]:
		return orphanEarlierJoin
	default:
		return ""
	}
}

// findOrphans searches the whole fleet for copies of the hub, and returns the orphans in a cluster,
// sorted; "": in all clusters. The error names the types that could not be read. found then has the
// orphans of the other types, and is nil only if nothing could be examined. warnings name clusters
// and types for which the fleet has no data.
func findOrphans(ctx context.Context, cfg *rest.Config, c client.Client, cluster string) (found []orphan, warnings []string, _ error) {
	unseen := &missed{}
	fleet := rest.CopyConfig(cfg)
	fleet.Host = strings.TrimSuffix(cfg.Host, "/") + fleetv1alpha1.FleetPath
	fleet.WarningHandlerWithContext = unseen
	served, err := discovery.NewDiscoveryClientForConfig(fleet)
	if err != nil {
		return nil, nil, fmt.Errorf("reach the fleet: %w", err)
	}
	objects, err := metadata.NewForConfig(fleet)
	if err != nil {
		return nil, nil, fmt.Errorf("reach the fleet: %w", err)
	}
	// Copies are read first: a binding that is created meanwhile is then known, and its copies
	// are no orphans.
	lists, problem := served.ServerPreferredResources()
	var copies []copied
	var unlisted leftOut
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, nil, fmt.Errorf("read the fleet's types: %w", err)
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || measures(gv.Group) {
				continue
			}
			for _, options := range marked() {
				found, err := listCopies(ctx, objects, gv.WithResource(r.Name), r.Kind, options)
				copies = append(copies, found...)
				if err == nil {
					continue
				}
				if !unlisted.take(schema.GroupResource{Group: gv.Group, Resource: r.Name}, err) {
					problem = errors.Join(problem, err)
				}
				break // the second list of the type would fail in the same way
			}
		}
	}
	placed, err := readPlaced(ctx, c, unseen)
	if err != nil {
		return nil, nil, err
	}
	templates, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("reach the hub: %w", err)
	}
	found = make([]orphan, 0)
	for i := range copies {
		o := &copies[i]
		in := o.Annotations[fleetv1alpha1.ClusterAnnotation]
		if cluster != "" && in != cluster {
			continue
		}
		reason := placed.orphaned(in, o)
		if reason == "" && placed.leftAtUnjoin(in, o) {
			there, err := hasTemplate(ctx, templates, c.RESTMapper(), o)
			problem = errors.Join(problem, err)
			if err == nil && !there {
				reason = orphanLeftAtUnjoin
			}
		}
		if reason == "" {
			continue
		}
		found = append(found, orphan{
			Cluster: in, Group: o.resource.Group, Version: o.resource.Version, Resource: o.resource.Resource,
			Namespace: o.Namespace, Name: o.Name, Reason: reason, UID: o.UID,
			// In the list, the resourceVersion is one of the fleet.
			ResourceVersion: o.Annotations[fleetv1alpha1.ResourceVersionAnnotation],
			kind:            o.kind, before: o.Annotations[workv1alpha2.OriginAnnotation] != "",
		})
	}
	slices.SortFunc(found, func(a, b orphan) int { return cmp.Compare(a.String(), b.String()) })
	return found, unseen.about(cluster, placed), errors.Join(problem, unlisted.err())
}

// remove deletes the orphan in its cluster, with the caller's rights there, and its dependents in
// the background. It deletes nothing and returns an error if the orphan must stay or has changed
// since it was listed. If the object does not exist any more, that is no error.
func (o *orphan) remove(ctx context.Context, cfg *rest.Config) error {
	if why := o.stays(); why != "" {
		return fmt.Errorf("%s stays: %s", o, why)
	}
	through := rest.CopyConfig(cfg)
	through.Host = strings.TrimSuffix(cfg.Host, "/") + fleetv1alpha1.ClustersPath + "/" + o.Cluster + "/proxy"
	c, err := dynamic.NewForConfig(through)
	if err != nil {
		return fmt.Errorf("reach cluster %s: %w", o.Cluster, err)
	}
	background := metav1.DeletePropagationBackground
	err = c.Resource(schema.GroupVersionResource{Group: o.Group, Version: o.Version, Resource: o.Resource}).Namespace(o.Namespace).
		Delete(ctx, o.Name, metav1.DeleteOptions{
			PropagationPolicy: &background,
			Preconditions:     &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion},
		})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", o, err)
	}
	return nil
}

func newOrphans(s streams, f *hubFlags) *cobra.Command {
	var (
		output      string
		remove, yes bool
	)
	cmd := &cobra.Command{
		Use:   "orphans [CLUSTER]",
		Short: "List copies in clusters that no template of the hub has any more",
		Long: `List objects in members that carry the mark of a placement by this hub, and whose binding the hub
does not have (NoBinding), or that were placed when the cluster was joined before and are placed
there no more (EarlierJoin); and what was left when the cluster was unjoined, and has no template
on the hub (LeftAtUnjoin). The hub leaves them alone. They are taken up when their template is made
again, with a policy that places it there, also by "orrery promote"; --remove deletes them instead,
after it has asked, unless they have changed since. It deletes no Namespace and no
CustomResourceDefinition, with which everything in them would go, and nothing that was in the
cluster before the hub placed it.

Clusters and types that could not be looked at are named on standard error, with the reason; the
exit code stays 0. An answer without such a warning is complete.`,
		Args:              atMostOneName,
		ValidArgsFunction: f.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			cfg, c, err := f.client(ctx)
			if err != nil {
				return err
			}
			cluster := ""
			if len(args) > 0 {
				cluster = args[0]
				if err := c.Get(ctx, types.NamespacedName{Name: cluster}, &clusterv1alpha1.Cluster{}); err != nil {
					return fmt.Errorf("get cluster %s: %w", cluster, err)
				}
			}
			found, warnings, problem := findOrphans(ctx, cfg, c, cluster)
			if found == nil {
				return problem
			}
			if err := s.warnOf(warnings); err != nil {
				return err
			}
			whole := len(warnings) == 0 && problem == nil
			if err := printValue(s.out, output, found, func(w io.Writer) error { return printOrphans(streams{out: w, err: s.err}, output, found, whole) }); err != nil {
				return err
			}
			if problem != nil || !remove || len(found) == 0 {
				return problem
			}
			if !yes {
				if !s.interactive() {
					return usageError{errors.New("--remove asks before it deletes, and nobody is there to answer; add --yes")}
				}
				if err := s.confirm(ctx, fmt.Sprintf("Delete these %d objects in their clusters?", len(found))); err != nil {
					return err
				}
			}
			var failed error
			for i := range found {
				failed = errors.Join(failed, found[i].remove(ctx, cfg))
			}
			return failed
		},
	}
	addOutput(cmd, &output, outputName)
	cmd.Flags().BoolVar(&remove, "remove", false, "delete what is listed, after asking")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// printOrphans prints orphans as a table, or one per line for the output name. If whole is false, a
// part of the fleet could not be read, and the text for an empty list says so.
func printOrphans(s streams, output string, found []orphan, whole bool) error {
	w := s.out
	if output == outputName {
		lines := scriptLines{out: w, err: s.err}
		for i := range found {
			if err := lines.add(found[i].String(), found[i].parts()...); err != nil {
				return err
			}
		}
		return lines.problem()
	}
	switch {
	case len(found) == 0 && !whole:
		return say(w, "No orphans in what could be looked at.\n")
	case len(found) == 0:
		return say(w, "No orphans.\n")
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "CLUSTER\tRESOURCE\tNAMESPACE\tNAME\tREASON") //nolint:errcheck // Flush returns the error
	for i := range found {
		o := &found[i]
		resource := schema.GroupResource{Group: o.Group, Resource: o.Resource}
		_ = say(t, "%s\t%s\t%s\t%s\t%s\n", o.Cluster, resource.String(), cmp.Or(o.Namespace, "-"), o.Name, o.Reason)
	}
	return t.Flush()
}
