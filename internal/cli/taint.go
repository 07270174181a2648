package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/neutral"
)

// cordoned is the taint of a cluster that "orrery cordon" sets, so that the cluster gets no new
// objects.
var cordoned = corev1.Taint{Key: clusterv1alpha1.TaintUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// tainting has the flags of "orrery taint", "cordon" and "uncordon", and the change of taints that
// the command makes.
type tainting struct {
	streams

	hub              hubFlags
	selector, dryRun string
	all, overwrite   bool
	set              []corev1.Taint
	removed          []corev1.Taint // with Effect "": all taints with the key
	already, did     string         // messages for a cluster without and with a change
	mayLack          bool           // a taint to remove may be absent
	previews         bool           // --dry-run=server prints what would move
}

func (t *tainting) add(cmd *cobra.Command) {
	t.hub.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&t.selector, "selector", "l", "", "the clusters with these labels, instead of names")
	flags.BoolVar(&t.all, "all", false, "all clusters, instead of names")
	flags.StringVar(&t.dryRun, "dry-run", "none", "none; client: only say what would be done; server: have the hub check it, too")
	// An error means that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"none", "client", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

func newCordon(s streams) *cobra.Command {
	t := &tainting{streams: s, set: []corev1.Taint{cordoned}, already: "already cordoned", did: "cordoned"}
	cmd := &cobra.Command{
		Use:   "cordon CLUSTER ...",
		Short: "Cordon clusters: they get no new objects",
		Long: `Have clusters get nothing new: they get the taint ` + cordoned.ToString() + `.
What is placed there stays and is kept up to date. Policies that tolerate the taint still place.`,
		Example:           `  orrery cordon oak`,
		ValidArgsFunction: t.hub.completeMoreClusters,
		RunE:              func(cmd *cobra.Command, args []string) error { return asKubectl(t.run(cmd, args)) },
	}
	t.add(cmd)
	return cmd
}

func newUncordon(s streams) *cobra.Command {
	t := &tainting{streams: s, removed: []corev1.Taint{cordoned}, mayLack: true, already: "already uncordoned", did: "uncordoned"}
	cmd := &cobra.Command{
		Use:               "uncordon CLUSTER ...",
		Short:             "Uncordon clusters: they get new objects again",
		Long:              "Take the taint " + cordoned.ToString() + " from clusters.",
		Example:           `  orrery uncordon oak`,
		ValidArgsFunction: t.hub.completeMoreClusters,
		RunE:              func(cmd *cobra.Command, args []string) error { return asKubectl(t.run(cmd, args)) },
	}
	t.add(cmd)
	return cmd
}

func newTaint(s streams) *cobra.Command {
	t := &tainting{streams: s, did: "tainted", already: "unchanged", previews: true}
	cmd := &cobra.Command{
		Use:   "taint cluster NAME ... KEY[=VALUE]:EFFECT ... KEY[:EFFECT]- ...",
		Short: "Add and remove taints of clusters",
		Long: `Set taints of clusters, and take away those that end with a minus: KEY- of every effect. Taints
keep objects out whose policy does not tolerate them, as those of nodes keep pods out.

Effects are NoSchedule, NoExecute and PreferNoSchedule. NoExecute keeps new objects out, and evicts those
that are placed there: at once if their policy does not tolerate the taint, or when its tolerationSeconds
are over. Evictions begin at a limited rate, and move objects without loss unless the policy has another
purgeMode; "orrery failover status" shows them. PreferNoSchedule is stored, without effect.

With --dry-run=server the command changes nothing and prints which objects would move when their
tolerations are over. You then need the right to create placementreviews, too.`,
		Example: `  orrery taint cluster oak maintenance=disk:NoSchedule
  orrery taint cluster oak maintenance-
  orrery taint cluster oak maintenance=disk:NoExecute --dry-run=server
  orrery taint clusters --selector env=test gpu:NoSchedule --overwrite`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"cluster", "clusters"}, cobra.ShellCompDirectiveNoFileComp
			}
			return t.hub.completeMoreClusters(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := t.parse(args)
			if err != nil {
				return err
			}
			return asKubectl(t.run(cmd, names))
		},
	}
	t.add(cmd)
	cmd.Flags().BoolVar(&t.overwrite, "overwrite", false, "give a taint that is there another value")
	return cmd
}

