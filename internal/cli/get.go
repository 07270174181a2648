package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/kubectl/pkg/cmd/get"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// getting has the flags of "orrery get", which is kubectl's get for objects of every cluster.
type getting struct {
	reaching

	kubectl *get.GetOptions
	live    bool
}

func newGet(s streams) *cobra.Command {
	g := &getting{reaching: reaching{streams: s}, kubectl: get.NewGetOptions(programName, s.kube())}
	cmd := &cobra.Command{
		Use:   "get TYPE[.VERSION][.GROUP][,TYPE ...] [NAME ...] | TYPE/NAME ...",
		Short: "Show objects of every cluster",
		Long: `Show objects of every cluster, as kubectl get does for one cluster, with a column for the cluster.
The objects come from the mirror. Objects of a cluster that does not answer are shown as they were last
seen, with a warning. You see the objects that you may list on the hub.

A name is looked up in every cluster, and the result is a list, even with one object. With exactly one
--cluster, which is not a pattern, the result is the object, as in kubectl.

For objects of the hub itself, use kubectl --context hub get.`,
		Example: `  orrery get pods -A
  orrery get deploy web -n shop -o wide
  orrery get pods -C 'eu-*' -l app=web -w
  orrery get nodes -o custom-columns=CLUSTER:.metadata.annotations.fleet\\.orrery\\.dev/cluster,NAME:.metadata.name
  orrery get secret db-pass -n shop -C oak --live -o yaml`,
		SuggestFor:        []string{"list", "ls"},
		ValidArgsFunction: g.completeObjects,
		RunE:              func(cmd *cobra.Command, args []string) error { return asKubectl(g.run(cmd, args)) },
	}
	g.add(cmd, "only in this cluster, or in clusters whose names match a pattern; can be repeated (default: all)")
	g.addAll(cmd)
	o, flags := g.kubectl, cmd.Flags()
	o.PrintFlags.AddFlags(cmd)
	flags.BoolVarP(&o.Watch, "watch", "w", false, "after the list, watch for changes")
	flags.BoolVar(&o.WatchOnly, "watch-only", false, "watch for changes, without the list")
	flags.BoolVar(&o.OutputWatchEvents, "output-watch-events", false, "with --watch or --watch-only: print the events and not only the objects")
	flags.BoolVar(&o.IgnoreNotFound, "ignore-not-found", false, "exit with 0 even if no cluster has a name")
	flags.StringVarP(&o.LabelSelector, "selector", "l", "", "only objects with these labels, such as app=web,tier!=db")
	flags.StringVar(&o.FieldSelector, "field-selector", "", "only objects with these fields, such as status.phase=Pending; any field is possible")
	flags.BoolVar(&o.ServerPrint, "server-print", true, "let the hub format the table")
	flags.Int64Var(&o.ChunkSize, "chunk-size", o.ChunkSize, "number of objects in one request; 0: all")
	flags.BoolVar(&g.live, "live", false, "read from the cluster itself, with your rights there; needs exactly one --cluster")
	return cmd
}

func (g *getting) run(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	if len(args) == 0 {
		return usageError{fmt.Errorf("name the type of the objects, such as pods; %q lists all types", cmd.Root().CommandPath()+" api-resources")}
	}
	asked, err := parseNamed(args)
	if err != nil {
		return err
	}
	if err := g.check(); err != nil {
		return err
	}
	single := len(g.clusters) == 1 && !isPattern(g.clusters[0])
	if g.live && !single {
		return usageError{errors.New("--live: name the cluster with --cluster, exactly one")}
	}
	h, err := g.hub.api(ctx, g.err)
	if err != nil {
		return err
	}
	clusters, err := g.chosen(ctx, h)
	if err != nil {
		return err
	}
	var at *below
	switch {
	case g.live:
		at, err = h.member(clusters[0], g.namespace)
	case single:
		at, err = h.below(fleetv1alpha1.FleetPath+"/clusters/"+url.PathEscape(clusters[0]), g.namespace)
	default:
		at, err = h.below(fleetv1alpha1.FleetPath, g.namespace)
	}
	if err != nil {
		return err
	}
	o := g.kubectl
	o.AllNamespaces, o.CmdParent = g.all, cmd.Root().CommandPath()
	if single {
		return g.print(cmd, at, args)
	}
	narrow, err := g.narrow(at, asked, clusters)
	if err != nil {
		return err
	}
	if asked.byName() { // kubectl lists the types, and missing names are printed here
		args = []string{strings.Join(asked.types, ",")}
		ignore := o.IgnoreNotFound
		o.IgnoreNotFound = true
		err := g.print(cmd, at, args)
		if !ignore {
			err = errors.Join(err, narrow.missing())
		}
		return err
	}
	return g.print(cmd, at, args)
}

