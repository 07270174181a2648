package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/expression"
	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/search"
)

// usualFound is the default of --limit, the maximum number of objects that a search prints: 500.
const usualFound = 500

// searchPage is the maximum number of objects that one request of a search returns, 500. A search
// with more sends several requests.
const searchPage = 500

// asTable is the media type of an answer as a table, for the header Accept.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

// searching has the flags of "orrery search", and notes whether its result is complete.
type searching struct {
	streams

	hub            hubFlags
	filter, output string
	group          []string
	limit          int
	explain        bool
	warned         bool // a response had warnings: the result is incomplete
}

func newSearch(s streams) *cobra.Command {
	f := &searching{streams: s}
	cmd := &cobra.Command{
		Use:   "search [TERM ...]",
		Short: "Find objects in every cluster",
		Long:  "Find objects in every cluster. An object must match all terms:\n\n" + searchTerms() + searchGrammar,
		Example: `  orrery search 'kind:Pod phase:Pending cluster:eu-* age<1h image:nginx'
  orrery search kind:Deployment app=web --filter 'object.spec.replicas > 3'
  orrery search kind:Pod --group cluster,phase
  orrery search -o name -- kind:Pod -is:ready`,
		ValidArgsFunction: f.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), strings.Join(args, " "))
		},
	}
	f.hub.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.filter, "filter", "", "CEL expression that must be true for each object, such as object.spec.replicas > 3")
	flags.StringSliceVar(&f.group, "group", nil, "count the objects by these, instead of listing them: cluster, namespace, kind, phase, node, image, label:KEY")
	flags.IntVar(&f.limit, "limit", usualFound, "maximum number of objects; 0: all")
	flags.BoolVar(&f.explain, "explain", false, "explain the query and its cost, instead of listing objects")
	addOutput(cmd, &f.output, outputName)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() != "" {
			return usageError{fmt.Errorf("%w; a term that begins with a minus looks like flags: quote the query, as in 'kind:Pod -phase:Running', or put -- before it", err)}
		}
		return cmd.Root().FlagErrorFunc()(cmd, err)
	})
	// An error means that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("group", cobra.FixedCompletions([]string{"cluster", "namespace", "kind", "phase", "node", "image", "label:"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return cmd
}

// searchTerms returns a table of the keys that terms of a query can have, with their meanings, for
// the help.
func searchTerms() string {
	var out strings.Builder
	t := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	_ = say(t, "  WORD\ta part of the name\n") // writing to memory does not fail
	keys := query.Keys()
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		_ = say(t, "  %s\t%s\n", key, keys[key]) // as above
	}
	_ = t.Flush() // as above
	return out.String()
}

// searchGrammar is the end of the help text: how terms are combined.
const searchGrammar = `
A minus before a term negates it (put -- before a query that begins with a minus). Commas separate
alternative values, * stands for any text, and characters between quotes have no special meaning.`

func (f *searching) run(ctx context.Context, text string) error {
	if _, err := query.Parse(text); err != nil {
		return usageError{err}
	}
	switch {
	case f.limit < 0:
		return usageError{fmt.Errorf("--limit %d: must not be negative", f.limit)}
	case f.group != nil:
		if err := search.CheckGroup(strings.Join(f.group, ",")); err != nil {
			return usageError{fmt.Errorf("--group: %w", err)}
		}
	}
	if f.filter != "" {
		if _, err := expression.Compile(f.filter); err != nil {
			return usageError{fmt.Errorf("--filter %q: %w", f.filter, err)}
		}
	}
	switch {
	case f.explain && f.group != nil:
		return usageError{errors.New("--explain and --group exclude each other")}
	case f.group != nil && f.output == outputName:
		return usageError{errors.New("--output name: counts of --group have no names")}
	}
	fleet, err := f.hub.fleet(ctx, f.err)
	if err != nil {
		return err
	}
	c := fleet.client
	switch {
	case f.explain:
		return f.explained(ctx, c, text)
	case f.group != nil:
		return f.counted(ctx, c, text)
	}
	return f.found(ctx, c, text)
}

// ask requests a search from the fleet API, and returns the body of the response. accept is the
// media type of the response. Of each parameter the first value is sent; empty ones are left out.
// If the response has warnings, so that the result is incomplete, ask sets f.warned. An error has
// the message of the hub.
func (f *searching) ask(ctx context.Context, c rest.Interface, accept string, parameters url.Values) ([]byte, error) {
	r := c.Get().AbsPath("search").SetHeader("Accept", accept)
	for name := range parameters {
		if value := parameters.Get(name); value != "" {
			r = r.Param(name, value)
		}
	}
	result := r.Do(ctx)
	if err := result.Error(); err != nil { // the error of Raw lacks the message of the hub
		return nil, fmt.Errorf("search: %w", err)
	}
	f.warned = f.warned || len(result.Warnings()) > 0
	return result.Raw()
}

