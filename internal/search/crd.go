package search

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"orrery.dev/orrery/internal/store"
)

// columns returns the columns of the table of a type: the built-in ones of a kind of Kubernetes,
// those of its CustomResourceDefinition, or else name and age. If clusters have different
// definitions, the first is used that has the version and whose columns can be shown. The error is
// that of reading the definitions.
func (s *Search) columns(ctx context.Context, at location, k kind) (*columns, error) {
	if c, ok := builtin[k.GroupVersionKind.GroupKind()]; ok {
		return c, nil
	}
	c := plain()
	err := s.definitions(ctx, k, at.GroupResource(), func(body []byte) bool {
		var definition apiextensionsv1.CustomResourceDefinition
		if json.Unmarshal(body, &definition) != nil {
			return false
		}
		versions := definition.Spec.Versions
		i := slices.IndexFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == at.Version })
		if i < 0 {
			return false
		}
		if len(versions[i].AdditionalPrinterColumns) == 0 {
			return true
		}
		named, ok := custom(versions[i].AdditionalPrinterColumns)
		if ok {
			c = named
		}
		return ok
	})
	return c, err
}

// custom returns the columns cluster and name and the columns printed, which are those of a
// CustomResourceDefinition. It returns false if the path of a column is invalid, or could cost too
// much (see descends).
func custom(printed []apiextensionsv1.CustomResourceColumnDefinition) (*columns, bool) {
	c := &columns{heads: []head{clusterHead, nameHead}}
	var paths []*jsonpath.JSONPath
	for _, p := range printed {
		text := "{" + p.JSONPath + "}"
		parsed, err := jsonpath.Parse(p.Name, text)
		if err != nil || len(parsed.Root.Nodes) != 1 || !descends(parsed.Root.Nodes[0]) {
			return nil, false
		}
		path := jsonpath.New(p.Name).AllowMissingKeys(true)
		if path.Parse(text) != nil {
			return nil, false
		}
		paths = append(paths, path)
		c.heads = append(c.heads, head{name: p.Name, typ: p.Type, format: p.Format, wide: p.Priority > 0})
	}
	c.row = func(row store.Row) ([]any, error) {
		var o any
		if err := utiljson.Unmarshal(row.Body, &o); err != nil {
			return nil, fmt.Errorf("parse body: %w", err)
		}
		cells := make([]any, len(paths))
		for i, path := range paths {
			cells[i] = customCell(path, printed[i].Type, o)
		}
		return cells, nil
	}
	return c, true
}

// descends reports whether each step of a JSON path goes one level down the object, so that the
// size of the object limits the cost. Recursion, unions and loops multiply their results and are
// refused: a cluster may serve definitions that no API server has checked.
func descends(n jsonpath.Node) bool {
	switch n := n.(type) {
	case *jsonpath.ListNode:
		return !slices.ContainsFunc(n.Nodes, func(n jsonpath.Node) bool { return !descends(n) })
	case *jsonpath.FilterNode:
		return descends(n.Left) && descends(n.Right)
	case *jsonpath.FieldNode, *jsonpath.ArrayNode, *jsonpath.WildcardNode, *jsonpath.TextNode, *jsonpath.IntNode, *jsonpath.FloatNode, *jsonpath.BoolNode:
		return true
	default:
		return false
	}
}

// customCell returns the value at a path of the object o, in the type of the column; nil if there
// is no value of that type. A float in an integer column is truncated. A date becomes the time that
// has passed since then, or <invalid>.
func customCell(path *jsonpath.JSONPath, typ string, o any) any {
	found, err := path.FindResults(o)
	if err != nil || len(found) == 0 || len(found[0]) == 0 {
		return nil
	}
	value := found[0][0].Interface()
	if typ == "string" {
		text := bytes.Buffer{}
		// null is printed as <no value>
		if err := path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}); err != nil {
			return nil
		}
		return text.String()
	}
	switch value := value.(type) {
	case int64:
		switch typ {
		case "integer":
			return value
		case "number":
			return float64(value)
		}
	case float64:
		switch typ {
		case "integer":
			return int64(value)
		case "number":
			return value
		}
	case bool:
		if typ == "boolean" {
			return value
		}
	case string:
		if typ != "date" {
			return nil
		}
		t, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return "<invalid>"
		}
		return since(t)
	}
	return nil
}
