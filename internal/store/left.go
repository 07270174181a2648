package store

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/selection"
)

// LeftAnnotation marks objects that a hub left in a cluster. Few objects of any type have it. An
// index finds them, so that a search reads no other bodies. It is the annotation of the work API.
const LeftAnnotation = "work.orrery.dev/orphan"

// leftPair finds the objects that may have the mark; the body shows whether they do.
var leftPair = pair{".[left]", "yes"}

// leftTerms returns the index terms of a body with the mark.
func leftTerms(body []byte) []pair {
	if !bytes.Contains(body, []byte(LeftAnnotation)) {
		return nil
	}
	var o struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"annotations"`
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &o) == nil && o.Metadata.Annotations[LeftAnnotation] == nil {
		return nil
	}
	return []pair{leftPair}
}

// asksForLeft reports whether a requirement holds only for objects with the mark.
func (f FieldRequirement) asksForLeft(is fieldIs) bool {
	at := is.path
	return f.Operator == selection.Exists && !is.not && len(at) == 3 && at[0].Key == "metadata" && at[1].Key == "annotations" && at[2].Key == LeftAnnotation
}

// labelled returns a statement for the ids of a type's objects that have a label with the key.
func (d *database) labelled(kind int64, key string) *statement {
	s := &statement{dialect: d.dialect}
	s.sql("SELECT l.object FROM label l WHERE l.type = ").arg(kind).sql(" AND l.label_key = ").arg(key)
	return s
}
