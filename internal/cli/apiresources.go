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

// servedReport is the output of "orrery api-resources": the clusters, the types that they serve,
// and the objects that use a version which a later Kubernetes removes.
type servedReport struct {
	Clusters  []servedCluster    `json:"clusters"`
	Resources []*served.Resource `json:"resources"`
	Leaving   []leavingObject    `json:"leaving"`
}

// servedCluster is a row of servedReport: a cluster, its Kubernetes version, and what is not known
// of its types and objects.
type servedCluster struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // version of Kubernetes
	// Problem is why some or all types of the cluster could not be requested. The report then has the
	// types that the hub mirrors in their place, each in one version.
	Problem string `json:"problem,omitempty"`
	// Unknown has the types with versions that will be removed and whose objects are not mirrored, so
	// that it is unknown which objects are affected.
	Unknown []string `json:"unknown,omitempty"`
}

// leavingObject is an object that a client has written in a version of its API which a later
// Kubernetes than that of the cluster removes. There is one leavingObject for each such version of
// an object.
type leavingObject struct {
	Cluster     string `json:"cluster"`
	Resource    string `json:"resource"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name"`
	Version     string `json:"version"`               // GROUP/VERSION
	RemovedIn   string `json:"removedIn"`             // such as 1.37
	Replacement string `json:"replacement,omitempty"` // GROUP/VERSION
	// By has the field managers that wrote the object in this version. It is empty if no manager did,
	// but the cluster serves no version of the type that will remain.
	By []string `json:"by,omitempty"`
}

// newAPIResources returns the command "orrery api-resources".
func newAPIResources(s streams) *cobra.Command {
	var (
		f      hubFlags
		output string
		named  bool
	)
	cmd := &cobra.Command{
		Use:   "api-resources",
		Short: "List the API resources of all clusters, their differences, and the objects that use APIs which a later Kubernetes removes",
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

// whatIsServed makes the report for clusters. It requests the types of each cluster through the hub
// at cfg, and reads from the mirror the objects that use versions which will be removed. If a
// cluster does not answer, the report has its mirrored types and says so. forbidden is not nil if
// the caller may not list the objects of some types; the report then lacks these objects. With err
// there is no report.
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
		// The fleet adds this type, so no cluster serves it.
		mirrored = slices.DeleteFunc(mirrored, func(t served.Type) bool { return t.Group == "clusterpedia.io" && t.Resource == "collectionresources" })
		types, err := typesBelow(cfg, fleetv1alpha1.ClustersPath+"/"+at.Name+"/proxy")
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case discovery.IsGroupDiscoveryFailedError(err): // the other groups are known
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

// typesBelow returns the types that can be listed below a path of the hub, in all their versions.
// The path is that of a cluster or of its mirror. If the discovery of some groups fails, it returns
// the types of the others, and an error for which discovery.IsGroupDiscoveryFailedError is true.
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

// findLeaving returns the objects of the cluster c, from its mirror, that are written in a version
// which a later Kubernetes removes. mirrored has the mirrored types of c, removals the versions
// that Kubernetes will remove. unknown has the types with such versions that are not mirrored.
// Types that the caller may not list are added to unlisted, and their objects are missing. If the
// Kubernetes version of c is unknown, all results are nil.
func findLeaving(ctx context.Context, cfg *rest.Config, c served.Cluster, mirrored []served.Type, removals map[schema.GroupVersionKind]served.Removal, unlisted *leftOut) (
	found []leavingObject, unknown []string, err error,
) {
	if c.Minor == 0 {
		return nil, nil, nil // the cluster was never reached
	}
	below := rest.CopyConfig(cfg)
	below.Host = strings.TrimSuffix(cfg.Host, "/") + fleetv1alpha1.FleetPath + "/clusters/" + c.Name
	below.WarningHandler = rest.NoWarnings{} // the request is for metadata only
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
		// If no version remains, all objects are affected, with any field manager.
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

// versions returns o once for each version in leaving in which a field manager wrote the object. If
// stays is false, no version of the type remains in a later Kubernetes. Then it also returns o for
// read, the version in which the mirror has the object.
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

// printServed prints a report as tables. If named is true, it names the clusters that serve each
// version. If whole is false, the caller may not list some types, and it does not print that no
// object is affected.
func printServed(w io.Writer, report *servedReport, named, whole bool) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tKIND\tVERSIONS\tNAMESPACED\tCLUSTERS\tCONFLICTS") //nolint:errcheck // Flush returns the error
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
		fmt.Fprintln(t, "\nREMOVED IN\tVERSION\tCLUSTER\tNAMESPACE\tOBJECT\tWRITTEN BY\tUSE INSTEAD") //nolint:errcheck // Flush returns the error
	}
	for _, o := range report.Leaving {
		// Flush returns the error.
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
