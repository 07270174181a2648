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

// body is a JSON object whose fields are parsed only on demand.
type body map[string]json.RawMessage

func (b body) set(name string, value any) error {
	raw, err := marshal(value)
	b[name] = raw
	return err
}

// marshal is json.Marshal, except that it does not parse values that are JSON already.
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

// shown defines how rows are shown.
type shown struct {
	names Names
	meta  string               // the version of meta.k8s.io, if the form is one of its kinds
	stale map[string]time.Time // clusters with stale rows, and when they were last seen
	at    location             // the type in which rows are shown
}

// object returns the whole object as in its cluster, with the annotations of the fleet, and
// converted if necessary. The kind is that of the row, because the body may have only metadata.
// If the request is for one version, an object of another version that cannot be converted is
// refused: the client would misread it.
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

// partial returns the metadata of the object.
func partial(row store.Row, show shown) (body, error) {
	o, err := annotated(row, show)
	if err != nil {
		return nil, err
	}
	p := body{"metadata": o["metadata"]}
	return p, errors.Join(p.set("apiVersion", show.meta), p.set("kind", asPartial))
}

// annotated returns the body of a row with the resourceVersion of the fleet and with annotations
// for the cluster, the resourceVersion in the cluster and, if the row is stale, the time when it
// was last seen.
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
	if row.Changed != 0 { // else the row is not from the store
		annotations[fleetv1alpha1.ResourceVersionAnnotation] = row.ResourceVersion
		if err := metadata.set("resourceVersion", row.Changed.String()); err != nil {
			return nil, err
		}
	}
	delete(annotations, fleetv1alpha1.LastSeenAnnotation) // the value of the object is not trusted
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

// tableRow returns the object as a row of a table.
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
