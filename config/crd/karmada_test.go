package crd_test

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/config/crd"
)

// TestKarmadaTable: the table of refused fields in docs/from-karmada.md matches the validation
// rules of the schemas. A failure prints the correct table.
func TestKarmadaTable(t *testing.T) {
	const document, begin, end = "../../docs/from-karmada.md", "holds this table to the schemas -->\n", "<!-- end -->"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), begin)
	got, _, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", document, begin, end)
	}
	if want := refusedFields(t); got != want {
		t.Errorf("the table in %s differs (-want +got):\n%s\nIt must be:\n%s", document, cmp.Diff(want, got), want)
	}
}

// refusedFields returns the table of the fields that are refused because they are not honoured.
func refusedFields(t *testing.T) string {
	t.Helper()
	files, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("embedded definitions: %v %v", files, err)
	}
	kinds := map[string][]string{} // by row
	for _, file := range files {
		content, err := crd.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(content, &d); err != nil {
			t.Fatal(err)
		}
		spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		visitSchemas("spec", &spec, func(path string, s *apiextensionsv1.JSONSchemaProps) {
			for _, rule := range s.XValidations {
				if strings.Contains(rule.Message, " is not honoured") {
					row := fmt.Sprintf("`%s` | %s", path, rule.Message)
					kinds[row] = append(kinds[row], "`"+d.Spec.Names.Kind+"`")
				}
			}
		})
	}
	var rows []string
	for row, of := range kinds {
		slices.Sort(of)
		rows = append(rows, fmt.Sprintf("| %s | %s |\n", strings.Join(slices.Compact(of), ", "), row))
	}
	slices.Sort(rows)
	return "\n| Kind | Field | Refused with |\n|---|---|---|\n" + strings.Join(rows, "") + "\n"
}