// parse parses the arguments of "orrery taint": the type cluster, names of clusters, and taints. It
// returns the names, which may be none, and sets t.set and t.removed. Every error is a usageError.
func (t *tainting) parse(args []string) (names []string, err error) {
	if len(args) == 0 || !slices.Contains([]string{"cluster", "clusters", "clusters." + clusterv1alpha1.GroupVersion.Group}, args[0]) {
		return nil, usageError{errors.New(`want the type cluster first, as in "taint cluster oak key=value:NoSchedule"`)}
	}
	t.set, t.removed = nil, nil
	for _, arg := range args[1:] {
		if !strings.ContainsAny(arg, "=:") && !strings.HasSuffix(arg, "-") {
			if len(t.set)+len(t.removed) > 0 {
				return nil, usageError{fmt.Errorf("%q: names of clusters come before taints, and a taint is KEY[=VALUE]:EFFECT or, to take it away, KEY[:EFFECT]-", arg)}
			}
			names = append(names, arg)
			continue
		}
		taint, remove, err := parseTaint(arg)
		if err != nil {
			return nil, usageError{err}
		}
		same := func(other corev1.Taint) bool { return other.Key == taint.Key && other.Effect == taint.Effect }
		if slices.ContainsFunc(t.set, same) || slices.ContainsFunc(t.removed, same) {
			return nil, usageError{fmt.Errorf("taint %q: its key and effect are named twice", arg)}
		}
		if remove {
			t.removed = append(t.removed, taint)
		} else {
			t.set = append(t.set, taint)
		}
	}
	if len(t.set)+len(t.removed) == 0 {
		return nil, usageError{errors.New("want at least one taint: KEY[=VALUE]:EFFECT or, to take it away, KEY[:EFFECT]-")}
	}
	if len(t.set) == 0 {
		t.did = "untainted"
	}
	return names, nil
}

// parseTaint parses KEY[=VALUE]:EFFECT. A text KEY[:EFFECT]- names a taint to remove; without
// EFFECT the taint's Effect is "". It returns an error if the key, the value or the effect is
// invalid.
func parseTaint(text string) (taint corev1.Taint, remove bool, err error) {
	rest, remove := strings.CutSuffix(text, "-")
	rest, effect, hasEffect := strings.Cut(rest, ":")
	key, value, hasValue := strings.Cut(rest, "=")
	taint = corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return taint, remove, fmt.Errorf("taint %q: key %q: %s", text, key, strings.Join(wrong, "; "))
	}
	if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
		return taint, remove, fmt.Errorf("taint %q: value %q: %s", text, value, strings.Join(wrong, "; "))
	}
	switch {
	case remove && hasValue:
		return taint, remove, fmt.Errorf("taint %q: one is taken away by its key, and its effect if only that is meant: KEY[:EFFECT]-", text)
	case remove && !hasEffect:
		return taint, remove, nil
	case !slices.Contains([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}, taint.Effect):
		return taint, remove, fmt.Errorf("taint %q: effect %q: want NoSchedule, PreferNoSchedule or NoExecute", text, effect)
	}
	return taint, remove, nil
}

// change returns a copy of taints in which those of t.removed are removed and those of t.set are
// set. changed reports whether the copy differs. It is an error to set another value of an existing
// taint without --overwrite, and to remove an absent one unless t.mayLack. now is the time of new
// taints with the effect NoExecute.
func (t *tainting) change(taints []corev1.Taint, now metav1.Time) (out []corev1.Taint, changed bool, err error) {
	out = slices.Clone(taints)
	for _, gone := range t.removed {
		is := func(has corev1.Taint) bool {
			return has.Key == gone.Key && (gone.Effect == "" || has.Effect == gone.Effect)
		}
		if !slices.ContainsFunc(out, is) {
			if !t.mayLack {
				return nil, false, fmt.Errorf("it has no taint %q", strings.TrimSuffix(gone.Key+":"+string(gone.Effect), ":"))
			}
			continue
		}
		out, changed = slices.DeleteFunc(out, is), true
	}
	for _, taint := range t.set {
		i := slices.IndexFunc(out, func(has corev1.Taint) bool { return has.MatchTaint(&taint) })
		switch {
		case i < 0:
			if taint.Effect == corev1.TaintEffectNoExecute {
				taint.TimeAdded = &now
			}
			out, changed = append(out, taint), true
		case out[i].Value == taint.Value:
		case !t.overwrite:
			return nil, false, fmt.Errorf("it has the taint %q already: --overwrite gives it another value", out[i].ToString())
		default:
			out[i].Value, changed = taint.Value, true
		}
	}
	return out, changed, nil
}

