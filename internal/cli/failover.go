package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/neutral"
)

// failoverStatus is the result of "orrery failover status". docs/commands.md documents its JSON.
type failoverStatus struct {
	// Paused is true while no further object is evicted. It is also true if the ConfigMap is invalid,
	// because orrery server then evicts nothing either; Problem says what is invalid.
	Paused  bool   `json:"paused"`
	Problem string `json:"problem,omitempty"`
	// By is the user who paused or resumed last, Why the reason that this user gave, and At the time.
	By  string       `json:"by,omitempty"`
	Why string       `json:"why,omitempty"`
	At  *metav1.Time `json:"at,omitempty"`
	// TaintsCountFrom is set while taints that were added before it are not confirmed.
	TaintsCountFrom *metav1.Time `json:"taintsCountFrom,omitempty"`
	// Taints, Leaving and Waiting are never nil.
	Taints  []evictingTaint  `json:"taints"`
	Leaving []leavingCluster `json:"leaving"`
	Waiting []waitingObject  `json:"waiting"`
}

// evictingTaint is a taint of a cluster with the effect NoExecute, which evicts the objects that do
// not tolerate it.
type evictingTaint struct {
	Cluster string `json:"cluster"`
	Key     string `json:"key"`
	Value   string `json:"value,omitempty"`
	// Since is when the taint was added. nil: orrery server has not recorded the time yet, and the
	// taint evicts nothing until then.
	Since *metav1.Time `json:"since,omitempty"`
	// Unconfirmed is true if the taint is older than the first start with failover, or its time is
	// unknown, or the ConfigMap is invalid and has no time of that start. The taint evicts nothing
	// until a user confirms it.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// String returns the taint as KEY=VALUE:EFFECT.
func (t *evictingTaint) String() string {
	return (&corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffectNoExecute}).ToString()
}

// leavingCluster counts the objects that leave a cluster because of a taint.
type leavingCluster struct {
	Cluster string `json:"cluster"`
	Objects int    `json:"objects"`
}

// waitingObject is an object that has to leave a cluster because of a taint, and waits.
type waitingObject struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	// Taint is KEY=VALUE:EFFECT. Reason and Message say what the object waits for.
	Taint   string `json:"taint"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// storedFailover is the state of failover as the hub stores it.
type storedFailover struct {
	config corev1.ConfigMap
	state  failover.State
	// problem is the error of an invalid config. orrery server treats such a state as paused.
	problem error
}

// newFailover returns the command "orrery failover", with its subcommands.
func newFailover(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Show, pause and resume the eviction of objects from clusters with taints",
		Long: `Show, pause and resume the eviction of objects from clusters. A taint with the effect NoExecute evicts
the objects whose policy does not tolerate it, or no longer does. Users set such taints with "orrery
taint", and a ClusterTaintPolicy sets them while a cluster does not answer.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var f hubFlags
	f.add(cmd)
	cmd.AddCommand(newFailoverStatus(s, &f), newFailoverPause(s, &f), newFailoverResume(s, &f))
	return cmd
}

func newFailoverStatus(s streams, f *hubFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether evictions are paused, which taints evict, and which objects leave or wait",
		Long: `Show whether evictions are paused, by whom and why; the taints that evict; how many objects leave each
cluster because of a taint; and which objects wait to leave, with the reason. With -o wide each object
that waits is a row of its own.

A taint is unconfirmed if it is older than the first start of orrery server with failover: it evicts
nothing until "orrery failover resume".`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := f.failover(ctx, s.err)
			if err != nil {
				return err
			}
			stored, err := readFailover(ctx, c)
			if err != nil {
				return err
			}
			var clusters clusterv1alpha1.ClusterList
			if err := c.List(ctx, &clusters); err != nil {
				return fmt.Errorf("list clusters: %w", err)
			}
			bindings, err := listBindings(ctx, c)
			if err != nil {
				return err
			}
			status := stored.status(clusters.Items, bindings)
			return printValue(s.out, output, status, func(w io.Writer) error { return status.print(w, output == outputWide, time.Now()) })
		},
	}
	addOutput(cmd, &output)
	return cmd
}

