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

// definitionsRead is the number of CustomResourceDefinitions that one query of the store returns.
const definitionsRead = 4

// checkFields returns an error (400) if the field selector names a field that objects of the type
// cannot have, or that is not a single value. Otherwise the empty answer would suggest that no
// object matches. If no schema of the type is known, every field is accepted.
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
		if whys[i] == "" || anything && whys[i] == notOneValue { // a list or struct may exist, too
			continue
		}
		return apierrors.NewBadRequest(fmt.Sprintf("parameter fieldSelector: field %q of %s: %s", r.Path, at.GroupResource(), whys[i]))
	}
	return nil
}

// checkPaths returns, for each of the paths of fields, why the field cannot be selected, as a text
// for users; "" if it can. The error is that of reading the definitions of the type.
func (s *Search) checkPaths(ctx context.Context, at location, k kind, paths []store.FieldPath) (whys []string, err error) {
	whys = make([]string, len(paths))
	var defined []int // indices of the fields about which only definitions can say something
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

// checkKnown returns why a field of a type that this program knows cannot be selected; "" if it
// can. known is false if only a CustomResourceDefinition can say that; then why is "".
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

// inType returns why a Go type has no field with the path keys, which are names in JSON; "" if it
// has the field. It returns notOneValue if the field is a struct, map or list.
func inType(t reflect.Type, keys store.FieldPath) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		// Quantities and times are one value. A type with a field Raw contains any object.
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

// notOneValue is the text for users why a field that is a struct, map or list cannot be selected.
const notOneValue = "it is not one value: name a field in it, of a list of all elements or one, as in spec.containers[].image or spec.containers[0].image"

// noField returns, as a text for users, that a value has no field for the next step of a path. For
// a step to the elements of a list, it says that the value is not a list.
func noField(step store.Step) string {
	if step.Key == "" {
		return "it is not a list"
	}
	return fmt.Sprintf("there is no field %q", step.Key)
}

// fieldNamed returns the Go type of the field of t that has the name in JSON, also of a field in
// embedded structs. It returns false if t has no such field.
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

// inDefinitions looks up fields in the CustomResourceDefinitions of the clusters of k, and sets
// their entries in whys: "" for a field that any definition has, or whose definition has no schema,
// else the reason. open are the indices of these fields in paths and whys; it is changed. If no
// cluster has a definition, whys stays as it is.
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

// inSchema returns why the schema of a custom resource has no field with the path keys and a single
// value. It is "" if the schema has the field, or accepts unknown fields there.
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
