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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/discovery"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
)

// asking has the flags of "orrery why", which explains in which clusters an object is placed.
type asking struct {
	streams

	hub       hubFlags
	namespace string
	output    string
}

func newWhy(s streams) *cobra.Command {
	a := &asking{streams: s}
	cmd := &cobra.Command{
		Use:   "why TYPE NAME | TYPE/NAME",
		Short: "Explain in which clusters an object is placed, and why not in others",
		Long: `Explain the placement of an object of the hub: which policy places it and which policies are
overruled, why it is not in the other clusters, and what is not done yet and what that waits for. This
also works for a deleted object while clusters have copies. For an object that no policy places, the
policies are listed that select it except for one thing. Clusters that you may not see are left out; those
that have the object are counted. You need the right to get the object.`,
		Example: `  orrery why deploy/web -n shop
  orrery why namespace/shop -o yaml`,
		RunE: func(cmd *cobra.Command, args []string) error { return asKubectl(a.run(cmd.Context(), args)) },
	}
	a.hub.add(cmd)
	cmd.Flags().StringVarP(&a.namespace, "namespace", "n", "", "namespace of the object (default: the namespace of the context, or default)")
	// An error means that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("namespace", a.hub.completeNamespaces)
	addOutput(cmd, &a.output)
	return cmd
}

