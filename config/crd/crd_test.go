package crd_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/config/crd"
)

// TestConventions checks the conventions of every kind: an Age column, status as a subresource
// with conditions as a map, and lists with maxItems and a list type.
func TestConventions(t *testing.T) {
	files, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("embedded definitions: %v %v", files, err)
	}
	for _, file := range files {
		text, err := crd.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, v := range d.Spec.Versions {
			t.Run(d.Spec.Names.Kind+"/"+v.Name, func(t *testing.T) { checkVersion(t, &v) })
		}
	}
}

func checkVersion(t *testing.T, v *apiextensionsv1.CustomResourceDefinitionVersion) {
	t.Helper()
	age := func(c apiextensionsv1.CustomResourceColumnDefinition) bool {
		return c.Name == "Age" && c.JSONPath == ".metadata.creationTimestamp"
	}
	if !slices.ContainsFunc(v.AdditionalPrinterColumns, age) {
		t.Error("kubectl get shows no Age")
	}
	for _, c := range v.AdditionalPrinterColumns {
		if c.JSONPath == "" || c.Type == "" {
			t.Errorf("column %s has no path or type", c.Name)
		}
	}
	schema := v.Schema.OpenAPIV3Schema
	for name, part := range schema.Properties {
		visitSchemas(name, &part, func(path string, s *apiextensionsv1.JSONSchemaProps) { checkSchema(t, path, s) })
	}
	status, ok := schema.Properties["status"]
	if !ok {
		return
	}
	if v.Subresources == nil || v.Subresources.Status == nil {
		t.Error("status is not a subresource: whoever may write the spec could write it")
	}
	if conditions, ok := status.Properties["conditions"]; ok {
		if conditions.XListType == nil || *conditions.XListType != "map" || !slices.Equal(conditions.XListMapKeys, []string{"type"}) {
			t.Error("status.conditions is not a map by type: two writers of conditions would overwrite each other")
		}
	}
}

func checkSchema(t *testing.T, path string, s *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	if s.Type != "array" {
		return
	}
	// Conditions are bounded by their types. The schemas of label selectors come from
	// Kubernetes.
	selector := strings.Contains(path, ".labelSelector.") || strings.Contains(path, ".namespaceSelector.") || strings.Contains(path, ".clusterSelector.")
	if s.MaxItems == nil && path != "status.conditions" && !selector {
		t.Errorf("%s has no maxItems: one object could hold any number", path)
	}
	if s.XListType == nil {
		t.Errorf("%s has no list type: server-side apply would replace it whole by accident", path)
		return
	}
	if *s.XListType == "map" && len(s.XListMapKeys) == 0 {
		t.Errorf("%s is a map without keys", path)
	}
	for _, key := range s.XListMapKeys {
		if item := s.Items.Schema; !slices.Contains(item.Required, key) && item.Properties[key].Default == nil {
			t.Errorf("%s is a map by %s, which is neither required nor defaulted", path, key)
		}
	}
}

// visitSchemas calls visit for the schema and for every schema in it.
func visitSchemas(path string, s *apiextensionsv1.JSONSchemaProps, visit func(string, *apiextensionsv1.JSONSchemaProps)) {
	visit(path, s)
	for name, p := range s.Properties {
		visitSchemas(path+"."+name, &p, visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		visitSchemas(path+"[]", s.Items.Schema, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		visitSchemas(path+".*", s.AdditionalProperties.Schema, visit)
	}
}

// TestNames: no two kinds share a plural, singular or short name, because kubectl takes the
// first match. Karmada's short names stand for the same kinds as in Karmada.
func TestNames(t *testing.T) {
	files, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{}
	for _, file := range files {
		text, err := crd.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		names := d.Spec.Names
		for _, name := range append([]string{names.Plural, names.Singular}, names.ShortNames...) {
			if other := of[name]; other != "" {
				t.Errorf("%s is a name of %s and of %s", name, other, names.Kind)
			}
			of[name] = names.Kind
		}
	}
	for name, kind := range map[string]string{
		"pp": "PropagationPolicy", "cpp": "ClusterPropagationPolicy", "op": "OverridePolicy", "cop": "ClusterOverridePolicy",
		"rb": "ResourceBinding", "crb": "ClusterResourceBinding", "oper": "Operation",
	} {
		if of[name] != kind {
			t.Errorf("%s is a name of %q, want %s", name, of[name], kind)
		}
	}
}
