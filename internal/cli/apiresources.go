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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/served"
)

// servedReport is what the clusters of a fleet serve.
type servedReport struct {
	Clusters  []servedCluster    `json:"clusters"`
	Resources []*served.Resource `json:"resources"`
	Leaving   []leavingObject    `json:"leaving"`
}

// servedCluster is a cluster, and where its types are known from.
type servedCluster struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // of its Kubernetes
	// Problem is why it could not be asked, or not for all: other types are those that are mirrored, each in one version.
	Problem string `json:"problem,omitempty"`
	// Unknown are types that have versions that go, and of whose objects nothing is known: they are not mirrored.
	Unknown []string `json:"unknown,omitempty"`
}

// leavingObject is an object that somebody writes in a version of its API that a Kubernetes after its cluster's removes.
type leavingObject struct {
	Cluster     string   `json:"cluster"`
	Resource    string   `json:"resource"`
	Namespace   string   `json:"namespace,omitempty"`
	Name        string   `json:"name"`
	Version     string   `json:"version"`               // GROUP/VERSION
	RemovedIn   string   `json:"removedIn"`             // such as 1.37
	Replacement string   `json:"replacement,omitempty"` // GROUP/VERSION
	By          []string `json:"by,omitempty"`          // field managers; none: the cluster serves the type in no version that stays
}

