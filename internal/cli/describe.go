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

// describing are the flags of describe.
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
		Long: `Show details of objects, with their events, as kubectl does. Which clusters have them the mirror
says; each is then asked itself, as you there, and if there are several, each is under a
heading. One that does not answer, and a name that none has, are told on standard error, and the
exit code is 1.

Clusters themselves are shown by "orrery cluster describe", other objects of the hub by
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
	d.add(cmd, "only in this cluster, or in those whose names match a pattern; may be given more than once (default: all that have it)")
	d.addAll(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&d.selector, "selector", "l", "", "only what has these labels, as in app=web,tier!=db")
	flags.BoolVar(&d.events, "show-events", true, "with events (default: of one object, and not of several)")
	flags.Int64Var(&d.chunk, "chunk-size", cmdutil.DefaultChunkSize, "how many objects are asked for at once; 0: all")
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
		return usageError{fmt.Errorf("want the type of what to describe; %q lists those that there are", cmd.Root().CommandPath()+" api-resources")}
	case asked.byName() && d.selector != "":
		return usageError{errors.New("--selector: it is instead of names")}
	case asked.byName() && d.all:
		return usageError{errors.New("--all-namespaces: name the namespace of what is named, with --namespace")}
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

// described are the arguments of describe for one cluster.
type described struct {
	cluster string
	args    []string
}

// where returns the clusters to ask, with their arguments. Clusters that flags name get all
// arguments; other clusters get the objects that they have. missing is the error for objects
// that no cluster has. The others are described nevertheless, as in kubectl.
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

// named returns the clusters that have an object of a name. If there is none, and mayBegin is
// true, it returns those with a name that begins with it, as kubectl does; prefix is then true.
func (d *describing) named(ctx context.Context, h *hubAPI, kind, name string, mayBegin bool) (clusters []string, prefix bool, err error) {
	clusters, m, err := d.find(ctx, h, kind, url.Values{"names": {name}})
	if err != nil || len(clusters) > 0 {
		return clusters, false, err
	}
	// other characters have a meaning in a query
	if mayBegin && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" {
		clusters, _, err = d.find(ctx, h, kind, url.Values{"q": {"name:" + name + "*"}})
		if err != nil || len(clusters) > 0 {
			return clusters, true, err
		}
	}
	return nil, false, nowhere(m.Resource.GroupResource(), name, d.clusters)
}

// describe prints the output of kubectl describe.
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