// check returns a usageError if the output format, --sort-by or --selector is invalid. It sends no
// request.
func (g *getting) check() error {
	flags := g.kubectl.PrintFlags.Copy()
	if _, err := flags.ToPrinter(); err != nil {
		return usageError{err}
	}
	if by := flags.HumanReadableFlags.SortBy; by != nil && *by != "" {
		expression, err := get.RelaxedJSONPathExpression(*by)
		if err == nil {
			err = jsonpath.New("sort-by").Parse(expression)
		}
		if err != nil {
			return usageError{fmt.Errorf("--sort-by %q: %w", *by, err)}
		}
	}
	return checkSelector(g.kubectl.LabelSelector)
}

// print runs kubectl get with the arguments against the API at, and prints the objects to g.out.
// With --watch it continues until the context ends. With -o name, names that a script could misread
// are left out, and print returns an error for them at the end.
func (g *getting) print(cmd *cobra.Command, at *below, args []string) error {
	f := cmdutil.NewFactory(at)
	if err := g.kubectl.Complete(f, cmd, args); err != nil {
		return err
	}
	if err := g.kubectl.Validate(); err != nil {
		return usageError{err}
	}
	lines := g.neutral()
	if g.kubectl.Watch || g.kubectl.WatchOnly {
		return errors.Join(g.watch(cmd.Context(), f, args), lines.problem())
	}
	return errors.Join(g.kubectl.Run(f, args), lines.problem())
}

// neutral makes the output of g.kubectl neutral: it replaces control characters in tables and
// custom columns, and escapes them in JSON. YAML and output of templates stay unchanged, unless
// they go to a terminal. With -o name, objects whose names a script could misread are left out; the
// result counts them. neutral must be called once, after g.kubectl.Complete.
func (g *getting) neutral() *scriptLines {
	lines := &scriptLines{err: g.err}
	format, _, _ := strings.Cut(*g.kubectl.PrintFlags.OutputFormat, "=")
	of := func(object runtime.Object) runtime.Object { return object }
	switch {
	case format == outputName:
		of = func(object runtime.Object) runtime.Object { return withWords(object, lines) }
	case g.kubectl.IsHumanReadablePrinter, strings.HasPrefix(format, "custom-columns"):
		of = neutralObject
	case format == outputJSON, format == "jsonpath-as-json":
		g.kubectl.Out = asJSON(g.out)
	default:
		g.kubectl.Out = exact(g.out)
	}
	printer := g.kubectl.ToPrinter
	g.kubectl.ToPrinter = func(m *meta.RESTMapping, outputObjects *bool, withNamespace, withKind bool) (printers.ResourcePrinterFunc, error) {
		object, err := printer(m, outputObjects, withNamespace, withKind)
		if err != nil {
			return nil, err
		}
		return func(o runtime.Object, w io.Writer) error {
			if o = of(o); o == nil {
				return nil
			}
			return object(o, w)
		}, nil
	}
	return lines
}