func newAPIResources(s streams) *cobra.Command {
	var (
		f      hubFlags
		output string
		named  bool
	)
	cmd := &cobra.Command{
		Use:   "api-resources",
		Short: "List what the clusters serve, where they differ, and which objects use APIs that a coming Kubernetes removes",
		Long: `List the types that the clusters of the fleet serve, with their versions; types that some
clusters do not have, or have in other versions or scopes; and objects that somebody writes in
a version of their API that a Kubernetes after the cluster's own removes, by what Kubernetes
says of its types and by the managers of the objects' fields. Custom types announce no removal.

Each cluster is asked through the hub. Of one that does not answer it is told what is mirrored.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, c, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			var clusters clusterv1alpha1.ClusterList
			if err := c.List(cmd.Context(), &clusters); err != nil {
				return fmt.Errorf("list clusters: %w", err)
			}
			report, unlisted, err := whatIsServed(cmd.Context(), cfg, clusters.Items)
			if err != nil {
				return err
			}
			return errors.Join(printValue(s.out, output, report, func(w io.Writer) error { return printServed(w, report, named, unlisted == nil) }), unlisted)
		},
	}
	f.add(cmd)
	addOutput(cmd, &output)
	cmd.Flags().BoolVar(&named, "clusters", false, "name the clusters that serve each version, and those that do not have a type")
	return cmd
}

// whatIsServed asks each cluster. forbidden names the types whose objects the caller may not list.
func whatIsServed(ctx context.Context, cfg *rest.Config, clusters []clusterv1alpha1.Cluster) (report *servedReport, forbidden, err error) {
	var unlisted leftOut
	report = &servedReport{Clusters: []servedCluster{}, Leaving: []leavingObject{}}
	removals := served.Removals(scheme.Scheme)
	var all []served.Cluster
	for i := range clusters {
		at := servedCluster{Name: clusters[i].Name, Version: clusters[i].Status.KubernetesVersion}
		mirrored, err := typesBelow(cfg, fleetv1alpha1.FleetPath+"/clusters/"+at.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("ask the fleet what it has of cluster %s: %w", at.Name, err)
		}
		mirrored = slices.DeleteFunc(mirrored, func(t served.Type) bool { return t.Group == "clusterpedia.io" && t.Resource == "collectionresources" }) // the fleet's own
		types, err := typesBelow(cfg, fleetv1alpha1.ClustersPath+"/"+at.Name+"/proxy")
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case discovery.IsGroupDiscoveryFailedError(err): // the others are known
			at.Problem = err.Error()
			types = append(types, slices.DeleteFunc(slices.Clone(mirrored), func(t served.Type) bool {
				return slices.ContainsFunc(types, func(known served.Type) bool { return known.Group == t.Group })
			})...)
		case err != nil:
			at.Problem, types = withoutRequests(plain(err)), mirrored
		}
		is := served.Cluster{Name: at.Name, Types: types}
		if v, err := utilversion.ParseGeneric(at.Version); err == nil {
			is.Minor = int(v.Minor())
		}
		leaving, unknown, err := findLeaving(ctx, cfg, is, mirrored, removals, &unlisted)
		if err != nil {
			return nil, nil, err
		}
		at.Unknown = unknown
		report.Leaving = append(report.Leaving, leaving...)
		report.Clusters, all = append(report.Clusters, at), append(all, is)
	}
	report.Resources = served.Resources(all)
	return report, unlisted.err(), nil
}

// typesBelow are the types that are served below a path of the hub, in each of their versions. With an error of groups that could not be discovered it returns the
// types of all others.
func typesBelow(cfg *rest.Config, path string) ([]served.Type, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Host = strings.TrimSuffix(cfg.Host, "/") + path
	c, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	_, lists, partly := c.ServerGroupsAndResources()
	if partly != nil && !discovery.IsGroupDiscoveryFailedError(partly) {
		return nil, partly
	}
	var out []served.Type
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") {
				continue
			}
			out = append(out, served.Type{GroupVersionKind: gv.WithKind(r.Kind), Resource: r.Name, Namespaced: r.Namespaced})
		}
	}
	return out, partly
}

// findLeaving returns the objects of a cluster that are written in versions that go, and the types
// that have such and are not mirrored. unlisted takes those
// that the caller may not list.
func findLeaving(ctx context.Context, cfg *rest.Config, c served.Cluster, mirrored []served.Type, removals map[schema.GroupVersionKind]served.Removal, unlisted *leftOut) (
	found []leavingObject, unknown []string, err error,
) {
	if c.Minor == 0 {
		return nil, nil, nil // nothing was ever heard of it
	}
	below := rest.CopyConfig(cfg)
	below.Host = strings.TrimSuffix(cfg.Host, "/") + fleetv1alpha1.FleetPath + "/clusters/" + c.Name
	below.WarningHandler = rest.NoWarnings{} // the metadata is all that is asked for
	objects, err := metadata.NewForConfig(below)
	if err != nil {
		return nil, nil, err
	}
	done := map[schema.GroupResource]bool{}
	for _, t := range c.Types {
		gr := schema.GroupResource{Group: t.Group, Resource: t.Resource}
		leaving := served.Leaving(removals, t.GroupKind(), c.Minor)
		if done[gr] || len(leaving) == 0 {
			continue
		}
		done[gr] = true
		i := slices.IndexFunc(mirrored, func(m served.Type) bool { return m.Group == t.Group && m.Resource == t.Resource })
		if i < 0 {
			unknown = append(unknown, gr.String())
			continue
		}
		// Where no version stays, all objects go, whoever wrote them.
		stays := slices.ContainsFunc(c.Types, func(other served.Type) bool {
			_, goes := leaving[other.GroupVersion().String()]
			return other.Group == t.Group && other.Resource == t.Resource && !goes
		})
		options := metav1.ListOptions{Limit: 500}
		for {
			page, err := objects.Resource(mirrored[i].GroupVersion().WithResource(t.Resource)).List(ctx, options)
			if unlisted.take(gr, err) {
				break
			}
			if err != nil {
				return nil, nil, fmt.Errorf("list %s of cluster %s: %w", gr, c.Name, err)
			}
			for j := range page.Items {
				o := leavingObject{Cluster: c.Name, Resource: gr.String(), Namespace: page.Items[j].Namespace, Name: page.Items[j].Name}
				found = append(found, o.versions(page.Items[j].ManagedFields, leaving, mirrored[i].GroupVersion().String(), stays)...)
			}
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
	}
	return found, unknown, nil
}

// versions returns the object for each version that goes and in which somebody writes it; where none stays, for the one in which it is read.
func (o leavingObject) versions(managers []metav1.ManagedFieldsEntry, leaving map[string]served.Removal, read string, stays bool) (out []leavingObject) {
	add := func(version, by string) {
		i := slices.IndexFunc(out, func(known leavingObject) bool { return known.Version == version })
		if i < 0 {
			o := o
			o.Version, o.RemovedIn = version, fmt.Sprintf("1.%d", leaving[version].Minor)
			if r := leaving[version].Replacement; !r.Empty() {
				o.Replacement = r.GroupVersion().String()
			}
			i, out = len(out), append(out, o)
		}
		if by != "" && !slices.Contains(out[i].By, by) {
			out[i].By = append(out[i].By, by)
		}
	}
	for _, m := range managers {
		if _, goes := leaving[m.APIVersion]; goes {
			add(m.APIVersion, m.Manager)
		}
	}
	if _, goes := leaving[read]; goes && !stays {
		add(read, "")
	}
	return out
}

// printServed prints a report for people. Without whole there are types whose objects the caller
// may not list.
func printServed(w io.Writer, report *servedReport, named, whole bool) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tKIND\tVERSIONS\tNAMESPACED\tCLUSTERS\tCONFLICTS") //nolint:errcheck // Flush reports it
	for _, r := range report.Resources {
		versions, clusters := strings.Join(r.VersionNames(), ","), fmt.Sprintf("%d/%d", len(r.Clusters()), len(report.Clusters))
		if named {
			var each []string
			for _, v := range r.VersionNames() {
				each = append(each, v+" ("+strings.Join(r.Versions[v], ",")+")")
			}
			if versions = strings.Join(each, " "); len(r.Missing) > 0 {
				clusters += ", not " + strings.Join(r.Missing, ",")
			}
		}
		namespaced := "true"
		switch {
		case len(r.Namespaced) == 0:
			namespaced = "false"
		case len(r.ClusterScoped) > 0:
			namespaced = "in " + strings.Join(r.Namespaced, ",")
		}
		conflicts := make([]string, 0, len(r.Conflicts))
		for _, c := range r.Conflicts {
			conflicts = append(conflicts, string(c))
		}
		resource := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\n", resource, r.Kind, versions, namespaced, clusters, cmp.Or(strings.Join(conflicts, ","), "-"))
	}
	if len(report.Leaving) > 0 {
		fmt.Fprintln(t, "\nREMOVED IN\tVERSION\tCLUSTER\tNAMESPACE\tOBJECT\tWRITTEN BY\tUSE INSTEAD") //nolint:errcheck // as above
	}
	for _, o := range report.Leaving {
		// As above.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.RemovedIn, o.Version, o.Cluster, cmp.Or(o.Namespace, "-"), o.Resource+"/"+o.Name,
			cmp.Or(strings.Join(o.By, ","), "-"), cmp.Or(o.Replacement, "-"))
	}
	err := t.Flush()
	if len(report.Leaving) == 0 && whole {
		err = errors.Join(err, say(w, "\nNo object is known to be written in a version that a coming Kubernetes removes.\n"))
	}
	for _, c := range report.Clusters {
		if c.Problem != "" {
			err = errors.Join(err, say(w, "Cluster %s could not be asked for all, and what is missing is shown as it is mirrored, each type in one version: %s\n", c.Name, c.Problem))
		}
		if len(c.Unknown) > 0 {
			err = errors.Join(err, say(w, "Of cluster %s these are not mirrored, and have versions that go: %s\n", c.Name, strings.Join(c.Unknown, ", ")))
		}
	}
	return err
}