func newFailoverPause(s streams, f *hubFlags) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Pause evictions: no further object leaves a cluster because of a taint",
		Long: `Pause evictions: no further object leaves a cluster because of a taint, until "orrery failover resume".
Objects that leave already continue.`,
		Example: `  orrery failover pause --reason "network maintenance until 14:00"`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := f.failover(ctx, s.err)
			if err != nil {
				return err
			}
			var was failover.State
			paused := false // it was paused already
			err = writeFailover(ctx, c, func(stored *storedFailover) (failover.State, bool) {
				was, paused = stored.state, stored.state.Paused && stored.problem == nil
				if paused && reason == "" {
					return was, false
				}
				now := time.Now()
				next := failover.State{Known: true, Paused: true, By: f.caller(ctx, c), Why: reason, At: now, CountFrom: was.CountFrom}
				if stored.problem != nil {
					next.CountFrom = now // the stored time may be lost, so the taints of now need a confirmation
				}
				return next, true
			})
			if err != nil {
				return err
			}
			if paused && reason == "" {
				return say(s.out, "evictions are paused already%s\n", lastChange("", was.By, was.At, was.Why, time.Now()))
			}
			return say(s.out, "evictions are paused; objects that leave a cluster already continue. %q ends the pause\n", programName+" failover resume")
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why evictions are paused, for other users")
	return cmd
}

func newFailoverResume(s streams, f *hubFlags) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume evictions, and confirm taints that are older than the first start with failover",
		Long: `Resume evictions after "orrery failover pause". The command also confirms the taints that are older than
the first start of orrery server with failover, and prints them: from now on they evict the objects that
do not tolerate them. "orrery failover status" lists them before. The command does not ask.`,
		Example: `  orrery failover resume --reason "maintenance is over"`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := f.failover(ctx, s.err)
			if err != nil {
				return err
			}
			// The list comes before the write, so that a user without the right to it changes nothing.
			var clusters clusterv1alpha1.ClusterList
			if err := c.List(ctx, &clusters); err != nil {
				return fmt.Errorf("list clusters: %w", err)
			}
			var was storedFailover // the state before
			changed := false
			err = writeFailover(ctx, c, func(stored *storedFailover) (failover.State, bool) {
				was, changed = *stored, stored.problem != nil || stored.state.Paused || !stored.state.CountFrom.IsZero()
				return failover.State{Known: true, By: f.caller(ctx, c), Why: reason, At: time.Now()}, changed
			})
			if err != nil {
				return err
			}
			if !changed {
				return say(s.out, "evictions are not paused, and every taint is confirmed: nothing to resume\n")
			}
			confirmed := slices.DeleteFunc(was.taints(clusters.Items), func(t evictingTaint) bool { return !t.Unconfirmed })
			return printResumed(s.out, &was, confirmed)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why evictions continue, for other users")
	return cmd
}

// printResumed prints what "orrery failover resume" has changed. was is the state before, and
// confirmed are the taints that were not confirmed then.
func printResumed(w io.Writer, was *storedFailover, confirmed []evictingTaint) error {
	text := "evictions are resumed\n"
	if was.problem == nil && !was.state.Paused {
		text = "evictions were not paused\n"
	}
	if err := say(w, "%s", neutral.Trusted(text)); err != nil {
		return err
	}
	if len(confirmed) == 0 && !was.state.CountFrom.IsZero() {
		return say(w, "no taint had to be confirmed; from now on every taint counts\n")
	}
	for i := range confirmed {
		since := ""
		if confirmed[i].Since != nil {
			since = ", added at " + utc(confirmed[i].Since)
		}
		if err := say(w, "confirmed: taint %s of cluster %s%s\n", confirmed[i].String(), confirmed[i].Cluster, since); err != nil {
			return err
		}
	}
	return nil
}

