package search

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// Versions returns the group versions that a cluster has among the mirrored types, in no order;
// cluster "": any cluster. all has each of them, and custom those that are not Kubernetes' own, for
// which Definitions may have schemas. Group versions whose types the caller may not know are left
// out. It returns an error if the caller may not know the cluster, or the fleet does not have the
// cluster.
func (s *Search) Versions(ctx context.Context, cluster string) (all, custom []schema.GroupVersion, err error) {
	if cluster != "" {
		if err := s.authorizeCluster(ctx, cluster); err != nil {
			return nil, nil, err
		}
		if err := s.checkClusters(location{cluster: cluster}, nil); err != nil {
			return nil, nil, err
		}
	}
	c, err := s.catalogueFor(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	for group, versions := range c {
		for v := range versions {
			gv := schema.GroupVersion{Group: group, Version: v}
			if all = append(all, gv); !isOfKubernetes(group) {
				custom = append(custom, gv)
			}
		}
	}
	return all, custom, nil
}

// Prefixes of references in OpenAPI v3 documents, and of the types of meta.k8s.io/v1.
const (
	components = "#/components/schemas/"
	metaPrefix = "io.k8s.apimachinery.pkg.apis.meta.v1."
)

// Definitions returns the OpenAPI v3 document of the types in a group version, from mirrored
// CustomResourceDefinitions. cluster is the cluster whose types they are; "": any. It returns nil
// if no definition has the version. The caller must have checked the cluster, as Versions does.
//
// If several clusters define a type, the definition of the first cluster by name is used. Only
// clusters in which the caller may list the type count. Types that the caller may not know are left
// out. The document refers to types of meta.k8s.io/v1, and does not include them.
func (s *Search) Definitions(ctx context.Context, cluster string, gv schema.GroupVersion) (map[string]any, error) {
	paths, schemas := map[string]any{}, map[string]any{}
	c, err := s.catalogueFor(ctx, cluster, gv.Group)
	if err != nil {
		return nil, err
	}
	for _, api := range c[gv.Group][gv.Version] {
		defined, listKind, err := s.definition(ctx, cluster, api)
		if err != nil {
			return nil, err
		}
		if defined == nil {
			continue
		}
		kind := map[string]any{"group": gv.Group, "version": gv.Version, "kind": api.GroupVersionKind.Kind}
		name := gv.Group + "." + gv.Version + "." + api.GroupVersionKind.Kind
		list := gv.Group + "." + gv.Version + "." + listKind
		schemas[name] = described(defined, kind)
		schemas[list] = map[string]any{
			"type": "object", "required": []string{"items"},
			"properties": map[string]any{
				"apiVersion": map[string]any{"type": "string"}, "kind": map[string]any{"type": "string"},
				"items":    map[string]any{"type": "array", "items": refer(name)},
				"metadata": refer(metaPrefix + "ListMeta"),
			},
			"x-kubernetes-group-version-kind": []any{map[string]any{"group": gv.Group, "version": gv.Version, "kind": listKind}},
		}
		root := "/apis/" + gv.String() + "/"
		paths[root+api.Resource] = reading("list", kind, list)
		one := root + api.Resource + "/{name}"
		if api.Namespaced {
			one = root + "namespaces/{namespace}/" + api.Resource + "/{name}"
			paths[root+"namespaces/{namespace}/"+api.Resource] = reading("list", kind, list)
		}
		paths[one] = reading("get", kind, name)
	}
	if len(schemas) == 0 {
		return nil, nil
	}
	return map[string]any{
		"openapi": "3.0.0", "info": map[string]any{"title": "Orrery fleet", "version": gv.Version},
		"paths": paths, "components": map[string]any{"schemas": schemas},
	}, nil
}

// definition returns the OpenAPI schema of a type, which the caller may change, and the kind of its
// lists. They are from a CustomResourceDefinition of the cluster, or of any for "". The schema is
// nil if there is no definition with the version, or the caller may not see one.
func (s *Search) definition(ctx context.Context, cluster string, api member.API) (written map[string]any, listKind string, err error) {
	k, err := s.definedIn(ctx, cluster, api)
	if err != nil {
		return nil, "", err
	}
	err = s.definitions(ctx, k, api.GroupVersionResource().GroupResource(), func(body []byte) bool {
		var definition struct { // not the Go type, so that the schema stays as it is written
			Spec struct {
				Names struct {
					ListKind string `json:"listKind"`
				} `json:"names"`
				Versions []struct {
					Name   string `json:"name"`
					Schema struct {
						OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if json.Unmarshal(body, &definition) != nil {
			return false
		}
		for _, v := range definition.Spec.Versions {
			if v.Name == api.GroupVersionKind.Version {
				written, listKind = v.Schema.OpenAPIV3Schema, cmp.Or(definition.Spec.Names.ListKind, api.GroupVersionKind.Kind+"List")
			}
		}
		return written != nil
	})
	return written, listKind, err
}

// definedIn returns a kind with the clusters from which the caller may know the definition of a
// type. For cluster "" these are the clusters in which the caller may list the type, perhaps none.
// Otherwise it is the given cluster, which definedIn does not check.
func (s *Search) definedIn(ctx context.Context, cluster string, api member.API) (kind, error) {
	k := kind{scopes: map[bool][]string{}}
	if cluster != "" {
		k.clusters = []string{cluster}
		return k, nil
	}
	for _, t := range s.Mirror.Types() {
		if t.GroupVersionKind == api.GroupVersionKind && t.Resource == api.Resource {
			k.clusters = append(k.clusters, t.Clusters...)
			k.scopes[t.Namespaced] = append(k.scopes[t.Namespaced], t.Clusters...)
		}
	}
	seen, err := s.authorize(ctx, location{GroupVersionResource: api.GroupVersionResource()}, params{}, "list")
	if err == nil {
		err = seen.narrow(&k)
	}
	if apierrors.IsForbidden(err) {
		return kind{}, nil
	}
	return k, err
}

// definitions calls take with the JSON of the CustomResourceDefinition of a type in each cluster of
// k, by name, until take returns true. take returns false for a definition that cannot be used.
// Clusters whose definition is not mirrored are left out. The error is that of the store.
func (s *Search) definitions(ctx context.Context, k kind, gr schema.GroupResource, take func(body []byte) bool) error {
	q := store.Query{
		Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions", Clusters: append([]string{}, k.clusters...), Names: []string{gr.String()}, Limit: 1,
	}
	slices.Sort(q.Clusters)
	for {
		page, err := s.query(ctx, q)
		if err != nil || len(page.Rows) == 0 || take(page.Rows[0].Body) || page.Continue == "" {
			return err
		}
		q.Continue = page.Continue
	}
}

// described adds to a schema the fields that all objects have, and the extension with group,
// version and kind. It changes the map defined and returns it.
func described(defined map[string]any, kind map[string]any) map[string]any {
	properties, _ := defined["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
		defined["properties"] = properties
	}
	properties["apiVersion"] = map[string]any{"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."}
	properties["kind"] = map[string]any{"type": "string", "description": "Kind is a string value representing the REST resource this object represents."}
	properties["metadata"] = map[string]any{"description": "Standard object's metadata.", "allOf": []any{refer(metaPrefix + "ObjectMeta")}}
	defined["x-kubernetes-group-version-kind"] = []any{kind}
	return defined
}

// refer returns an OpenAPI reference to the schema with the name.
func refer(name string) map[string]any { return map[string]any{"$ref": components + name} }

// reading returns the OpenAPI description of a path that can be read with GET. action is list or
// get, and answer is the name of the schema of the answer.
func reading(action string, kind map[string]any, answer string) map[string]any {
	return map[string]any{"get": map[string]any{
		"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind,
		"responses": map[string]any{"200": map[string]any{
			"description": "OK", "content": map[string]any{mediaJSON: map[string]any{"schema": refer(answer)}},
		}},
	}}
}