// found requests the objects that match the query text, page by page up to --limit, and prints them
// in the format of --output. It says on standard error if there are more, or none.
func (f *searching) found(ctx context.Context, c rest.Interface, text string) error {
	accept := "application/json"
	if f.output == outputTable || f.output == outputWide || f.output == outputName {
		accept = asTable
	}
	var table metav1.Table
	items := []json.RawMessage{}
	more := ""
	for left := f.limit; ; {
		size := searchPage
		if f.limit > 0 {
			size = min(size, left)
		}
		body, err := f.ask(ctx, c, accept, url.Values{"q": {text}, "filter": {f.filter}, "limit": {strconv.Itoa(size)}, "continue": {more}})
		if err != nil {
			return err
		}
		var page struct {
			metav1.Table `json:",inline"`

			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("read the search result: %w", err)
		}
		table.ColumnDefinitions = page.ColumnDefinitions
		table.Rows, items = append(table.Rows, page.Rows...), append(items, page.Items...)
		left -= len(page.Rows) + len(page.Items)
		if more = page.Continue; more == "" || f.limit > 0 && left <= 0 {
			break
		}
	}
	if more != "" {
		if err := say(f.err, "There are more than %d: narrow the search, or raise --limit (0: all).\n", f.limit); err != nil {
			return err
		}
	}
	switch {
	case f.output == outputJSON || f.output == outputYAML:
		return printValue(f.out, f.output, map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": items}, nil)
	case f.output == outputName:
		return printFoundNames(f.streams, &table)
	case len(table.Rows) == 0 && f.warned:
		return say(f.err, "Nothing found, but not everything could be searched: see the warnings.\n")
	case len(table.Rows) == 0:
		return say(f.err, "Nothing found.\n")
	}
	return printTable(f.out, &table, f.output)
}

// printTable prints a table of the hub, with all columns for the output wide. It replaces control
// characters in the cells.
func printTable(w io.Writer, table *metav1.Table, output string) error {
	neutralTable(table)
	out := printers.GetNewTabWriter(w)
	if err := printers.NewTablePrinter(printers.PrintOptions{Wide: output == outputWide}).PrintObj(table, out); err != nil {
		return err
	}
	return out.Flush()
}

// printFoundNames prints a line CLUSTER KIND.GROUP/NAME NAMESPACE for each row of a search result,
// for scripts: the parts are arguments for kubectl --context CLUSTER -n NAMESPACE. Cluster-scoped
// objects have no NAMESPACE. Rows with a part that a script could misread are left out, and are an
// error at the end. A row without the columns of a search ends the output with an error.
func printFoundNames(s streams, table *metav1.Table) error {
	const kind, cluster, namespace, name, version = 0, 1, 2, 3, 6
	lines := scriptLines{out: s.out, err: s.err}
	for _, row := range table.Rows {
		if len(row.Cells) <= version {
			return fmt.Errorf("read the search result: a row has %d columns, want %d or more: the hub has another version; use the orrery of that version, or -o json",
				len(row.Cells), version+1)
		}
		cell := func(i int) string {
			text, _ := row.Cells[i].(string)
			return text
		}
		of := strings.ToLower(cell(kind))
		if group, _, ok := strings.Cut(cell(version), "/"); ok {
			of += "." + group
		}
		line, parts := cell(cluster)+" "+of+"/"+cell(name), []string{cell(cluster), of, cell(name)}
		if in := cell(namespace); in != "" {
			line, parts = line+" "+in, append(parts, in)
		}
		if err := lines.add(line, parts...); err != nil {
			return err
		}
	}
	return lines.problem()
}

// counted requests how many objects match the query text, for each combination of values of the
// keys in --group, and prints these numbers and the total.
func (f *searching) counted(ctx context.Context, c rest.Interface, text string) error {
	body, err := f.ask(ctx, c, "application/json", url.Values{"q": {text}, "filter": {f.filter}, "group": {strings.Join(f.group, ",")}})
	if err != nil {
		return err
	}
	var counts fleetv1alpha1.SearchCounts
	if err := json.Unmarshal(body, &counts); err != nil {
		return fmt.Errorf("read counts: %w", err)
	}
	return printValue(f.out, f.output, counts, func(w io.Writer) error {
		t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
		heads := make([]string, 0, len(counts.By)+1)
		for _, by := range counts.By {
			heads = append(heads, strings.ToUpper(by))
		}
		_ = sayRow(t, append(heads, "OBJECTS")...) // Flush returns the error
		for _, g := range counts.Groups {
			for _, v := range g.Values {
				_ = say(t, "%s\t", cmp.Or(v, "<none>")) // as above
			}
			_ = say(t, "%d\n", g.Objects) // as above
		}
		by := max(len(counts.By), 1)
		total := make([]string, by+1)
		total[0], total[by] = "TOTAL", strconv.FormatInt(counts.Total, 10)
		_ = sayRow(t, total...) // as above
		return t.Flush()
	})
}

// explained prints, for --explain, how the hub interprets the query text, and how many objects it
// reads and finds for the first page.
func (f *searching) explained(ctx context.Context, c rest.Interface, text string) error {
	body, err := f.ask(ctx, c, "application/json", url.Values{"q": {text}, "filter": {f.filter}, "explain": {"true"}})
	if err != nil {
		return err
	}
	var x fleetv1alpha1.SearchExplanation
	if err := json.Unmarshal(body, &x); err != nil {
		return fmt.Errorf("read the explanation: %w", err)
	}
	return printValue(f.out, f.output, x, func(w io.Writer) error {
		t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
		fmt.Fprint(t, "TERM\tMEANS\tBY\n") //nolint:errcheck // Flush returns the error
		for _, term := range x.Terms {
			_ = say(t, "%s\t%s\t%s\n", term.Term, term.Means, term.How) // as above
		}
		fmt.Fprint(t, "\nKIND\tREAD\tFOUND\n") //nolint:errcheck // as above
		read, found := 0, 0
		for _, k := range x.Kinds {
			read, found = read+k.Read, found+k.Found
			_ = say(t, "%s\t%d\t%d\n", schema.GroupResource{Group: k.Group, Resource: k.Resource}, k.Read, k.Found)
		}
		if len(x.LeftOut) > 0 {
			fmt.Fprint(t, "\nLEFT OUT\tWHY\n") //nolint:errcheck // as above
		}
		for _, k := range x.LeftOut {
			_ = say(t, "%s\t%s\n", schema.GroupResource{Group: k.Group, Resource: k.Resource}, k.Why)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		more := ""
		if x.More {
			more = "; there is another"
		}
		return say(w, "\nThe first page read %d objects and found %d, in %s%s.\n", read, found, time.Duration(x.Milliseconds)*time.Millisecond, more)
	})
}

// complete completes the last term of a query: its key, or its value for keys with known values. It
// requests kinds, clusters and namespaces from the hub: those with objects that the caller may see.
// Values that are not words are left out.
func (f *searching) complete(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	start := strings.LastIndex(typed, " ") + 1
	before, word := typed[:start], typed[start:]
	if rest, ok := strings.CutPrefix(word, "-"); ok {
		before, word = before+"-", rest
	}
	key, value, ok := strings.Cut(word, ":")
	if !ok {
		var out []string
		keys := query.Keys()
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if strings.HasPrefix(k, word) {
				out = append(out, before+k+":\t"+keys[k])
			}
		}
		return out, nothing | cobra.ShellCompDirectiveNoSpace
	}
	if i := strings.LastIndex(value, ","); i >= 0 {
		before, value = before+key+":"+value[:i+1], value[i+1:]
	} else {
		before += key + ":"
	}
	if key == "ns" {
		key = query.Namespace
	}
	values := query.ValuesOf(key)
	if slices.Contains([]string{query.Kind, query.Cluster, query.Namespace}, key) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		// the shell would take a warning for a completion
		fleet, err := f.hub.fleet(ctx, io.Discard)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		if values, err = f.completions(ctx, fleet.client, key, value); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
	}
	var out []string
	for _, v := range slices.Compact(slices.Sorted(slices.Values(values))) {
		if neutral.IsWord(v) && strings.HasPrefix(strings.ToLower(v), strings.ToLower(value)) {
			out = append(out, before+v)
		}
	}
	return out[:min(len(out), mostCompletions)], nothing
}

