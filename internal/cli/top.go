package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// measuring has the flags of "orrery top pods" and "orrery top nodes".
type measuring struct {
	reaching

	selector, fields, sort                string
	containers, noHeaders, sum, ofMachine bool
}

func newTop(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the resource usage of pods and nodes in every cluster",
		Long: `Show what the metrics servers of the clusters say now that pods and nodes use. Clusters that do
not answer, or have no metrics server, are left out, which a warning says.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopPods(s), newTopNodes(s))
	return cmd
}

func (m *measuring) addTo(cmd *cobra.Command) {
	m.add(cmd, "only in this cluster, or in clusters whose names match a pattern; can be repeated (default: all)")
	flags := cmd.Flags()
	flags.StringVarP(&m.selector, "selector", "l", "", "only objects with these labels, such as app=web,tier!=db")
	flags.BoolVar(&m.noHeaders, "no-headers", false, "print the table without its first line")
	flags.StringVar(&m.sort, "sort-by", "", "cpu or memory: the largest first (default: by cluster and name)")
	// An error means that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions([]string{"cpu", "memory"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if m.sort != "" && m.sort != "cpu" && m.sort != "memory" {
			return usageError{fmt.Errorf("--sort-by %q: want cpu or memory", m.sort)}
		}
		return checkSelector(m.selector)
	}
}

func newTopPods(s streams) *cobra.Command {
	m := &measuring{reaching: reaching{streams: s}}
	cmd := &cobra.Command{
		Use:     "pods [NAME]",
		Aliases: []string{"pod", "po"},
		Short:   "Show the resource usage of pods",
		Example: `  orrery top pods -A --sort-by memory
  orrery top pods -n shop -l app=web --containers -C oak`,
		Args: m.atMostOne("pod"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			return m.completeObjects(cmd, append([]string{"pods"}, args...), typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return asKubectl(m.pods(cmd.Context(), args)) },
	}
	m.addTo(cmd)
	m.addAll(cmd)
	flags := cmd.Flags()
	flags.StringVar(&m.fields, "field-selector", "", "only what has these fields of a PodMetrics, as in metadata.name!=web")
	flags.BoolVar(&m.containers, "containers", false, "each container by itself")
	flags.BoolVar(&m.sum, "sum", false, "add up what is shown")
	return cmd
}

func newTopNodes(s streams) *cobra.Command {
	m := &measuring{reaching: reaching{streams: s}}
	cmd := &cobra.Command{
		Use:     "nodes [NAME]",
		Aliases: []string{"node", "no"},
		Short:   "Show the resource usage of nodes",
		Example: `  orrery top nodes --sort-by cpu
  orrery top nodes -C 'eu-*' --show-capacity`,
		Args: m.atMostOne("node"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			return m.completeObjects(cmd, append([]string{"nodes"}, args...), typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return asKubectl(m.nodes(cmd.Context(), args)) },
	}
	m.addTo(cmd)
	cmd.Flags().BoolVar(&m.ofMachine, "show-capacity", false, "parts of the node's capacity, not of what pods may use of it")
	return cmd
}

// atMostOne returns a check of a command's arguments: a usageError for more than one name, and for
// a name together with --selector. what is the noun for the error, pod or node.
func (m *measuring) atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return usageError{fmt.Errorf("want at most one argument, the name of a %s; see %q", what, cmd.CommandPath()+" --help")}
		case m.selector != "" && len(args) > 0:
			return usageError{errors.New("--selector: it is instead of a name")}
		}
		return nil
	}
}

// measured is the usage of CPU and memory by a pod, a container or a node. It is decoded from a
// PodMetrics or NodeMetrics, and printed as a row. container is "" except in the row of a single
// container.
type measured struct {
	metav1.ObjectMeta `json:"metadata"`

	Usage      corev1.ResourceList `json:"usage"`
	Containers []struct {
		Name  string              `json:"name"`
		Usage corev1.ResourceList `json:"usage"`
	} `json:"containers"`

	container string
}

// cluster returns the name of the cluster.
func (m *measured) cluster() string { return m.Annotations[fleetv1alpha1.ClusterAnnotation] }

// ask requests from the fleet the usage of pods or nodes, as kind says, in the clusters of
// --cluster. The result is in no order. args has the name of one object or nothing: a name without
// metrics is a NotFound error; without a name the result may be empty. If no cluster has a metrics
// server, the error says so.
func (m *measuring) ask(ctx context.Context, h *hubAPI, kind, namespace string, args []string) ([]measured, error) {
	fleet, err := h.fleet()
	if err != nil {
		return nil, err
	}
	clusters, err := m.chosen(ctx, h)
	if err != nil {
		return nil, err
	}
	metrics := schema.GroupVersionResource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: kind}
	list := struct {
		Items []measured `json:"items"`
	}{}
	err = fleet.get(ctx, pathOf(metrics, namespace, ""), url.Values{
		"labelSelector": {m.selector}, "fieldSelector": {m.fields}, "clusters": {strings.Join(clusters, ",")}, "names": args,
	}, &list)
	if apierrors.IsNotFound(err) && len(args) == 0 {
		return nil, fmt.Errorf("%w; no cluster has a metrics server", err)
	}
	if err == nil && len(list.Items) == 0 && len(args) > 0 {
		return nil, apierrors.NewNotFound(metrics.GroupResource(), args[0])
	}
	return list.Items, err
}

// get requests the JSON at a path of the fleet, and decodes it into a pointer. Of each parameter
// the first value is sent; empty ones are left out. If the hub refuses the request, the error has
// the hub's message.
func (c *fleetClient) get(ctx context.Context, path []string, parameters url.Values, into any) error {
	request := c.client.Get().AbsPath(path...).SetHeader("Accept", "application/json")
	for name := range parameters {
		if value := parameters.Get(name); value != "" {
			request = request.Param(name, value)
		}
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // the error of Raw lacks the message of the hub
		return err
	}
	body, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the hub's answer: %w", err)
	}
	return nil
}

// order sorts rows in place: by usage, the largest first, if --sort-by is set, and then by cluster,
// namespace, name and container.
func (m *measuring) order(all []measured) {
	slices.SortFunc(all, func(a, b measured) int {
		used := 0
		switch m.sort {
		case "cpu":
			used = b.Usage.Cpu().Cmp(*a.Usage.Cpu())
		case "memory":
			used = b.Usage.Memory().Cmp(*a.Usage.Memory())
		}
		return cmp.Or(used, cmp.Compare(a.cluster(), b.cluster()), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.container, b.container))
	})
}

func (m *measuring) pods(ctx context.Context, args []string) error {
	h, err := m.hub.api(ctx, m.err)
	if err != nil {
		return err
	}
	pods, err := m.ask(ctx, h, "pods", m.usual(h), args)
	if err != nil {
		return err
	}
	var rows []measured
	for _, pod := range pods {
		all := measured{ObjectMeta: pod.ObjectMeta, Usage: corev1.ResourceList{}}
		for _, c := range pod.Containers {
			if m.containers {
				rows = append(rows, measured{ObjectMeta: pod.ObjectMeta, Usage: c.Usage, container: c.Name})
			}
			addUp(all.Usage, c.Usage)
		}
		if !m.containers {
			rows = append(rows, all)
		}
	}
	m.order(rows)
	return m.printPods(m.out, h, rows)
}

// addUp adds the quantities of more to those of sum, in place. sum must not be nil.
func addUp(sum, more corev1.ResourceList) {
	for name, quantity := range more {
		total := sum[name]
		total.Add(quantity)
		sum[name] = total
	}
}

// printPods prints a table of the usage of pods or, with --containers, of containers.
func (m *measuring) printPods(w io.Writer, h *hubAPI, rows []measured) error {
	if len(rows) == 0 {
		if m.all {
			return say(m.err, "No resources found\n")
		}
		return say(m.err, "No resources found in %s namespace.\n", m.usual(h))
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	line := func(cluster, namespace, pod, container, cpu, memory string) {
		cells := []string{cluster}
		if m.all {
			cells = append(cells, namespace)
		}
		cells = append(cells, pod)
		if m.containers {
			cells = append(cells, container)
		}
		_ = sayRow(t, append(cells, cpu, memory)...) // Flush returns the error
	}
	if !m.noHeaders {
		name := "NAME"
		if m.containers {
			name = "POD"
		}
		line("CLUSTER", "NAMESPACE", name, "NAME", "CPU(cores)", "MEMORY(bytes)")
	}
	sum := corev1.ResourceList{}
	for i := range rows {
		r := &rows[i]
		addUp(sum, r.Usage)
		line(r.cluster(), r.Namespace, r.Name, r.container, cores(r.Usage.Cpu()), mebibytes(r.Usage.Memory()))
	}
	if m.sum {
		line("", "", "", "", "________", "________")
		line("", "", "", "", cores(sum.Cpu()), mebibytes(sum.Memory()))
	}
	return t.Flush()
}

// cores returns a quantity of CPU in thousandths of a core, such as 250m. mebibytes returns a
// quantity of memory in MiB, rounded down, such as 64Mi.
func cores(q *resource.Quantity) string     { return fmt.Sprintf("%dm", q.MilliValue()) }
func mebibytes(q *resource.Quantity) string { return fmt.Sprintf("%dMi", q.Value()>>20) } //nolint:mnd // bytes of one

// part returns how much of a quantity is used, in whole percent, rounded down, such as 12%. If of
// is zero, it returns "<unknown>".
func part(used, of *resource.Quantity) string {
	if of.IsZero() {
		return "<unknown>"
	}
	return fmt.Sprintf("%d%%", int64(used.AsApproximateFloat64()/of.AsApproximateFloat64()*100))
}

func (m *measuring) nodes(ctx context.Context, args []string) error {
	h, err := m.hub.api(ctx, m.err)
	if err != nil {
		return err
	}
	rows, err := m.ask(ctx, h, "nodes", "", args)
	if err != nil {
		return err
	}
	sizes, err := m.sizes(ctx, h, args)
	if err != nil {
		return fmt.Errorf("ask how large the nodes are: %w", err)
	}
	m.order(rows)
	if len(rows) == 0 {
		return say(m.err, "No resources found\n")
	}
	t := tabwriter.NewWriter(m.out, 0, 8, 3, ' ', 0)
	if !m.noHeaders {
		fmt.Fprintln(t, "CLUSTER\tNAME\tCPU(cores)\tCPU(%)\tMEMORY(bytes)\tMEMORY(%)") //nolint:errcheck // Flush returns the error
	}
	for i := range rows {
		r := &rows[i]
		size := sizes[r.cluster()+"/"+r.Name]
		// Flush returns the error.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.cluster(), r.Name,
			cores(r.Usage.Cpu()), part(r.Usage.Cpu(), size.Cpu()), mebibytes(r.Usage.Memory()), part(r.Usage.Memory(), size.Memory()))
	}
	return t.Flush()
}

// sizes requests the size of the nodes from the mirror: their allocatable resources or, with
// --show-capacity, their capacity. The keys of the result are CLUSTER/NAME. names has the name of
// one node; empty: all nodes.
func (m *measuring) sizes(ctx context.Context, h *hubAPI, names []string) (map[string]corev1.ResourceList, error) {
	fleet, err := h.fleet()
	if err != nil {
		return nil, err
	}
	clusters, err := m.chosen(ctx, h)
	if err != nil {
		return nil, err
	}
	out := map[string]corev1.ResourceList{}
	for next := ""; ; {
		var page corev1.NodeList
		err := fleet.get(ctx, pathOf(corev1.SchemeGroupVersion.WithResource("nodes"), "", ""), url.Values{
			"labelSelector": {m.selector}, "clusters": {strings.Join(clusters, ",")}, "names": names, "limit": {"500"}, "continue": {next},
		}, &page)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			n := &page.Items[i]
			size := n.Status.Allocatable
			if m.ofMachine {
				size = n.Status.Capacity
			}
			out[n.Annotations[fleetv1alpha1.ClusterAnnotation]+"/"+n.Name] = size
		}
		if next = page.Continue; next == "" {
			return out, nil
		}
	}
}