func (a *asking) run(ctx context.Context, args []string) error {
	asked, err := parseNamed(args)
	if err != nil {
		return err
	}
	if len(asked.types) != 1 || len(asked.names[asked.types[0]]) != 1 {
		return usageError{errors.New("want exactly one object, TYPE NAME or TYPE/NAME, as in deploy/web")}
	}
	h, err := a.hub.api(ctx, a.err)
	if err != nil {
		return err
	}
	at, err := h.below("", a.namespace)
	if err != nil {
		return err
	}
	mapper, err := at.ToRESTMapper()
	if err != nil {
		return err
	}
	m, err := mappingOf(mapper, asked.types[0])
	if err != nil {
		return fmt.Errorf("the hub: %w", err)
	}
	of := m.GroupVersionKind.GroupKind().String() + "/" + asked.names[asked.types[0]][0]
	if m.Scope.Name() != meta.RESTScopeNameRoot {
		of = m.GroupVersionKind.GroupKind().String() + "/" + at.namespace + "/" + asked.names[asked.types[0]][0]
	}
	c, err := discovery.NewDiscoveryClientForConfig(h.config)
	if err != nil {
		return fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	body, err := c.RESTClient().Get().RequestURI(fleetv1alpha1.PlacementsPath + "?of=" + url.QueryEscape(of)).Do(ctx).Raw()
	if err != nil {
		if err = refusalIn(body, err); apierrors.IsNotFound(err) && m.Scope.Name() != meta.RESTScopeNameRoot {
			return fmt.Errorf("%w in namespace %q of the hub: name another with --namespace", err, at.namespace)
		}
		return err
	}
	var e fleetv1alpha1.PlacementExplanation
	if err := json.Unmarshal(body, &e); err != nil {
		return fmt.Errorf("read the hub's answer: %w", err)
	}
	return printValue(a.out, a.output, e, func(w io.Writer) error { return printWhy(w, &e, a.output == outputWide, time.Now()) })
}

// printWhy prints the explanation e for people. now is the present time, for the age of the
// decision. If wide is true, the table includes the clusters that the policy does not select;
// otherwise only their number is printed.
func printWhy(w io.Writer, e *fleetv1alpha1.PlacementExplanation, wide bool, now time.Time) error {
	what := e.Of.Kind + " " + e.Of.Name
	if e.Of.Namespace != "" {
		what = e.Of.Kind + " " + e.Of.Namespace + "/" + e.Of.Name
	}
	var out strings.Builder
	// writing to memory does not fail
	p := func(format string, args ...any) { _ = say(&out, format, args...) }
	p("%s: %s.\n", what, e.Message)
	if d := e.Decision; d != nil {
		p("Decided %s ago", duration.HumanDuration(now.Sub(d.Time.Time)))
		switch {
		case e.Current:
			p(", for the current object and policy.\n")
		case !d.Current:
			p("; a newer decision is not recorded yet.\n")
		default:
			p("; the object or the policy has changed since.\n")
		}
	}
	left := printWhyClusters(&out, e, wide)
	if left > 0 {
		p("Clusters that the policy does not select: %d (-o wide lists them).\n", left)
	}
	if e.Hidden > 0 {
		p("Clusters that you may not see: %d.\n", e.Hidden)
	}
	printSection(&out, "Waits for", otherWaits(e), func(o fleetv1alpha1.PlacementWait) string {
		if len(o.Clusters) == 0 {
			return string(o.For) + ": " + o.Message
		}
		return string(o.For) + " in " + strings.Join(o.Clusters, ", ") + ": " + o.Message
	})
	if d := e.Decision; d != nil {
		printSection(&out, "Evictions that wait", waitsIn(d.Message), func(o waitingObject) string {
			return fmt.Sprintf("%s in %s, because of taint %s: %s", o.Reason, o.Cluster, o.Taint, cmp.Or(o.Message, "-"))
		})
	}
	printSection(&out, "Overruled", e.Lost, policyWithReason)
	printSection(&out, "Near misses", e.Near, policyWithReason)
	printSection(&out, "Overrides", e.Overrides, func(o fleetv1alpha1.ExplainedPolicy) string {
		return policyWithReason(o) + map[bool]string{true: " in " + strings.Join(o.Clusters, ", ")}[len(o.Clusters) > 0]
	})
	object := func(o fleetv1alpha1.ExplainedObject) string { return o.Kind + " " + o.Name }
	printSection(&out, "Dependencies", e.Follow, object)
	if e.FollowMore > 0 {
		p("  and %d more\n", e.FollowMore)
	}
	printSection(&out, "Dependency of", e.Follows, object)
	return say(w, "%s", neutral.Trusted(out.String()))
}

// otherWaits returns what the object still waits for, without what the sentence e.Message already
// says, in the same order and without duplicates. That sentence ends with one reason to wait if the
// object is placed nowhere or is not decided yet.
func otherWaits(e *fleetv1alpha1.PlacementExplanation) []fleetv1alpha1.PlacementWait {
	var others []fleetv1alpha1.PlacementWait
	for _, w := range e.Waits {
		same := func(o fleetv1alpha1.PlacementWait) bool {
			return o.For == w.For && o.Message == w.Message && slices.Equal(o.Clusters, w.Clusters)
		}
		if len(w.Clusters) == 0 && hasClause(e.Message, w.Message) || slices.ContainsFunc(others, same) {
			continue
		}
		others = append(others, w)
	}
	return others
}

// hasClause reports whether text contains clause as whole clauses, at its last occurrence. Before
// it must be the begin of text, ": " or "; ", and after it the end of text or ";". It is false for
// an empty clause.
func hasClause(text, clause string) bool {
	i := strings.LastIndex(text, clause)
	if clause == "" || i < 0 {
		return false
	}
	before, after := text[:i], text[i+len(clause):]
	return (before == "" || strings.HasSuffix(before, ": ") || strings.HasSuffix(before, "; ")) && (after == "" || strings.HasPrefix(after, ";"))
}

// policyWithReason returns a policy as KIND NAME, followed by ": REASON" if the policy has a
// reason.
func policyWithReason(p fleetv1alpha1.ExplainedPolicy) string {
	name := p.Kind + " " + p.Name
	if p.Reason != "" {
		name += ": " + p.Reason
	}
	return name
}

// printSection prints a title and one line for each element of all. Without elements it prints
// nothing.
func printSection[T any](out *strings.Builder, title string, all []T, line func(T) string) {
	if len(all) > 0 {
		_ = say(out, "\n%s\n", title)
	}
	for _, one := range all {
		_ = say(out, "  %s\n", line(one))
	}
}

// notSelected is the reason, "NotSelected", by which the hub says that the policy does not select a
// cluster. Such clusters are printed only with -o wide.
const notSelected = "NotSelected"

// printWhyClusters prints a table of the clusters of e to out. If wide is false, it leaves out the
// clusters that the policy does not select and that have no copy. left is their number.
func printWhyClusters(out *strings.Builder, e *fleetv1alpha1.PlacementExplanation, wide bool) (left int) {
	if len(e.Clusters) == 0 {
		return 0
	}
	t := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "\nCLUSTER\tPLACED\tREPLICAS\tWHY") //nolint:errcheck // writing to memory does not fail
	for _, c := range e.Clusters {
		var why []string
		meant := true
		for _, v := range c.Verdicts {
			meant = meant && v.Reason != notSelected
			why = append(why, v.Message)
		}
		if !meant && !c.Placed && !c.Leaves && !wide {
			left++
			continue
		}
		placed, replicas := "no", "-"
		if c.Replicas != nil {
			replicas = strconv.Itoa(int(*c.Replicas))
		}
		switch {
		case c.Placed && c.Attached:
			placed = "attached"
		case c.Placed:
			placed = "yes"
		}
		if c.Leaves {
			why = append(why, "its copy is moving out")
		}
		if c.Result != nil && (c.Placed || c.Leaves) {
			said := cmp.Or(c.Result.Message, map[bool]string{true: "applied", false: c.Result.Reason}[c.Result.Applied])
			if !c.Result.Current {
				said += " (before the last change)"
			}
			why = append(why, said)
		}
		_ = say(t, "%s\t%s\t%s\t%s\n", c.Name, placed, replicas, strings.Join(why, "; "))
	}
	_ = t.Flush() // writing to memory does not fail
	return left
}