// failover returns a client of the hub for the commands of failover. The context of the kubeconfig
// may be that of the hub, of the fleet or of a member. It sends no request. Warnings of the hub are
// written to w.
func (f *hubFlags) failover(ctx context.Context, w io.Writer) (client.Client, error) {
	h, err := f.api(ctx, w)
	if err != nil {
		return nil, err
	}
	c, err := client.New(h.config, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	return c, nil
}

// caller requests the name by which the hub knows the user of the kubeconfig. If the hub does not
// return one, it is the name of the user in the kubeconfig, or "".
func (f *hubFlags) caller(ctx context.Context, c client.Client) string {
	var review authenticationv1.SelfSubjectReview
	if err := c.Create(ctx, &review); err == nil && review.Status.UserInfo.Username != "" {
		return review.Status.UserInfo.Username
	}
	loaded, _, err := f.load()
	if err != nil {
		return ""
	}
	raw, err := loaded.RawConfig()
	if err != nil {
		return ""
	}
	name := f.context
	if name == "" && raw.Contexts["hub"] != nil { // as load chooses the context
		name = "hub"
	}
	if of := raw.Contexts[cmp.Or(name, raw.CurrentContext)]; of != nil {
		return of.AuthInfo
	}
	return ""
}

// failoverConfigMap is the name of the ConfigMap with the state of failover.
var failoverConfigMap = types.NamespacedName{Namespace: clusterv1alpha1.SecretNamespace, Name: failover.ConfigMapName}

// readFailover requests the state of failover from the hub. An invalid state is no error; see
// storedFailover. If the hub has none, the error says how it gets one.
func readFailover(ctx context.Context, c client.Client) (*storedFailover, error) {
	var stored storedFailover
	err := c.Get(ctx, failoverConfigMap, &stored.config)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read ConfigMap %s: the hub does not have it; a running server of this version creates it", failoverConfigMap)
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", failoverConfigMap, err)
	}
	stored.state, stored.problem = failover.ParseState(stored.config.Data)
	return &stored, nil
}

// writeFailover replaces the state of failover on the hub by the one that change returns, unless
// change returns false. If another client changes the ConfigMap meanwhile, it reads the state and
// calls change again, a few times.
func writeFailover(ctx context.Context, c client.Client, change func(*storedFailover) (next failover.State, changed bool)) error {
	try := func() error {
		stored, err := readFailover(ctx, c)
		if err != nil {
			return err
		}
		next, changed := change(stored)
		if !changed {
			return nil
		}
		before := stored.config.DeepCopy()
		if stored.config.Data == nil {
			stored.config.Data = map[string]string{}
		}
		maps.Copy(stored.config.Data, next.Data())
		if err := c.Patch(ctx, &stored.config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("write ConfigMap %s: %w", failoverConfigMap, err)
		}
		return nil
	}
	// RetryOnConflict returns nil after an error of the context, so the function stores its error in
	// err.
	var err error
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err = try()
		return err
	})
	return err
}

// status returns the state of failover for the user. clusters and bindings are all of the hub.
func (f *storedFailover) status(clusters []clusterv1alpha1.Cluster, bindings []*workv1alpha2.ResourceBinding) *failoverStatus {
	status := &failoverStatus{
		Paused: f.state.Paused || f.problem != nil, By: f.state.By, Why: f.state.Why, At: timeOf(f.state.At), TaintsCountFrom: timeOf(f.state.CountFrom),
		Taints: f.taints(clusters), Leaving: []leavingCluster{}, Waiting: []waitingObject{},
	}
	if f.problem != nil {
		status.Problem = strings.ReplaceAll(f.problem.Error(), "\n", "; ") // one for each key
	}
	leaving := map[string]int{}
	for _, b := range bindings {
		for i := range b.Spec.GracefulEvictionTasks {
			if task := &b.Spec.GracefulEvictionTasks[i]; task.Reason == workv1alpha2.ReasonTaintUntolerated {
				leaving[task.FromCluster]++
			}
		}
		scheduled := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionScheduled)
		if scheduled == nil {
			continue
		}
		for _, w := range waitsIn(scheduled.Message) {
			w.Namespace, w.Kind, w.Name = b.Namespace, b.Spec.Resource.Kind, b.Spec.Resource.Name
			status.Waiting = append(status.Waiting, w)
		}
	}
	for cluster, objects := range leaving {
		status.Leaving = append(status.Leaving, leavingCluster{Cluster: cluster, Objects: objects})
	}
	slices.SortFunc(status.Leaving, func(a, b leavingCluster) int { return cmp.Compare(a.Cluster, b.Cluster) })
	slices.SortFunc(status.Waiting, func(a, b waitingObject) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return status
}