// neutralObject replaces control characters in all strings of an object, of the items of a list, or
// of the object in a watch event. It changes them in place and returns object. Other
// implementations of runtime.Object are returned unchanged.
func neutralObject(object runtime.Object) runtime.Object {
	switch object := object.(type) {
	case *unstructured.Unstructured:
		if rows, _ := object.Object["rows"].([]any); object.GetKind() == "Table" {
			for _, row := range rows {
				if row, ok := row.(map[string]any); ok {
					cells, _ := row["cells"].([]any)
					neutralCells(cells)
				}
			}
		}
		neutralValue(object.Object)
	case *unstructured.UnstructuredList:
		neutralValue(object.Object)
		for i := range object.Items {
			neutralValue(object.Items[i].Object)
		}
	case *metav1.WatchEvent:
		neutralObject(object.Object.Object)
	}
	return object
}

// withWords returns an object, a list or a watch event for output that scripts read. It leaves out
// objects whose kind or name is not a word by neutral.IsWord, and reports each to lines. It removes
// them from a list in place. If the object itself, or that of the event, is left out, the result is
// nil.
func withWords(object runtime.Object, lines *scriptLines) runtime.Object {
	switch object := object.(type) {
	case *unstructured.UnstructuredList:
		object.Items = slices.DeleteFunc(object.Items, func(item unstructured.Unstructured) bool { return withWords(&item, lines) == nil })
	case *metav1.WatchEvent:
		if withWords(object.Object.Object, lines) == nil {
			return nil
		}
	case *unstructured.Unstructured:
		of := object.GroupVersionKind().GroupKind().String()
		if !lines.allows(of+"/"+object.GetName(), of, object.GetName()) {
			return nil
		}
	}
	return object
}

// watch prints the existing objects, unless --watch-only is set, and then every change. When ctx
// ends, it returns the cause of ctx, and when the hub ends the watch, nil. With --ignore-not-found
// a missing object is no error. kubectl's own watch would end the process on a signal, with another
// exit code.
func (g *getting) watch(ctx context.Context, f cmdutil.Factory, args []string) error {
	o := g.kubectl
	r := f.NewBuilder().Unstructured().
		NamespaceParam(o.Namespace).DefaultNamespace().AllNamespaces(o.AllNamespaces).
		LabelSelectorParam(o.LabelSelector).FieldSelectorParam(o.FieldSelector).
		RequestChunksOf(o.ChunkSize).
		ResourceTypeOrNameArgs(true, args...).SingleResourceType().Latest().
		TransformRequests(func(r *rest.Request) {
			if o.ServerPrint && o.IsHumanReadablePrinter {
				r.SetHeader("Accept", asTable+",application/json")
			}
		}).
		Do()
	infos, err := r.Infos()
	if err != nil {
		if o.IgnoreNotFound && apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	shown := !o.WatchOnly
	printer, err := o.ToPrinter(infos[0].ResourceMapping(), &shown, o.AllNamespaces, false)
	if err != nil {
		return err
	}
	there, err := r.Object()
	if err != nil {
		return err
	}
	out := printers.GetNewTabWriter(o.Out)
	show := func(kind watch.EventType, object runtime.Object) error {
		if o.OutputWatchEvents {
			object = &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: object}}
		}
		if err := printer.PrintObj(object, out); err != nil {
			return fmt.Errorf("print an object: %w", err)
		}
		return nil
	}
	// A watch of a single object begins at version 0 and with the present state of the object. A watch
	// of a list begins at the version of the list and does not repeat its objects.
	objects, version := []runtime.Object{there}, "0"
	list := meta.IsListType(there)
	if list {
		if version, err = meta.NewAccessor().ResourceVersion(there); err != nil {
			return err
		}
		if objects, err = meta.ExtractList(there); err != nil {
			return err
		}
	}
	for _, object := range objects {
		if err := show(watch.Added, object); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	shown = list // the first event of an object repeats what was printed
	changes, err := r.Watch(version)
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, open := <-changes.ResultChan():
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !open:
				return nil
			case event.Type == watch.Error:
				return apierrors.FromObject(event.Object)
			}
			if err := show(event.Type, event.Object); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
			shown = true
		}
	}
}

