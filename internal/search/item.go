package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// body is a JSON object: its fields by name, each as JSON that is parsed only on demand.
type body map[string]json.RawMessage

// set encodes a value as JSON into the field name. The error is that of encoding the value.
func (b body) set(name string, value any) error {
	raw, err := marshal(value)
	b[name] = raw
	return err
}

// marshal encodes a value as JSON. It does what json.Marshal does, but takes values that are
// already JSON without parsing them: a json.RawMessage, and the fields of a body, which it sorts by
// name.
func marshal(value any) (json.RawMessage, error) {
	switch value := value.(type) {
	case json.RawMessage:
		return value, nil
	case body:
		size := 2
		for name, raw := range value {
			size += len(name) + len(raw) + len(`"":,`)
		}
		out := append(make([]byte, 0, size), '{')
		for i, name := range slices.Sorted(maps.Keys(value)) {
			if i > 0 {
				out = append(out, ',')
			}
			quoted, err := json.Marshal(name)
			if err != nil {
				return nil, err
			}
			out = append(append(append(out, quoted...), ':'), value[name]...)
		}
		return append(out, '}'), nil
	default:
		return json.Marshal(value)
	}
}

// shown says how objects of rows are shown to the client: their names, the type, and which clusters
// are stale.
type shown struct {
	names Names
	meta  string               // apiVersion of PartialObjectMetadata in the answer
	stale map[string]time.Time // when clusters with stale rows were last seen, by cluster
	at    location             // the request, with the type in which rows are shown
}

// object returns the whole object of a row as its cluster has it, with the annotations of the
// fleet. If the client asked for another version that conversions can show, it is converted. An
// object in another version that cannot be converted is an error (406): the client would misread
// it. The kind is that of the row, because the body may have only metadata.
func object(row store.Row, show shown) (body, error) {
	o, err := annotated(row, show)
	if err != nil {
		return nil, err
	}
	gvk := schema.GroupVersionKind{Group: row.Group, Version: row.Version, Kind: row.Kind}
	switch as := show.at.shown; {
	case as != nil && as.from == gvk:
		if err := as.convert(o); err != nil {
			return nil, err
		}
		gvk = as.to
	case areInterchangeable(show.at.GroupResource(), gvk.Version, show.at.Version):
		gvk.Version = show.at.Version
	}
	if asked := show.at.asked().GroupVersion(); show.at.Resource != "" && gvk.GroupVersion() != asked {
		return nil, failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, fmt.Sprintf(
			"it is of version %s and cannot be shown as one of %s; its metadata can, and tables show it", gvk.GroupVersion(), asked))
	}
	return o, errors.Join(o.set("apiVersion", gvk.GroupVersion().String()), o.set("kind", gvk.Kind))
}

// partial returns the object of a row as PartialObjectMetadata: its metadata with the annotations
// of the fleet. show.meta is its apiVersion.
func partial(row store.Row, show shown) (body, error) {
	o, err := annotated(row, show)
	if err != nil {
		return nil, err
	}
	p := body{"metadata": o["metadata"]}
	return p, errors.Join(p.set("apiVersion", show.meta), p.set("kind", asPartial))
}

// annotated returns the body of a row with the annotations of the fleet: the cluster, the
// resourceVersion in the cluster and, if the cluster is stale, the time when it was last seen. The
// resourceVersion becomes that of the fleet, except in a row that is not from the store. Names are
// qualified if show.names is Qualified.
func annotated(row store.Row, show shown) (body, error) {
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
	if row.Changed != 0 { // rows of metrics are not from the store, and have no version
		annotations[fleetv1alpha1.ResourceVersionAnnotation] = row.ResourceVersion
		if err := metadata.set("resourceVersion", row.Changed.String()); err != nil {
			return nil, err
		}
	}
	delete(annotations, fleetv1alpha1.LastSeenAnnotation) // only the hub sets this annotation
	if seen, ok := show.stale[row.Cluster]; ok {
		annotations[fleetv1alpha1.LastSeenAnnotation] = seen.UTC().Format(time.RFC3339)
	}
	if show.names == Qualified {
		field, name := "namespace", row.Namespace
		if name == "" {
			field, name = "name", row.Name
		}
		if err := metadata.set(field, show.names.of(name, row.Cluster)); err != nil {
			return nil, err
		}
	}
	return o, errors.Join(metadata.set("annotations", annotations), o.set("metadata", metadata))
}

// tableRow returns a row of a table for a row of the store. include says whether it also has the
// whole object, its metadata or neither.
func tableRow(c *columns, row store.Row, include metav1.IncludeObjectPolicy, show shown) (metav1.TableRow, error) {
	cells, err := c.cells(row)
	if err != nil {
		return metav1.TableRow{}, err
	}
	out := metav1.TableRow{Cells: cells}
	if c.conditions != nil {
		out.Conditions = c.conditions(row)
	}
	var o body
	switch include {
	case metav1.IncludeNone:
		return out, nil
	case metav1.IncludeObject:
		o, err = object(row, show)
	case metav1.IncludeMetadata:
		o, err = partial(row, show)
	}
	if err != nil {
		return metav1.TableRow{}, err
	}
	raw, err := json.Marshal(o)
	out.Object = runtime.RawExtension{Raw: raw}
	return out, err
}
