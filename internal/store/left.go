package store

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/selection"
)

// LeftAnnotation is the annotation of objects that a hub stopped managing and left in a cluster.
// The work API has the same annotation. Few objects of any type have it. An index finds them, so
// that a search reads no other bodies.
const LeftAnnotation = "work.orrery.dev/orphan"

// leftPair is the entry in the index of declared fields of objects that may have LeftAnnotation. A
// search then reads the body to see whether they do.
var leftPair = pair{".[left]", "yes"}

// leftTerms returns leftPair, for the index, if the body has LeftAnnotation, and nil if not. A body
// that is not JSON, and contains the text of the annotation, counts as having it.
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

// asksForLeft reports whether the requirement holds only for objects with LeftAnnotation. is must
// be the compiled requirement. The query then looks leftPair up in the index.
func (f FieldRequirement) asksForLeft(is fieldIs) bool {
	at := is.path
	return f.Operator == selection.Exists && !is.not && len(at) == 3 && at[0].Key == "metadata" && at[1].Key == "annotations" && at[2].Key == LeftAnnotation
}

// labelled returns a statement for the ids of objects of a type that have a label with the key. The
// key may also be that of a declared field. kind is the number of the type.
func (d *database) labelled(kind int64, key string) *statement {
	s := &statement{dialect: d.dialect}
	s.sql("SELECT l.object FROM label l WHERE l.type = ").arg(kind).sql(" AND l.label_key = ").arg(key)
	return s
}
