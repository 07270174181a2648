package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/search"
)

// typedChange is one change of an object in a cluster, with the type of the object: a row of
// "orrery history" and "orrery diff".
type typedChange struct {
	Resource string `json:"resource"` // RESOURCE.GROUP
	fleetv1alpha1.ObjectChange
}

// object returns the changed object as RESOURCE.GROUP/NAME.
func (c *typedChange) object() string { return c.Resource + "/" + c.Name }

// when returns the time of the change in UTC, as RFC 3339; "-" if it is unknown.
func (c *typedChange) when() string {
	if c.Time == nil {
		return "-"
	}
	return c.Time.UTC().Format(time.RFC3339)
}

// by returns the field managers that made the change as MANAGER or MANAGER/SUBRESOURCE,
// without duplicates and separated by commas; "-" if they are unknown.
func (c *typedChange) by() string {
	var names []string
	for _, m := range c.By {
		name := m.Manager
		if m.Subresource != "" {
			name += "/" + m.Subresource
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return cmp.Or(strings.Join(names, ","), "-")
}

const (
	mostShown   = 60 // characters of a value on one line
	fieldsShown = 3  // fields in one row of a table
)

// whole returns the JSON of a value for output: on one line, of any length, with control characters
// replaced.
func whole(of json.RawMessage) neutral.Trusted { return neutral.Trusted(neutral.Line(string(of))) }

// short returns the JSON of a value for a row of a table: on one line, with control characters
// replaced, and cut to most characters; 0: not cut. For nil it returns "(none)".
func short(value json.RawMessage, most int) string {
	if value == nil {
		return "(none)"
	}
	text := neutral.Line(string(value))
	if r := []rune(text); most > 0 && len(r) > most {
		text = string(r[:most]) + "…"
	}
	return text
}

// what returns a summary of a change for a row of a table: its fields with their values before and
// after, and its cause. If all is false, it names only the first fieldsShown fields. Fields whose
// values are hidden have only their path. If there is nothing to say, it is "-".
func (c *typedChange) what(all bool) string {
	var parts []string
	for i, d := range c.Fields {
		if i == fieldsShown && !all {
			parts = append(parts, fmt.Sprintf("and %d more", len(c.Fields)-i))
			break
		}
		if d.Hidden {
			parts = append(parts, neutral.Line(d.Path))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s: %s → %s", neutral.Line(d.Path), short(d.Before, mostShown), short(d.After, mostShown)))
	}
	if c.Cause != "" {
		parts = append(parts, fmt.Sprintf("(%s)", neutral.Line(c.Cause)))
	}
	return cmp.Or(strings.Join(parts, "; "), "-")
}

// printFields prints the value of each changed field before and after the change. Of texts with
// several lines it leaves out the equal lines at the beginning and at the end.
func printFields(w io.Writer, c *typedChange) error {
	for _, d := range c.Fields {
		switch before, after := lines(d.Before), lines(d.After); {
		case d.Hidden:
			if err := say(w, "    ~ %s: (not shown)\n", d.Path); err != nil {
				return err
			}
		case len(before) > 1 || len(after) > 1:
			if err := printLines(w, d.Path, before, after); err != nil {
				return err
			}
		default:
			if d.Before != nil {
				if err := say(w, "    - %s: %s\n", d.Path, whole(d.Before)); err != nil {
					return err
				}
			}
			if d.After != nil {
				if err := say(w, "    + %s: %s\n", d.Path, whole(d.After)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lines returns the lines of a JSON string. It is nil if value is nil or is not a string.
func lines(value json.RawMessage) []string {
	var text string
	if value == nil || json.Unmarshal(value, &text) != nil {
		return nil
	}
	return strings.Split(text, "\n")
}

// printLines prints the lines of a text at a path of the object, before and after a change. It
// leaves out the equal lines at the beginning and at the end, and prints the number of the first
// line that differs.
func printLines(w io.Writer, path string, before, after []string) error {
	first := 0
	for first < min(len(before), len(after)) && before[first] == after[first] {
		first++
	}
	last := 0
	for last < min(len(before), len(after))-first && before[len(before)-1-last] == after[len(after)-1-last] {
		last++
	}
	if err := say(w, "    ~ %s, line %d:\n", path, first+1); err != nil {
		return err
	}
	for _, side := range []struct {
		sign  string
		lines []string
	}{{"-", before[first : len(before)-last]}, {"+", after[first : len(after)-last]}} {
		for _, line := range side.lines {
			if err := say(w, "      %s %s\n", side.sign, neutral.Trusted(neutral.Line(line))); err != nil {
				return err
			}
		}
	}
	return nil
}

// named splits the arguments that name one object: TYPE/NAME, or TYPE NAME. Other arguments are a
// usageError. Whether the type exists is not checked.
func named(args []string) (kind, name string, err error) {
	switch {
	case len(args) == 1:
		var ok bool
		if kind, name, ok = strings.Cut(args[0], "/"); ok && kind != "" && name != "" {
			return kind, name, nil
		}
	case len(args) == 2:
		return args[0], args[1], nil
	}
	return "", "", usageError{fmt.Errorf("want one object, TYPE/NAME, not %q; see %q", strings.Join(args, " "), "orrery history --help")}
}

func newHistory(s streams) *cobra.Command {
	var (
		f                  hubFlags
		in                 where
		output             string
		limit              int
		deleted, diff, all bool
	)
	cmd := &cobra.Command{
		Use:   "history TYPE/NAME | --deleted [TYPE ...]",
		Short: "Show the changes of an object of the fleet and who made them, or list deleted objects",
		Long: `Tell the changes to an object, in every cluster that has it or had it, the latest first:
when the hub heard of them, who made them (the field manager), and what they changed. An object
that is gone is told of as well. Changes of nothing but status and the like are left out,
unless --all-fields asks for them.

With --deleted, list the objects that were deleted lately, of some types or of all.

What was is kept for as long as "orrery server --mirror-history-time" says, a week by default.`,
		Example: `  orrery history deploy/web --cluster oak -n shop --diff
  orrery history --deleted -n shop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usageError{errors.New("--limit must not be negative")}
			}
			if deleted && (diff || all) {
				return usageError{errors.New("--diff and --all-fields are of one object's changes: what is deleted has none")}
			}
			var kind, name string
			if !deleted {
				var err error
				if kind, name, err = named(args); err != nil {
					return err
				}
			}
			fleet, err := f.fleet(cmd.Context(), s.err)
			if err != nil {
				return err
			}
			if deleted {
				changes, partial, err := fleet.deleted(cmd.Context(), s.err, args, &in, limit)
				if err != nil {
					return err
				}
				return printValue(s.out, output, changes, func(w io.Writer) error { return printDeleted(w, changes, partial) })
			}
			changes, quiet, err := fleet.history(cmd.Context(), kind, name, &in, limit, all)
			if err != nil {
				return err
			}
			if err := printValue(s.out, output, changes, func(w io.Writer) error {
				return printHistory(w, changes, output == outputWide, diff)
			}); err != nil || quiet == 0 {
				return err
			}
			return say(s.err, "Left out are changes of status and the like alone: %d. --all-fields shows them.\n", quiet)
		},
	}
	f.add(cmd)
	in.add(cmd, &f, `namespace of the object (default "default"), or, with --deleted, of what is listed (default: all)`)
	addOutput(cmd, &output)
	cmd.Flags().IntVar(&limit, "limit", 20, "how many changes to show; 0 for all that are known")
	cmd.Flags().BoolVar(&deleted, "deleted", false, "list objects that were deleted")
	cmd.Flags().BoolVar(&diff, "diff", false, "show what each field was and is")
	cmd.Flags().BoolVar(&all, "all-fields", false, "show changes of status and of metadata that changes all the time, too")
	return cmd
}

// history returns the latest changes of an object, the latest first, at most limit; 0: all. in has
// the clusters and the namespace, "" for the namespace default. quiet counts updates that are left
// out, because only fields such as status changed. If all is true, changes of such fields are
// included. An object without history is an error.
func (c *fleetClient) history(ctx context.Context, kind, name string, in *where, limit int, all bool) (changes []typedChange, quiet int, err error) {
	found, err := c.find(kind)
	if err != nil {
		return nil, 0, err
	}
	namespace := ""
	if found.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace = cmp.Or(in.namespace, metav1.NamespaceDefault)
	} else if in.namespace != "" {
		return nil, 0, usageError{fmt.Errorf("--namespace: %s are in no namespace", found.Resource.Resource)}
	}
	resource := found.Resource.GroupResource().String()
	parameters := in.parameters(all)
	parameters.Set("history", "true")
	changes = []typedChange{}
	err = c.changes(ctx, pathOf(found.Resource, namespace, name), parameters, func(change fleetv1alpha1.ObjectChange) bool {
		if change.Change == fleetv1alpha1.ChangeUpdated && len(change.Fields) == 0 {
			quiet++
		} else {
			changes = append(changes, typedChange{resource, change})
		}
		return limit == 0 || len(changes) < limit
	})
	if apierrors.IsNotFound(err) {
		return nil, 0, fmt.Errorf("nothing is known of %s/%s%s: no cluster asked for has it, or had it as long as history is kept", resource, name, inNamespace(namespace))
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the history of %s/%s%s: %w", resource, name, inNamespace(namespace), err)
	}
	return changes, quiet, nil
}

// inNamespace returns " in namespace NAMESPACE" for a message; "" for a cluster-scoped object.
func inNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

func printHistory(w io.Writer, changes []typedChange, wide, diff bool) error {
	if !diff {
		t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
		fmt.Fprintln(t, "CLUSTER\tREVISION\tTIME\tCHANGE\tBY\tWHAT") //nolint:errcheck // Flush returns the error
		for i := range changes {
			c := &changes[i]
			_ = say(t, "%s\t%d\t%s\t%s\t%s\t%s\n", c.Cluster, c.Revision, c.when(), c.Change, c.by(), c.what(wide))
		}
		return t.Flush()
	}
	for i := range changes {
		c := &changes[i]
		cause := ""
		if c.Cause != "" {
			cause = " (" + c.Cause + ")"
		}
		if err := say(w, "%s  revision %d  %s  %s by %s%s\n", c.Cluster, c.Revision, c.when(), c.Change, c.by(), cause); err != nil {
			return err
		}
		if err := printFields(w, c); err != nil {
			return err
		}
	}
	return nil
}

// ask calls ask for each type in names or, without names, for all types of the fleet. The first
// error of ask is returned. Without names, two errors do not count: that a type has no history, and
// that the caller may not list it. Types that the caller may not list are printed to w, and partial
// is true. If no type could be read, the error names those that the caller may not list, or is
// errNoHistory.
func (c *fleetClient) ask(w io.Writer, names []string, ask func(schema.GroupVersionResource) error) (partial bool, err error) {
	var types []schema.GroupVersionResource
	for _, name := range names {
		found, err := c.find(name)
		if err != nil {
			return false, err
		}
		types = append(types, found.Resource)
	}
	if len(names) == 0 {
		lists, err := c.served.ServerPreferredResources()
		if err != nil {
			return false, fmt.Errorf("read the fleet's types: %w", err)
		}
		for _, list := range lists {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			if err != nil {
				return false, fmt.Errorf("read the fleet's types: %w", err)
			}
			for _, r := range list.APIResources {
				types = append(types, gv.WithResource(r.Name))
			}
		}
	}
	var unlisted leftOut
	answered := false
	for _, gvr := range types {
		err := ask(gvr)
		switch {
		case err == nil:
			answered = true
		case len(names) == 0 && unlisted.take(gvr.GroupResource(), err):
		// No history is kept, or no requested cluster has the type.
		case len(names) == 0 && (apierrors.HasStatusCause(err, fleetv1alpha1.CauseNoHistory) || apierrors.IsNotFound(err)):
		default:
			return false, fmt.Errorf("read the history of %s: %w", gvr.GroupResource(), err)
		}
	}
	switch {
	case !answered && len(unlisted.types) > 0:
		return false, unlisted.err()
	case !answered && len(types) > 0:
		return false, errNoHistory
	case len(unlisted.types) == 0:
		return false, nil
	}
	return true, say(w, "Left out is what you may not list: %s.\n", strings.Join(unlisted.types, ", "))
}

// errNoHistory is the error if no type of the fleet has a history. Otherwise the command would
// print that nothing changed.
var errNoHistory = errors.New("none of the fleet's types has a history here: the hub keeps none, or the clusters that you asked for and may see do not serve the types; " +
	`see --mirror-history-time and --mirror-history-size of "orrery server", and "orrery cluster list"`)

// deleted returns the latest deleted objects of some types, the latest first, at most limit; 0:
// all. If types is empty, they are of all types. in has the clusters and the namespace. partial is
// true if the caller may not list some types, which are printed to w.
func (c *fleetClient) deleted(ctx context.Context, w io.Writer, types []string, in *where, limit int) (changes []typedChange, partial bool, err error) {
	changes = []typedChange{}
	parameters := in.parameters(false)
	parameters.Set("deleted", "true")
	partial, err = c.ask(w, types, func(gvr schema.GroupVersionResource) error {
		n := 0
		return c.changes(ctx, pathOf(gvr, in.namespace, ""), parameters, func(change fleetv1alpha1.ObjectChange) bool {
			changes = append(changes, typedChange{gvr.GroupResource().String(), change})
			n++
			return limit == 0 || n < limit
		})
	})
	if err != nil {
		return nil, false, err
	}
	slices.SortStableFunc(changes, func(a, b typedChange) int { return cmp.Compare(b.Revision, a.Revision) })
	if limit > 0 && len(changes) > limit {
		changes = changes[:limit]
	}
	return changes, partial, nil
}

func printDeleted(w io.Writer, changes []typedChange, partial bool) error {
	if len(changes) == 0 {
		return say(w, "Nothing%s was deleted.\n", thatYouMayList(partial))
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "CLUSTER\tNAMESPACE\tOBJECT\tDELETED\tUID") //nolint:errcheck // Flush returns the error
	for i := range changes {
		c := &changes[i]
		_ = say(t, "%s\t%s\t%s\t%s\t%s\n", c.Cluster, cmp.Or(c.Namespace, "-"), c.object(), c.when(), c.UID)
	}
	return t.Flush()
}

func newDiff(s streams) *cobra.Command {
	var (
		f             hubFlags
		in            where
		output, since string
		all           bool
	)
	cmd := &cobra.Command{
		Use:   "diff --since MOMENT [TYPE ...]",
		Short: "Compare the fleet with an earlier time: show what was created, changed and deleted",
		Long: `Show what differs between a moment and now: objects that are new, those that are gone, and
those that changed, with what each field was and is. What changed back is no difference.
Changes of nothing but status and the like are left out, unless --all-fields asks for them.

The moment is how long ago it was, such as 1h or 2d, or a time, such as 2026-11-20T10:00Z.`,
		Example: `  orrery diff --since 1h -n shop
  orrery diff --since 2026-11-20T10:00Z --cluster oak deployments configmaps`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if since == "" {
				return usageError{fmt.Errorf("--since must be given, such as --since 1h; see %q", cmd.CommandPath()+" --help")}
			}
			if err := search.CheckMoment(since); err != nil {
				return usageError{fmt.Errorf("--since %q: %w", since, err)}
			}
			fleet, err := f.fleet(cmd.Context(), s.err)
			if err != nil {
				return err
			}
			changes := []typedChange{}
			parameters := in.parameters(all)
			parameters.Set("changedSince", since)
			partial, err := fleet.ask(s.err, args, func(gvr schema.GroupVersionResource) error {
				return fleet.changes(cmd.Context(), pathOf(gvr, in.namespace, ""), parameters, func(change fleetv1alpha1.ObjectChange) bool {
					changes = append(changes, typedChange{gvr.GroupResource().String(), change})
					return true
				})
			})
			if err != nil {
				return err
			}
			return printValue(s.out, output, changes, func(w io.Writer) error { return printDiff(w, changes, output == outputWide, partial) })
		},
	}
	f.add(cmd)
	in.add(cmd, &f, "only in this namespace (default: all, and what is in none)")
	addOutput(cmd, &output)
	cmd.Flags().StringVar(&since, "since", "", "the moment with which now is compared: how long ago, such as 1h or 2d, or a time")
	cmd.Flags().BoolVar(&all, "all-fields", false, "show changes of status and of metadata that changes all the time, too")
	return cmd
}

// signs are the signs before the lines of "orrery diff", by the type of the change.
var signs = map[fleetv1alpha1.ChangeType]string{
	fleetv1alpha1.ChangeCreated: "+", fleetv1alpha1.ChangeSeen: "+", fleetv1alpha1.ChangeDeleted: "-",
	fleetv1alpha1.ChangeUpdated: "~", fleetv1alpha1.ChangeRecreated: "±",
}

// thatYouMayList returns " that you may list" for a sentence about the result if partial is true,
// else "".
func thatYouMayList(partial bool) string {
	if partial {
		return " that you may list"
	}
	return ""
}

func printDiff(w io.Writer, changes []typedChange, wide, partial bool) error {
	if len(changes) == 0 {
		return say(w, "Nothing%s changed.\n", thatYouMayList(partial))
	}
	for i := range changes {
		c := &changes[i]
		place := c.Cluster
		if c.Namespace != "" {
			place += "/" + c.Namespace
		}
		uid := ""
		if wide {
			uid = "  uid " + string(c.UID)
		}
		if err := say(w, "%s %s  %s  %s %s by %s%s\n", signs[c.Change], place, c.object(), c.Change, c.when(), c.by(), uid); err != nil {
			return err
		}
		if err := printFields(w, c); err != nil {
			return err
		}
	}
	return nil
}