func (t *tainting) run(cmd *cobra.Command, names []string) error {
	ctx := cmd.Context()
	given := 0
	for _, is := range []bool{len(names) > 0, t.selector != "", t.all} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return usageError{fmt.Errorf("want names of clusters, or --selector, or --all; see %q", cmd.CommandPath()+" --help")}
	case !slices.Contains([]string{"none", "client", "server"}, t.dryRun):
		return usageError{fmt.Errorf("--dry-run %q: want none, client or server", t.dryRun)}
	}
	if err := checkSelector(t.selector); err != nil {
		return err
	}
	h, err := t.hub.api(ctx, t.err)
	if err != nil {
		return err
	}
	c, err := client.New(h.config, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	if len(names) == 0 {
		var clusters clusterv1alpha1.ClusterList
		if err := c.List(ctx, &clusters, &client.ListOptions{Raw: &metav1.ListOptions{LabelSelector: t.selector}}); err != nil {
			return err
		}
		for i := range clusters.Items {
			names = append(names, clusters.Items[i].Name)
		}
		if len(names) == 0 {
			return say(t.err, "No resources found\n")
		}
	}
	if t.previews && t.dryRun == "server" && len(names) > 1 {
		if err := say(t.err, "each preview supposes that the taints of only this one cluster change\n"); err != nil {
			return err
		}
	}
	var failed []error
	for _, name := range names {
		taints, changed, err := t.taint(ctx, c, name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		did := t.did
		if !changed {
			did = t.already
		} else if t.dryRun != "none" {
			did += " (" + map[string]string{"client": "dry run", "server": "server dry run"}[t.dryRun] + ")"
		}
		if err := say(t.out, "cluster/%s %s\n", name, did); err != nil {
			return err
		}
		if !t.previews || !changed || t.dryRun != "server" {
			continue
		}
		status, err := h.movesByTaints(ctx, name, taints)
		if err != nil {
			failed = append(failed, fmt.Errorf("cluster %s: preview what would move: %w", name, err))
			continue
		}
		if err := printMoves(t.out, status); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// movesByTaints requests what would move if a cluster had these taints, and no others. It changes
// nothing. An error of the hub is returned as its Status.
func (h *hubAPI) movesByTaints(ctx context.Context, cluster string, taints []corev1.Taint) (*fleetv1alpha1.PlacementReviewStatus, error) {
	asJSON := dynamic.ConfigFor(h.config)
	asJSON.GroupVersion = &schema.GroupVersion{}
	c, err := rest.UnversionedRESTClientFor(asJSON)
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	// Without taints the list is empty and not nil, because nil means that the taints do not change.
	change := fleetv1alpha1.SupposedCluster{Name: cluster, Taints: append([]corev1.Taint{}, taints...)}
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"moves": fleetv1alpha1.SupposedChange{Cluster: &change}}})
	if err != nil {
		return nil, fmt.Errorf("encode the review: %w", err)
	}
	answered, err := c.Post().AbsPath(fleetv1alpha1.PlacementReviewsPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return nil, refusalIn(answered, err)
	}
	var review fleetv1alpha1.PlacementReview
	if err := json.Unmarshal(answered, &review); err != nil {
		return nil, fmt.Errorf("read the hub's answer: %w", err)
	}
	if review.Status == nil {
		return nil, errors.New("read the hub's answer: it has no status")
	}
	return review.Status, nil
}

