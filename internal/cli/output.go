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
	outputName  = "name" // for scripts; only some commands have it
)

// addOutput adds the flag -o, which is checked before the command runs. more are formats that
// only this command has.
func addOutput(cmd *cobra.Command, output *string, more ...string) {
	formats := append([]string{outputTable, outputWide, outputJSON, outputYAML}, more...)
	cmd.Flags().StringVarP(output, "output", "o", outputTable, "how to print: "+strings.Join(formats, ", "))
	// It fails if the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(formats, *output) {
			return usageError{fmt.Errorf("--output %q: want one of %s", *output, strings.Join(formats, ", "))}
		}
		return nil
	}
}

// printValue prints v as JSON or YAML; for other formats it calls table.
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

// printList prints the objects of a cluster-scoped resource: as the table of the API server, or
// as objects.
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
