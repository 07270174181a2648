package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
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

// asking are the flags of why.
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
		Short: "Say why a template is placed where it is, and not elsewhere",
		Long: `Say which policy claims an object of the hub and which lost, what spoke against each cluster, what is
not done yet and what it waits for, also of an object that is gone from the hub while clusters have
copies. Of an object that no policy claims the policies are named that nearly do. Clusters that you may not see are left out; those that have the object are counted. It takes the right to get the object.`,
		Example: `  orrery why deploy/web -n shop
  orrery why namespace/shop -o yaml`,
		RunE: func(cmd *cobra.Command, args []string) error { return asKubectl(a.run(cmd.Context(), args)) },
	}
	a.hub.add(cmd)
	cmd.Flags().StringVarP(&a.namespace, "namespace", "n", "", "where the object is (default: the namespace of the context, or default)")
	// It fails for a flag that is not there, or has one already.
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

// printWhy prints an explanation for people. If wide, it includes the clusters that the policy
// does not select at all.
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
		p("So decided %s ago", duration.HumanDuration(now.Sub(d.Time.Time)))
		switch {
		case e.Current:
			p("; it is about the object and the policy as they are now.\n")
		case !d.Current:
			p(", and decided anew since; why is not recorded yet.\n")
		default:
			p("; object or policy are others by now.\n")
		}
	}
	left := printWhyClusters(&out, e, wide)
	if left > 0 {
		p("%d more that the policy does not mean; see them with -o wide.\n", left)
	}
	if e.Hidden > 0 {
		p("%d more that you may not see.\n", e.Hidden)
	}
	printSection(&out, "Waits for", e.Waits, func(o fleetv1alpha1.PlacementWait) string {
		if len(o.Clusters) == 0 {
			return string(o.For) + ": " + o.Message
		}
		return string(o.For) + " in " + strings.Join(o.Clusters, ", ") + ": " + o.Message
	})
	printSection(&out, "Lost", e.Lost, policyWithReason)
	printSection(&out, "Policies that nearly select it", e.Near, policyWithReason)
	printSection(&out, "Overrides", e.Overrides, func(o fleetv1alpha1.ExplainedPolicy) string {
		return policyWithReason(o) + map[bool]string{true: " in " + strings.Join(o.Clusters, ", ")}[len(o.Clusters) > 0]
	})
	object := func(o fleetv1alpha1.ExplainedObject) string { return o.Kind + " " + o.Name }
	printSection(&out, "Follows it", e.Follow, object)
	if e.FollowMore > 0 {
		p("  and %d more\n", e.FollowMore)
	}
	printSection(&out, "It follows", e.Follows, object)
	return say(w, "%s", neutral.Trusted(out.String()))
}

func policyWithReason(p fleetv1alpha1.ExplainedPolicy) string {
	name := p.Kind + " " + p.Name
	if p.Reason != "" {
		name += ": " + p.Reason
	}
	return name
}

func printSection[T any](out *strings.Builder, title string, all []T, line func(T) string) {
	if len(all) > 0 {
		_ = say(out, "\n%s\n", title)
	}
	for _, one := range all {
		_ = say(out, "  %s\n", line(one))
	}
}

// notSelected is the reason of the verdict on clusters that a policy does not select.
const notSelected = "NotSelected"

// printWhyClusters prints the clusters, and returns how many it left out.
func printWhyClusters(out *strings.Builder, e *fleetv1alpha1.PlacementExplanation, wide bool) (left int) {
	if len(e.Clusters) == 0 {
		return 0
	}
	t := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "\nCLUSTER\tPLACED\tREPLICAS\tWHY") //nolint:errcheck // it is memory
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
			why = append(why, "what is there moves out")
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
	_ = t.Flush() // as above
	return left
}
