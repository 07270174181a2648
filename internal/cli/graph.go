package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/neutral"
)

// The values of --output of a graph, besides JSON.
const (
	outputTree = "tree"
	outputDot  = "dot"
)

// graphing has the flags of "orrery graph".
type graphing struct {
	streams
	where

	hub          hubFlags
	depth, limit int
	uses, usedBy bool
	relations    []string
	output       string
}

func newGraph(s streams) *cobra.Command {
	f := &graphing{streams: s}
	cmd := &cobra.Command{
		Use:   "graph KIND/NAME | image:IMAGE",
		Short: "Show what an object uses, and what uses it, in every cluster",
		Long: "Show what an object uses, and what uses it, in every cluster. An image without a tag is\nall of its repository. One object is to another:\n\n" + relationsMean() + `
Objects that you may not list are not shown, nor is what only they lead to. Something that
another refers to, and that is not there, is MISSING.`,
		Example: `  orrery graph secret/db-pass -n shop --used-by
  orrery graph deploy/web -n shop --cluster oak --uses
  orrery graph image:nginx --used-by --depth 1
  orrery graph ingress/web -n shop -o dot | dot -Tsvg > web.svg`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("want exactly one argument, KIND/NAME or image:IMAGE; see %q", cmd.CommandPath()+" --help")}
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			out := []string{"image:"}
			for _, name := range graph.Names() {
				out = append(out, name+"/")
			}
			return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	f.hub.add(cmd)
	f.add(cmd, &f.hub, "where the object is (default: in any namespace)")
	flags := cmd.Flags()
	flags.IntVar(&f.depth, "depth", 3, "how many steps from the object, at most 10")
	flags.IntVar(&f.limit, "limit", 300, "how many objects there are at most, up to 2000")
	flags.BoolVar(&f.uses, "uses", false, "only what it uses")
	flags.BoolVar(&f.usedBy, "used-by", false, "only what uses it")
	flags.StringSliceVar(&f.relations, "relations", nil, "only these relations; all: also events, which are left out otherwise")
	formats := []string{outputTree, outputDot, outputJSON}
	flags.StringVarP(&f.output, "output", "o", outputTree, "how to print: "+strings.Join(formats, ", "))
	var relations []string
	for _, r := range graph.Relations() {
		relations = append(relations, string(r))
	}
	// Errors mean that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("relations", cobra.FixedCompletions(append(relations, "all"), cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(formats, f.output) {
			return usageError{fmt.Errorf("--output %q: want one of %s", f.output, strings.Join(formats, ", "))}
		}
		return nil
	}
	return cmd
}

// relationsMean returns a table of the relations between objects, with their meanings, for the help
// of "orrery graph".
func relationsMean() string {
	var out strings.Builder
	t := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	for _, r := range graph.Relations() {
		_ = say(t, "  %s\t%s\n", r, r.Means()) // writing to memory does not fail
	}
	_ = t.Flush() // writing to memory does not fail
	return out.String()
}

func (f *graphing) run(ctx context.Context, of string) error {
	if f.uses && f.usedBy {
		return usageError{errors.New("--uses and --used-by: both are shown without either")}
	}
	if !strings.HasPrefix(of, "image:") {
		kind, name, ok := strings.Cut(of, "/")
		if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
			return usageError{fmt.Errorf("%q: want KIND/NAME, as in secret/db-pass, or image:IMAGE", of)}
		}
		if f.namespace != "" {
			of = kind + "/" + f.namespace + "/" + name
		}
	} else if f.namespace != "" {
		return usageError{errors.New("--namespace: images are in none")}
	}
	q := url.Values{"of": {of}, "depth": {strconv.Itoa(f.depth)}, "limit": {strconv.Itoa(f.limit)}, "clusters": {strings.Join(f.clusters, ",")}, "relations": {strings.Join(f.relations, ",")}}
	switch {
	case f.uses:
		q.Set("direction", "uses")
	case f.usedBy:
		q.Set("direction", "usedBy")
	}
	fleet, err := f.hub.fleet(ctx, f.err)
	if err != nil {
		return err
	}
	request := fleet.client.Get().AbsPath("graph")
	for name := range q {
		if value := q.Get(name); value != "" {
			request = request.Param(name, value)
		}
	}
	body, err := request.Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("graph of %s: %w", of, refusalIn(body, err))
	}
	var g fleetv1alpha1.ObjectGraph
	if err := json.Unmarshal(body, &g); err != nil {
		return fmt.Errorf("read the hub's answer: %w", err)
	}
	if g.Cut != "" {
		if err := say(f.err, "Not all is shown: %s.\n", g.Cut); err != nil {
			return err
		}
	}
	switch f.output {
	case outputJSON:
		return printValue(f.out, f.output, g, nil)
	case outputDot:
		return printDot(f.out, &g)
	default:
		return printTree(f.out, &g)
	}
}

// tree prints one side of a root, an object that the user asked for: what the root uses, or what
// uses the root.
type tree struct {
	w     io.Writer
	graph *fleetv1alpha1.ObjectGraph
	back  bool         // true: what uses the root; false: what it uses
	shown map[int]bool // nodes that were printed below this root
}