// completions requests the values of a key, such as cluster, for which there are objects that the
// caller may see. They are unsorted. For the key namespace it first lists the Namespaces that begin
// with typed; the caller may lack that right. Otherwise typed has no effect.
func (f *searching) completions(ctx context.Context, c rest.Interface, key, typed string) (values []string, err error) {
	if key == query.Namespace {
		if values = f.namespaces(ctx, c, strings.ToLower(typed)); len(values) > 0 {
			return values, nil
		}
	}
	body, err := f.ask(ctx, c, "application/json", url.Values{"group": {key}})
	if err != nil {
		return nil, err
	}
	var counts fleetv1alpha1.SearchCounts
	if err := json.Unmarshal(body, &counts); err != nil {
		return nil, fmt.Errorf("read counts: %w", err)
	}
	for _, g := range counts.Groups {
		values = append(values, g.Values...)
	}
	return values, nil
}

// namespaces requests the names that begin with prefix of the Namespaces in all clusters that the
// caller may list, without duplicates. It reads at most five pages, because many clusters may have
// a namespace of the same name. After an error it returns the names so far.
func (f *searching) namespaces(ctx context.Context, c rest.Interface, prefix string) (names []string) {
	const pages, page = 5, 1000
	q := "kind:namespaces"
	if strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil // no namespace has such a name
	}
	if prefix != "" {
		q += " name:" + prefix + "*"
	}
	more := ""
	for range pages {
		body, err := f.ask(ctx, c, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", url.Values{"q": {q}, "limit": {strconv.Itoa(page)}, "continue": {more}})
		var list metav1.PartialObjectMetadataList
		if err != nil || json.Unmarshal(body, &list) != nil {
			return names
		}
		for _, item := range list.Items {
			if !slices.Contains(names, item.Name) {
				names = append(names, item.Name)
			}
		}
		if more = list.Continue; more == "" || len(names) >= mostCompletions {
			break
		}
	}
	return names
}
