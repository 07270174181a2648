package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// body is a JSON object of which only some fields are looked at.
type body map[string]json.RawMessage

func (b body) set(name string, value any) error {
	raw, err := json.Marshal(value)
	b[name] = raw
	return err
}

// object is the whole object, as its cluster has it but for our annotation. Its kind is
// the row's, for the body may be only the metadata of one.
func object(row store.Row, stale map[string]time.Time) (body, error) {
	o, err := annotated(row, stale)
	if err != nil {
		return nil, err
	}
	gv := schema.GroupVersion{Group: row.Group, Version: row.Version}
	return o, errors.Join(o.set("apiVersion", gv.String()), o.set("kind", row.Kind))
}

// partial is the object's metadata.
func partial(row store.Row, stale map[string]time.Time) (body, error) {
	o, err := annotated(row, stale)
	if err != nil {
		return nil, err
	}
	p := body{"metadata": o["metadata"]}
	return p, errors.Join(p.set("apiVersion", metav1.SchemeGroupVersion.String()), p.set("kind", asPartial))
}

// annotated is the row's body with the annotation that names its cluster and, if it is stale, the one that says when it was last
// seen.
func annotated(row store.Row, stale map[string]time.Time) (body, error) {
	o, metadata, annotations := body{}, body{}, map[string]string{}
	if err := json.Unmarshal(row.Body, &o); err != nil {
		return nil, fmt.Errorf("parse body: %w", err)
	}
	if err := json.Unmarshal(o["metadata"], &metadata); err != nil {
		return nil, fmt.Errorf("parse metadata: %w", err)
	}
	if a, ok := metadata["annotations"]; ok {
		if err := json.Unmarshal(a, &annotations); err != nil {
			return nil, fmt.Errorf("parse annotations: %w", err)
		}
	}
	annotations[fleetv1alpha1.ClusterAnnotation] = row.Cluster
	delete(annotations, fleetv1alpha1.LastSeenAnnotation) // it is ours to say
	if seen, ok := stale[row.Cluster]; ok {
		annotations[fleetv1alpha1.LastSeenAnnotation] = seen.UTC().Format(time.RFC3339)
	}
	return o, errors.Join(metadata.set("annotations", annotations), o.set("metadata", metadata))
}

// tableRow is the object as the columns show it.
func tableRow(c *columns, row store.Row, include metav1.IncludeObjectPolicy, stale map[string]time.Time) (metav1.TableRow, error) {
	cells, err := c.cells(row)
	if err != nil {
		return metav1.TableRow{}, err
	}
	var o body
	switch include {
	case metav1.IncludeNone:
		return metav1.TableRow{Cells: cells}, nil
	case metav1.IncludeObject:
		o, err = object(row, stale)
	case metav1.IncludeMetadata:
		o, err = partial(row, stale)
	}
	if err != nil {
		return metav1.TableRow{}, err
	}
	raw, err := json.Marshal(o)
	return metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Raw: raw}}, err
}