// narrow restricts requests of the API at to some clusters and to the names in asked, by wrapping
// the transport of at.config. If clusters is empty, they are not restricted. The caller must not
// use at before, except for discovery. After the requests the result knows which names were found.
func (g *getting) narrow(at *below, asked *naming, clusters []string) (*narrowed, error) {
	root, err := url.Parse(at.config.Host)
	if err != nil {
		return nil, err
	}
	n := &narrowed{root: root.Path, clusters: clusters, names: map[schema.GroupResource][]string{}, found: map[schema.GroupResource]map[string]bool{}}
	if asked.byName() {
		mapper, err := at.ToRESTMapper()
		if err != nil {
			return nil, err
		}
		for _, kind := range asked.types {
			m, err := mappingOf(mapper, kind)
			if err != nil {
				return nil, err
			}
			for _, name := range asked.names[kind] {
				if of := m.Resource.GroupResource(); !slices.Contains(n.names[of], name) {
					n.names[of] = append(n.names[of], name)
				}
			}
		}
	}
	at.config.Wrap(n.wrap)
	return n, nil
}

// missing returns a NotFound error for each name that no cluster has, joined and sorted; nil if all
// were found. Names of types whose list failed are left out.
func (n *narrowed) missing() error {
	var missing []error
	for of, names := range n.names {
		for _, name := range names {
			// A type without found was not listed: its list failed, and that error was printed.
			if found, listed := n.found[of]; listed && !found[name] {
				missing = append(missing, apierrors.NewNotFound(of, name))
			}
		}
	}
	slices.SortFunc(missing, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(missing...)
}

// mappingOf returns the type with a name, as kubectl finds types: in plural or singular, as a short
// name, with version and group, or as KIND.GROUP. If the type is unknown, the error names the
// command that lists all types.
func mappingOf(mapper meta.RESTMapper, kind string) (*meta.RESTMapping, error) {
	full, part := schema.ParseResourceArg(kind)
	var gvk schema.GroupVersionKind
	err := error(&meta.NoResourceMatchError{PartialResource: part.WithVersion("")})
	if full != nil {
		gvk, err = mapper.KindFor(*full)
	}
	if meta.IsNoMatchError(err) {
		gvk, err = mapper.KindFor(part.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		var m *meta.RESTMapping
		of := schema.ParseGroupKind(kind)
		if m, err = mapper.RESTMapping(of); err == nil {
			return m, nil
		}
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("there is no type %q; %q lists all types", kind, programName+" api-resources")
	}
	if err != nil {
		return nil, fmt.Errorf("find type %q: %w", kind, err)
	}
	return mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
}

// usual returns the namespace for a command: "" with --all-namespaces, which means all, else
// --namespace, else the namespace of the context.
func (r *reaching) usual(h *hubAPI) string {
	switch {
	case r.all:
		return ""
	case r.namespace != "":
		return r.namespace
	}
	return h.namespace
}

// find returns the clusters that have objects of the type kind that the parameters select and the
// caller may see, and that type. It looks in the namespace and clusters of the flags, and sets
// parameters["clusters"] if --cluster is set. If no cluster has such an object, the clusters are
// nil without an error.
func (r *reaching) find(ctx context.Context, h *hubAPI, kind string, parameters url.Values) ([]string, *meta.RESTMapping, error) {
	fleet, err := h.fleet()
	if err != nil {
		return nil, nil, err
	}
	m, err := fleet.find(kind)
	if err != nil {
		return nil, nil, err
	}
	clusters, err := r.chosen(ctx, h)
	if err != nil {
		return nil, nil, err
	}
	if len(clusters) > 0 {
		parameters.Set("clusters", strings.Join(clusters, ","))
	}
	found, err := fleet.clustersOf(ctx, m, r.usual(h), parameters)
	return found, m, err
}