// taints returns the taints of clusters that evict objects, sorted by cluster, key and value. The
// result is not nil.
func (f *storedFailover) taints(clusters []clusterv1alpha1.Cluster) []evictingTaint {
	all := make([]evictingTaint, 0)
	from := f.state.CountFrom
	unconfirmed := func(added *metav1.Time) bool {
		if from.IsZero() {
			return f.problem != nil // the time may be what is invalid
		}
		return added.IsZero() || added.Time.Before(from)
	}
	for i := range clusters {
		for _, t := range clusters[i].Spec.Taints {
			if t.Effect == corev1.TaintEffectNoExecute {
				all = append(all, evictingTaint{
					Cluster: clusters[i].Name, Key: t.Key, Value: t.Value, Since: t.TimeAdded,
					Unconfirmed: unconfirmed(t.TimeAdded),
				})
			}
		}
	}
	slices.SortFunc(all, func(a, b evictingTaint) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
	})
	return all
}

// waitsIn returns what a message of the condition Scheduled says about evictions that wait. Each is
// a clause "to leave CLUSTER because of taint TAINT, waits: REASON (MESSAGE)", and clauses are
// separated by "; ". The results do not name the object.
func waitsIn(message string) []waitingObject {
	const begin = "; to leave "
	var all []waitingObject
	for _, clause := range strings.Split("; "+message, begin)[1:] {
		cluster, rest, hasTaint := strings.Cut(clause, " because of taint ")
		taint, rest, hasReason := strings.Cut(rest, ", waits: ")
		if !hasTaint || !hasReason || strings.ContainsAny(cluster+taint, " ;") {
			continue
		}
		w := waitingObject{Cluster: cluster, Taint: taint, Reason: rest}
		if end := strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) }); end >= 0 {
			w.Reason, w.Message = rest[:end], parenthesized(rest[end:])
		}
		all = append(all, w)
	}
	return all
}

// parenthesized returns what text has between " (", with which it begins, and the parenthesis that
// closes that one. Without the latter it is the rest of text, and "" if text begins otherwise.
func parenthesized(text string) string {
	text, ok := strings.CutPrefix(text, " (")
	if !ok {
		return ""
	}
	open := 1
	for i, r := range text {
		switch r {
		case '(':
			open++
		case ')':
			if open--; open == 0 {
				return text[:i]
			}
		}
	}
	return text
}

// timeOf returns t for a status; nil for the zero time.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}

