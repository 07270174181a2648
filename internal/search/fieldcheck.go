package search

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes/scheme"

	"orrery.dev/orrery/internal/store"
)

// definitionsRead is the number of CustomResourceDefinitions that are read at once.
const definitionsRead = 4

// checkFields refuses requirements on fields that objects of the type cannot have, or that are
// not a single value: an empty answer would suggest that no object matches. If the schema of a
// type is not known, every field is accepted.
func (s *Search) checkFields(ctx context.Context, at location, k kind, requirements []store.FieldRequirement) error {
	var checked []store.FieldRequirement
	var paths []store.FieldPath
	for _, r := range requirements {
		path, err := store.ParseFieldPath(r.Path)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if !store.Computed(at.Group, at.Resource, r) {
			checked, paths = append(checked, r), append(paths, path)
		}
	}
	whys, err := s.checkPaths(ctx, at, k, paths)
	if err != nil {
		return err
	}
	for i, r := range checked {
		anything := r.Operator == selection.Exists || r.Operator == selection.DoesNotExist
		if whys[i] == "" || anything && whys[i] == notOneValue { // a field of any type may exist
			continue
		}
		return apierrors.NewBadRequest(fmt.Sprintf("parameter fieldSelector: field %q of %s: %s", r.Path, at.GroupResource(), whys[i]))
	}
	return nil
}

// checkPaths returns for each field why it cannot be selected; "" if it can. It reads the
// definitions of the type once for all fields.
func (s *Search) checkPaths(ctx context.Context, at location, k kind, paths []store.FieldPath) (whys []string, err error) {
	whys = make([]string, len(paths))
	var defined []int // fields that must be in definitions
	for i, path := range paths {
		var known bool
		if whys[i], known = checkKnown(at, k, path); !known {
			defined = append(defined, i)
		}
	}
	if len(defined) == 0 {
		return whys, nil
	}
	return whys, s.inDefinitions(ctx, at, k, paths, whys, defined)
}

// checkKnown returns why a field cannot be selected, or "". known is false if the fields of the
// type are known only from its definition.
func checkKnown(at location, k kind, keys store.FieldPath) (why string, known bool) {
	switch {
	case len(keys) == 1 && (keys[0].Key == "kind" || keys[0].Key == "apiVersion"):
		return "", true
	case keys[0].Key == "metadata":
		return inType(reflect.TypeFor[metav1.ObjectMeta](), keys[1:]), true
	case at.Group == "" && at.Resource == "secrets":
		return "of secrets only the metadata is searched, whatever is mirrored of them", true
	}
	if t, ok := metricsShapes[k.GroupVersionKind]; ok {
		return inType(t, keys), true
	}
	if o, err := scheme.Scheme.New(k.GroupVersionKind); err == nil {
		return inType(reflect.TypeOf(o), keys), true
	}
	return "", false
}

// inType returns why a Go type has no such field, by names in JSON; "" if it has the field.
func inType(t reflect.Type, keys store.FieldPath) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		// A quantity or time is one value. A raw object may contain anything.
		if _, raw := t.FieldByName("Raw"); raw || len(keys) == 0 {
			return ""
		}
		return noField(keys[0])
	}
	if element := t.Kind() == reflect.Slice || t.Kind() == reflect.Array; len(keys) > 0 && keys[0].Key == "" && element {
		return inType(t.Elem(), keys[1:])
	}
	switch t.Kind() {
	case reflect.Struct:
		if len(keys) == 0 {
			return notOneValue
		}
		if f, ok := fieldNamed(t, keys[0].Key); ok {
			return inType(f, keys[1:])
		}
		return noField(keys[0])
	case reflect.Map:
		if len(keys) == 0 {
			return notOneValue
		}
		return inType(t.Elem(), keys[1:])
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && len(keys) == 0 {
			return ""
		}
		return notOneValue
	default:
		if len(keys) > 0 {
			return noField(keys[0])
		}
		return ""
	}
}

const notOneValue = "it is not one value: name a field in it, of a list of all elements or one, as in spec.containers[].image or spec.containers[0].image"

func noField(step store.Step) string {
	if step.Key == "" {
		return "it is not a list"
	}
	return fmt.Sprintf("there is no field %q", step.Key)
}

// fieldNamed returns the type of a field of a struct by its name in JSON.
func fieldNamed(t reflect.Type, name string) (reflect.Type, bool) {
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f.Type, true
		}
		if f.Anonymous && (tag == "" || strings.Contains(options, "inline")) {
			if found, ok := fieldNamed(f.Type, name); ok {
				return found, true
			}
		}
	}
	return nil, false
}

// inDefinitions looks up fields in the CustomResourceDefinitions of the clusters, and sets whys.
// open are the indices of the fields. A field exists if any definition has it.
func (s *Search) inDefinitions(ctx context.Context, at location, k kind, paths []store.FieldPath, whys []string, open []int) error {
	q := store.Query{
		Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions",
		Clusters: append([]string{}, k.clusters...), Names: []string{at.GroupResource().String()}, Limit: definitionsRead,
	}
	for {
		page, err := s.query(ctx, q)
		if err != nil {
			return err
		}
		for _, row := range page.Rows {
			var definition apiextensionsv1.CustomResourceDefinition
			if err := json.Unmarshal(row.Body, &definition); err != nil {
				return fmt.Errorf("parse CustomResourceDefinition %s of cluster %s: %w", row.Name, row.Cluster, err)
			}
			for _, v := range definition.Spec.Versions {
				if v.Name != at.Version {
					continue
				}
				open = slices.DeleteFunc(open, func(i int) bool {
					if whys[i] = ""; v.Schema != nil {
						whys[i] = inSchema(v.Schema.OpenAPIV3Schema, paths[i])
					}
					return whys[i] == ""
				})
			}
			if len(open) == 0 {
				return nil
			}
		}
		if q.Continue = page.Continue; q.Continue == "" {
			return nil
		}
	}
}

// inSchema returns why the schema of a custom resource has no such field; "" if it has the
// field.
func inSchema(schema *apiextensionsv1.JSONSchemaProps, keys store.FieldPath) string {
	switch {
	case schema == nil || schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields || schema.XEmbeddedResource:
		return ""
	case schema.Type == "array" && len(keys) > 0 && keys[0].Key == "":
		if schema.Items == nil {
			return ""
		}
		return inSchema(schema.Items.Schema, keys[1:])
	case schema.Type == "array", schema.Type == "object" && len(keys) == 0:
		return notOneValue
	case len(keys) == 0:
		return ""
	}
	if p, ok := schema.Properties[keys[0].Key]; ok {
		return inSchema(&p, keys[1:])
	}
	if more := schema.AdditionalProperties; more != nil && (more.Allows || more.Schema != nil) {
		return inSchema(more.Schema, keys[1:])
	}
	return noField(keys[0])
}
