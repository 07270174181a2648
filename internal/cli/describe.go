package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectldescribe "k8s.io/kubectl/pkg/cmd/describe"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"orrery.dev/orrery/internal/neutral"
)

// describing has the flags of "orrery describe", which is kubectl's describe for objects of every
// cluster.
type describing struct {
	reaching

	selector   string
	events     bool
	eventsSaid bool
	chunk      int64
}

func newDescribeObjects(s streams) *cobra.Command {
	d := &describing{reaching: reaching{streams: s}}
	cmd := &cobra.Command{
		Use:   "describe TYPE [NAME | NAME_PREFIX] | TYPE/NAME ...",
		Short: "Show details of objects, with their events, in every cluster that has them",
		Long: `Show details of objects, with their events, as kubectl describe does. The mirror knows which clusters
have the objects. The details come from each of these clusters, with your rights there, under a heading for
each cluster if there are several. Clusters that do not answer, and names that no cluster has, are reported
on standard error, and the exit code is then 1.

For clusters themselves, use "orrery cluster describe"; for other objects of the hub, use
kubectl --context hub describe.`,
		Example: `  orrery describe deploy/web -n shop
  orrery describe pods -l app=web -C oak
  orrery describe node n1 -C 'eu-*'`,
		ValidArgsFunction: d.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			d.eventsSaid = cmd.Flags().Changed("show-events")
			return asKubectl(d.run(cmd, args))
		},
	}
	d.add(cmd, "only in this cluster, or in clusters whose names match a pattern; can be repeated (default: all that have it)")
	d.addAll(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&d.selector, "selector", "l", "", "only objects with these labels, such as app=web,tier!=db")
	flags.BoolVar(&d.events, "show-events", true, "with events (default: for one object, not for several)")
	flags.Int64Var(&d.chunk, "chunk-size", cmdutil.DefaultChunkSize, "number of objects in one request; 0: all")
	return cmd
}

func (d *describing) run(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	asked, err := parseNamed(args)
	if err != nil {
		return err
	}
	switch {
	case len(asked.types) == 0:
		return usageError{fmt.Errorf("name the type of the objects, such as pods; %q lists all types", cmd.Root().CommandPath()+" api-resources")}
	case asked.byName() && d.selector != "":
		return usageError{errors.New("--selector: give names or a selector, not both")}
	case asked.byName() && d.all:
		return usageError{errors.New("--all-namespaces: cannot be used with names; give the namespace of the objects with --namespace")}
	}
	if err := checkSelector(d.selector); err != nil {
		return err
	}
	h, err := d.hub.api(ctx, d.err)
	if err != nil {
		return err
	}
	in, missing, err := d.where(ctx, h, asked, args)
	if err != nil {
		return err
	}
	if len(in) == 0 && missing == nil {
		return say(d.err, "No resources found\n")
	}
	problems := &failures{to: d.err}
	for i, c := range in {
		var out bytes.Buffer
		err := d.describe(cmd, h, c, &out)
		if len(in) > 1 && out.Len() > 0 {
			before := neutral.Trusted("")
			if i > 0 {
				before = "\n\n"
			}
			if err := say(d.out, "%s==> cluster %s <==\n", before, c.cluster); err != nil {
				return err
			}
		}
		if err := say(d.out, "%s", laidOut(out.String())); err != nil {
			return err
		}
		if len(in) == 1 {
			return errors.Join(err, missing)
		}
		problems.add(ctx, "cluster "+c.cluster, err)
	}
	return errors.Join(problems.err(len(in), "clusters"), missing)
}

// described is a cluster in which objects are described, with the arguments for kubectl describe
// there.
type described struct {
	cluster string
	args    []string
}

// where returns the clusters in which the objects of the arguments are described, sorted by name.
// If --cluster names clusters without a pattern, each gets all arguments and is not checked.
// Otherwise they are the clusters that have the objects in the mirror, each with the arguments for
// its objects. missing joins a NotFound error for each name that no cluster has; the other objects
// are described nevertheless. Every other error is err.
func (d *describing) where(ctx context.Context, h *hubAPI, asked *naming, args []string) (in []described, missing, err error) {
	if len(d.clusters) > 0 && !slices.ContainsFunc(d.clusters, isPattern) {
		clusters, err := d.chosen(ctx, h)
		for _, cluster := range clusters {
			in = append(in, described{cluster, args})
		}
		return in, nil, err
	}
	add := func(cluster string, args ...string) {
		i := slices.IndexFunc(in, func(x described) bool { return x.cluster == cluster })
		if i < 0 {
			i, in = len(in), append(in, described{cluster: cluster})
		}
		in[i].args = append(in[i].args, args...)
	}
	for _, kind := range asked.types {
		if len(asked.names[kind]) == 0 {
			clusters, _, err := d.find(ctx, h, kind, url.Values{"labelSelector": {d.selector}})
			if err != nil {
				return nil, nil, err
			}
			for _, cluster := range clusters {
				add(cluster, kind)
			}
			continue
		}
		for _, name := range asked.names[kind] {
			clusters, prefix, err := d.named(ctx, h, kind, name, len(args) == 2)
			switch {
			case apierrors.IsNotFound(err):
				missing = errors.Join(missing, err)
			case err != nil:
				return nil, nil, err
			}
			for _, cluster := range clusters {
				if prefix {
					add(cluster, kind, name)
				} else {
					add(cluster, kind+"/"+name)
				}
			}
		}
	}
	for i := range in { // types without names are one argument for kubectl
		if !asked.byName() {
			in[i].args = []string{strings.Join(in[i].args, ",")}
		}
	}
	slices.SortFunc(in, func(a, b described) int { return strings.Compare(a.cluster, b.cluster) })
	return in, missing, nil
}

// named returns the clusters that have an object of the type kind with a name. If there are none
// and mayBegin is true, it does what kubectl describe does. It returns the clusters with objects
// whose names begin with name, and prefix is true. If there are none either, the error is NotFound.
func (d *describing) named(ctx context.Context, h *hubAPI, kind, name string, mayBegin bool) (clusters []string, prefix bool, err error) {
	clusters, m, err := d.find(ctx, h, kind, url.Values{"names": {name}})
	if err != nil || len(clusters) > 0 {
		return clusters, false, err
	}
	// Only with characters of names: others have a meaning in a query.
	if mayBegin && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" {
		clusters, _, err = d.find(ctx, h, kind, url.Values{"q": {"name:" + name + "*"}})
		if err != nil || len(clusters) > 0 {
			return clusters, true, err
		}
	}
	return nil, false, nowhere(m.Resource.GroupResource(), name, d.clusters)
}

// describe runs kubectl describe in one cluster and writes its output to out. After an error, out
// may have a part of the output.
func (d *describing) describe(cmd *cobra.Command, h *hubAPI, in described, out *bytes.Buffer) error {
	at, err := h.member(in.cluster, d.namespace)
	if err != nil {
		return err
	}
	flags := kubectldescribe.NewDescribeFlags(cmdutil.NewFactory(at), genericiooptions.IOStreams{In: d.in, Out: out, ErrOut: d.err})
	flags.Selector, flags.AllNamespaces, flags.ShowEventsExplicitlySet = d.selector, d.all, d.eventsSaid
	flags.DescriberSettings.ShowEvents, flags.DescriberSettings.ChunkSize = d.events, d.chunk
	o, err := flags.ToOptions(cmd.Root().CommandPath(), in.args)
	if err != nil {
		return err
	}
	return o.Run()
}