// printMoves prints what a change of taints would move, one object a line, below the line about the
// cluster.
func printMoves(w io.Writer, status *fleetv1alpha1.PlacementReviewStatus) error {
	m := status.Moves
	if m == nil {
		return say(w, "  what would move is unknown: %s\n", status.Message)
	}
	var out strings.Builder
	// writing to memory does not fail
	p := func(format string, args ...any) { _ = say(&out, format, args...) }
	if m.Moving == 0 && m.Exact {
		p("  no object would move\n")
	} else {
		p("  %d of %d objects would move:\n", m.Moving, m.Looked)
	}
	for i := range m.Items {
		p("  - %s\n", moveText(&m.Items[i]))
	}
	if more := m.Moving - len(m.Items) - m.Hidden; more > 0 {
		p("  - and %d more\n", more)
	}
	if m.Hidden > 0 {
		p("  - and %d that you may not see\n", m.Hidden)
	}
	if !m.Exact {
		p("  more objects may move: the hub does not know all of them yet, or its time was over\n")
	}
	return say(w, "%s", neutral.Trusted(out.String()))
}

// moveText returns what would happen to an object, as in "Deployment shop/web: leaves oak (2
// replicas) once as much is available elsewhere, goes to elm (2 replicas)".
func moveText(m *fleetv1alpha1.PlacementMove) string {
	share := func(s *fleetv1alpha1.MovedShare) string {
		switch {
		case s.Replicas == nil:
			return ""
		case *s.Replicas == 1:
			return " (1 replica)"
		}
		return fmt.Sprintf(" (%d replicas)", *s.Replicas)
	}
	var parts []string
	for _, c := range m.Clusters {
		switch {
		case c.From == nil && c.To == nil:
		case c.From == nil:
			parts = append(parts, "goes to "+c.Name+share(c.To))
		case c.To == nil && c.Stays:
			parts = append(parts, "leaves "+c.Name+share(c.From)+" once as much is available elsewhere")
		case c.To == nil && c.Unmanaged:
			parts = append(parts, "moves out of "+c.Name+share(c.From)+", where the old copy stays without Orrery's marks")
		case c.To == nil:
			parts = append(parts, "leaves "+c.Name+share(c.From))
		case c.From.Replicas != nil && c.To.Replicas != nil:
			parts = append(parts, fmt.Sprintf("has %d replicas in %s instead of %d", *c.To.Replicas, c.Name, *c.From.Replicas))
		default:
			parts = append(parts, "changes in "+c.Name)
		}
	}
	if m.Hidden > 0 {
		parts = append(parts, fmt.Sprintf("changes in %d clusters that you may not see", m.Hidden))
	}
	if m.AtOnce {
		parts = append(parts, "is in no cluster then")
	}
	if m.Later {
		parts = append(parts, "after its next change, because its policy is Lazy")
	}
	name := m.Of.Kind + " " + m.Of.Name
	if m.Of.Namespace != "" {
		name = m.Of.Kind + " " + m.Of.Namespace + "/" + m.Of.Name
	}
	return name + ": " + strings.Join(parts, ", ")
}

// taint changes the taints of one Cluster on the hub. It returns the changed taints, and whether a
// change was necessary. With --dry-run=client it changes nothing; with --dry-run=server
// the hub only checks the change. If another client changes the Cluster meanwhile, it tries again a
// few times.
func (t *tainting) taint(ctx context.Context, c client.Client, name string) (taints []corev1.Taint, changed bool, err error) {
	try := func() error {
		var cluster clusterv1alpha1.Cluster
		if err := c.Get(ctx, types.NamespacedName{Name: name}, &cluster); err != nil {
			return err
		}
		before := cluster.DeepCopy()
		if taints, changed, err = t.change(cluster.Spec.Taints, metav1.Now()); err != nil {
			return fmt.Errorf("cluster %s: %w", name, err)
		}
		cluster.Spec.Taints = slices.Clone(taints)
		if !changed || t.dryRun == "client" {
			return nil
		}
		var options []client.PatchOption
		if t.dryRun == "server" {
			options = append(options, client.DryRunAll)
		}
		return c.Patch(ctx, &cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), options...)
	}
	// RetryOnConflict returns nil after an error of the context, so the function stores its error in
	// err.
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err = try()
		return err
	})
	return taints, changed, err
}
