package store

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/selection"
)

// LeftAnnotation marks what a hub left in a cluster. Few objects have the mark, of any type: an
// index leads to them, so that whoever looks for them reads no other body. It is the annotation of
// the work API.
const LeftAnnotation = "work.orrery.dev/orphan"

// leftPair leads to the objects that may have the mark; the body says whether they do.
var leftPair = pair{".[left]", "yes"}

// leftTerms are the terms of a body with the mark.
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

// asksForLeft reports whether a requirement holds only for what has the mark.
func (f FieldRequirement) asksForLeft(is fieldIs) bool {
	at := is.path
	return f.Operator == selection.Exists && !is.not && len(at) == 3 && at[0].Key == "metadata" && at[1].Key == "annotations" && at[2].Key == LeftAnnotation
}

// labelled finds the ids of the objects of a type that have a label of a key.
func (d *database) labelled(kind int64, key string) *statement {
	s := &statement{dialect: d.dialect}
	s.sql("SELECT l.object FROM label l WHERE l.type = ").arg(kind).sql(" AND l.label_key = ").arg(key)
	return s
}