// printTree prints, for each root of a graph, what the root uses and what uses the root, as two
// trees. For each of them, the nodes below a node are printed once. At a further occurrence of that
// node, "…" stands for them.
func printTree(w io.Writer, g *fleetv1alpha1.ObjectGraph) error {
	for i, root := range g.Roots {
		if i > 0 {
			if err := say(w, "\n"); err != nil {
				return err
			}
		}
		if err := say(w, "%s\n", nodeIn(g, root, -1)); err != nil {
			return err
		}
		uses, usedBy := &tree{w: w, graph: g, shown: map[int]bool{root: true}}, &tree{w: w, graph: g, back: true, shown: map[int]bool{root: true}}
		both := len(uses.next(root)) > 0 && len(usedBy.next(root)) > 0
		for _, t := range []*tree{uses, usedBy} {
			if len(t.next(root)) == 0 {
				continue
			}
			head, branch, below := map[bool]string{false: "uses", true: "used by"}[t.back], "└─ ", "   "
			if both && !t.back {
				branch, below = "├─ ", "│  "
			}
			if err := say(w, "%s%s\n", branch, head); err != nil {
				return err
			}
			if err := t.print(root, below); err != nil {
				return err
			}
		}
	}
	return nil
}

// branch is a node that is printed below another node of a tree, with the relations between the
// two.
type branch struct {
	node      int
	relations []string
}

// next returns the branches below a node: one for each node that it uses or, in a tree of users,
// that uses it. They are in the order of the graph's nodes; nil if there are none.
func (t *tree) next(node int) (out []branch) {
	for _, e := range t.graph.Edges {
		near, far := e.From, e.To
		if t.back {
			near, far = far, near
		}
		if near != node {
			continue
		}
		i := slices.IndexFunc(out, func(b branch) bool { return b.node == far })
		if i < 0 {
			i = len(out)
			out = append(out, branch{node: far})
		}
		out[i].relations = append(out[i].relations, e.Relation)
	}
	slices.SortFunc(out, func(a, b branch) int { return a.node - b.node })
	return out
}

// print prints the branches below a node, with indent before each line.
func (t *tree) print(node int, indent string) error {
	branches := t.next(node)
	for i, b := range branches {
		line, below := "├─ ", "│  "
		if i == len(branches)-1 {
			line, below = "└─ ", "   "
		}
		again := ""
		if t.shown[b.node] && len(t.next(b.node)) > 0 {
			again = " …" // the nodes below it were printed before
		}
		if err := say(t.w, "%s%s%s (%s)%s\n", indent, line, nodeIn(t.graph, b.node, node), strings.Join(b.relations, ", "), again); err != nil {
			return err
		}
		if t.shown[b.node] {
			continue
		}
		t.shown[b.node] = true
		if err := t.print(b.node, indent+below); err != nil {
			return err
		}
	}
	return nil
}

// nodeIn returns the text for a node: KIND/NAME, and the state if it has one. below is the node
// above it in the tree, -1 for a root. The namespace and the cluster are added if they differ from
// those of below.
func nodeIn(g *fleetv1alpha1.ObjectGraph, node, below int) string {
	n := &g.Nodes[node]
	out := n.Kind + "/" + n.Name
	var parent fleetv1alpha1.GraphNode
	if below >= 0 {
		parent = g.Nodes[below]
	}
	if n.Namespace != "" && (n.Namespace != parent.Namespace || n.Cluster != parent.Cluster) {
		out += " in " + n.Namespace
	}
	if n.Cluster != "" && n.Cluster != parent.Cluster {
		out += " of " + n.Cluster
	}
	if n.State != "" {
		out += " " + strings.ToUpper(string(n.State))
	}
	return out
}

// printDot prints a graph in the language dot of Graphviz, with one box around the nodes of each
// cluster.
func printDot(w io.Writer, g *fleetv1alpha1.ObjectGraph) error {
	var out strings.Builder // its methods return no errors
	out.WriteString("digraph fleet {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=10];\n")
	last, opened := "", 0
	for i, n := range g.Nodes { // nodes of a cluster are adjacent
		if n.Cluster != last {
			if last != "" {
				out.WriteString("  }\n")
			}
			if last = n.Cluster; last != "" {
				_ = say(&out, "  subgraph cluster_%d {\n    label=%s;\n", opened, dotted(last))
				opened++
			}
		}
		label, style := []string{n.Kind, n.Name}, ""
		if n.Namespace != "" {
			label = append(label, n.Namespace)
		}
		switch {
		case n.State != "":
			label, style = append(label, string(n.State)), ", style=dashed"
		case slices.Contains(g.Roots, i):
			style = ", style=bold"
		}
		_ = say(&out, "    n%d [label=%s%s];\n", i, dotted(label...), style)
	}
	if last != "" {
		out.WriteString("  }\n")
	}
	for _, e := range g.Edges {
		_ = say(&out, "  n%d -> n%d [label=%s];\n", e.From, e.To, dotted(e.Relation))
	}
	out.WriteString("}\n")
	_, err := io.WriteString(w, out.String())
	return err
}

// dotted returns lines as one quoted string of the language dot, in which quotes and backslashes
// are escaped and control characters replaced.
func dotted(lines ...string) neutral.Trusted {
	var out strings.Builder
	out.WriteByte('"')
	for i, line := range lines {
		if i > 0 {
			out.WriteString(`\n`)
		}
		out.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(cell(line)))
	}
	out.WriteByte('"')
	return neutral.Trusted(out.String())
}
