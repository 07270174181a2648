package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/neutral"
)

// The values of --output.
const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputYAML  = "yaml"
	outputName  = "name" // only names, for scripts; only some commands have it
)

// addOutput adds the flag --output to a command, with completions; the default is table. more has
// formats that the command has beside table, wide, json and yaml. It sets cmd.PreRunE, which
// returns a usageError for every other format, and replaces any earlier PreRunE.
func addOutput(cmd *cobra.Command, output *string, more ...string) {
	formats := append([]string{outputTable, outputWide, outputJSON, outputYAML}, more...)
	cmd.Flags().StringVarP(output, "output", "o", outputTable, "how to print: "+strings.Join(formats, ", "))
	// An error means that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(formats, *output) {
			return usageError{fmt.Errorf("--output %q: want one of %s", *output, strings.Join(formats, ", "))}
		}
		return nil
	}
}

// printValue writes v to w as JSON or YAML if output is one of these. For every other output it
// calls table with w. table may be nil if output is always json or yaml.
func printValue(w io.Writer, output string, v any, table func(io.Writer) error) error {
	switch output {
	case outputJSON:
		e := json.NewEncoder(asJSON(w))
		e.SetIndent("", "  ")
		return e.Encode(v)
	case outputYAML:
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		// YAML does not allow unescaped control characters.
		if b, err = yaml.JSONToYAML(neutral.JSONForYAML(b)); err != nil {
			return err
		}
		_, err = exact(w).Write(b)
		return err
	default:
		return table(w)
	}
}

// printList requests all objects of a cluster-scoped resource of the hub, and prints them to s.out.
// For json and yaml it prints the objects without managedFields. For name it prints one name per
// line; names that a script could misread are left out and are an error at the end. Every other
// output is the table of the API server. If that has no rows, it prints a sentence, or nothing if
// noHeaders is true.
func printList(ctx context.Context, s streams, cfg *rest.Config, gvr schema.GroupVersionResource, output string, noHeaders bool) error {
	w := s.out
	if output == outputJSON || output == outputYAML {
		c, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return err
		}
		list, err := c.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		for i := range list.Items {
			unstructured.RemoveNestedField(list.Items[i].Object, "metadata", "managedFields")
		}
		return printValue(w, output, list, nil)
	}

	cfg = rest.CopyConfig(cfg)
	gv := gvr.GroupVersion()
	cfg.GroupVersion, cfg.APIPath = &gv, "/apis"
	cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	cfg.AcceptContentTypes = "application/json;as=Table;v=v1;g=meta.k8s.io"
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		return err
	}
	raw, err := c.Get().Resource(gvr.Resource).Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("list %s: %w", gvr.Resource, err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		return fmt.Errorf("read table of %s: %w", gvr.Resource, err)
	}
	if output == outputName {
		lines := scriptLines{out: w, err: s.err}
		for _, row := range table.Rows {
			var o metav1.PartialObjectMetadata
			if err := json.Unmarshal(row.Object.Raw, &o); err != nil {
				return fmt.Errorf("read table of %s: %w", gvr.Resource, err)
			}
			if err := lines.add(o.Name, o.Name); err != nil {
				return err
			}
		}
		return lines.problem()
	}
	if len(table.Rows) == 0 && noHeaders {
		return nil
	}
	if len(table.Rows) == 0 {
		return say(w, "No %s found.\n", gvr.Resource)
	}
	neutralTable(&table)
	out := printers.GetNewTabWriter(w)
	if err := printers.NewTablePrinter(printers.PrintOptions{Wide: output == outputWide, NoHeaders: noHeaders}).PrintObj(&table, out); err != nil {
		return err
	}
	return out.Flush()
}