// utc returns a time in RFC 3339, in UTC; "-" for nil.
func utc(t *metav1.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// lastChange returns the end of a sentence about the last change of the state: who paused or
// resumed evictions, how long before now, and why, as in " (resumed by alice, 5m ago: it is over)".
// did is the verb; "": the sentence has it. What is unknown is left out. The result is "" if when
// is zero.
func lastChange(did, by string, when time.Time, why string, now time.Time) string {
	if when.IsZero() {
		return ""
	}
	if by != "" {
		did = strings.TrimSpace(did + " by " + by)
	}
	text := strings.TrimPrefix(did+", "+duration.HumanDuration(now.Sub(when))+" ago", ", ")
	if why != "" {
		text += ": " + why
	}
	return " (" + text + ")"
}

// print prints the status for people. now is the present time, for ages. If wide is true, each
// object that waits is a row; otherwise objects that wait for the same are a row with their number.
func (f *failoverStatus) print(w io.Writer, wide bool, now time.Time) error {
	var out strings.Builder
	// writing to memory does not fail
	p := func(format string, args ...any) { _ = say(&out, format, args...) }
	var last time.Time
	if f.At != nil {
		last = f.At.Time
	}
	resume := programName + " failover resume"
	switch {
	case f.Problem != "":
		p("Evictions are paused, because ConfigMap %s is invalid: %s.\n%q writes a valid one.\n", failoverConfigMap, f.Problem, resume)
	case f.Paused:
		p("Evictions are paused%s.\n%q ends the pause.\n", lastChange("", f.By, last, f.Why, now), resume)
	default:
		p("Evictions are not paused by a user%s.\n", lastChange("resumed", f.By, last, f.Why, now))
	}
	f.printTaints(&out, now)
	f.printLeaving(&out)
	f.printWaiting(&out, wide)
	return say(w, "%s", neutral.Trusted(out.String()))
}

// printTaints prints the taints that evict, with the way to confirm those that need that.
func (f *failoverStatus) printTaints(out *strings.Builder, now time.Time) {
	if len(f.Taints) == 0 {
		_ = say(out, "\nNo cluster has a taint with the effect NoExecute.\n")
		return
	}
	t := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "\nCLUSTER\tTAINT\tSINCE\tCONFIRMED") //nolint:errcheck // writing to memory does not fail
	unconfirmed := false
	for i := range f.Taints {
		taint := &f.Taints[i]
		since, confirmed := "-", "not yet" // the server will set the time
		if taint.Since != nil {
			since, confirmed = duration.HumanDuration(now.Sub(taint.Since.Time)), "yes"
			if taint.Unconfirmed {
				confirmed, unconfirmed = "no", true
			}
		}
		_ = sayRow(t, taint.Cluster, taint.String(), since, confirmed)
	}
	_ = t.Flush() // writing to memory does not fail
	switch resume := programName + " failover resume"; {
	case !unconfirmed:
	case f.TaintsCountFrom == nil:
		_ = say(out, "Which taints were confirmed is unknown, because the ConfigMap is invalid. They evict nothing.\n%q confirms all of them.\n", resume)
	default:
		_ = say(out, "Taints that are not confirmed were added before %s, the first start with failover, and evict nothing.\n%q confirms them.\n",
			utc(f.TaintsCountFrom), resume)
	}
}

// printLeaving prints how many objects leave each cluster.
func (f *failoverStatus) printLeaving(out *strings.Builder) {
	if len(f.Leaving) == 0 {
		_ = say(out, "\nNo object leaves a cluster because of a taint.\n")
		return
	}
	t := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "\nLEAVING\tOBJECTS") //nolint:errcheck // writing to memory does not fail
	for _, l := range f.Leaving {
		_ = sayRow(t, l.Cluster, strconv.Itoa(l.Objects))
	}
	_ = t.Flush() // writing to memory does not fail
}

// printWaiting prints the objects that wait to leave: each of them if wide is true, otherwise their
// number for each cluster, taint, reason and message.
func (f *failoverStatus) printWaiting(out *strings.Builder, wide bool) {
	if len(f.Waiting) == 0 {
		_ = say(out, "\nNo object says in Scheduled that it waits to leave a cluster.\n")
		return
	}
	t := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	if wide {
		fmt.Fprintln(t, "\nWAITS IN\tNAMESPACE\tKIND\tNAME\tTAINT\tREASON\tMESSAGE") //nolint:errcheck // writing to memory does not fail
		for _, o := range f.Waiting {
			_ = sayRow(t, o.Cluster, cmp.Or(o.Namespace, "-"), o.Kind, o.Name, o.Taint, o.Reason, cmp.Or(o.Message, "-"))
		}
		_ = t.Flush() // writing to memory does not fail
		return
	}
	fmt.Fprintln(t, "\nWAITS IN\tOBJECTS\tTAINT\tREASON\tMESSAGE") //nolint:errcheck // writing to memory does not fail
	sums := map[waitingObject]int{}
	var order []waitingObject
	for _, o := range f.Waiting { // sorted by cluster
		o.Namespace, o.Kind, o.Name = "", "", ""
		if sums[o]++; sums[o] == 1 {
			order = append(order, o)
		}
	}
	for _, o := range order {
		_ = sayRow(t, o.Cluster, strconv.Itoa(sums[o]), o.Taint, o.Reason, cmp.Or(o.Message, "-"))
	}
	_ = t.Flush() // writing to memory does not fail
}
