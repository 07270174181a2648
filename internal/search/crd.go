package search

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"orrery.dev/orrery/internal/store"
)

// columns of a type: Kubernetes' own, those that the CustomResourceDefinition names, or
// the name and the age. Of several clusters' definitions the first one's are taken, since
// a table has one set of columns.
func (s *Search) columns(ctx context.Context, at location, k kind) (*columns, error) {
	if c, ok := builtin[k.GroupVersionKind.GroupKind()]; ok {
		return c, nil
	}
	page, err := s.definitions(ctx, k, at.GroupResource())
	if err != nil || len(page.Rows) == 0 {
		return plain(), err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal(page.Rows[0].Body, &definition); err != nil {
		return nil, fmt.Errorf("parse CustomResourceDefinition %s of cluster %s: %w", page.Rows[0].Name, page.Rows[0].Cluster, err)
	}
	for _, v := range definition.Spec.Versions {
		if v.Name == at.Version && len(v.AdditionalPrinterColumns) > 0 {
			return custom(v.AdditionalPrinterColumns)
		}
	}
	return plain(), nil
}

// custom are the columns that a definition names.
func custom(printed []apiextensionsv1.CustomResourceColumnDefinition) (*columns, error) {
	c := &columns{heads: []head{clusterHead, nameHead}}
	var paths []*jsonpath.JSONPath
	for _, p := range printed {
		path := jsonpath.New(p.Name).AllowMissingKeys(true)
		if err := path.Parse("{" + p.JSONPath + "}"); err != nil {
			return nil, fmt.Errorf("parse column %s: %w", p.Name, err)
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
	return c, nil
}

// customCell is what a path finds, as its type wants it; nothing where it finds nothing
// of that type.
func customCell(path *jsonpath.JSONPath, typ string, o any) any {
	found, err := path.FindResults(o)
	if err != nil || len(found) == 0 || len(found[0]) == 0 {
		return nil
	}
	if typ == "string" {
		text := bytes.Buffer{}
		if err := path.PrintResults(&text, found[0][:1]); err != nil {
			return nil
		}
		return text.String()
	}
	value := found[0][0].Interface()
	if typ != "date" {
		return value
	}
	written, ok := value.(string)
	if !ok {
		return nil
	}
	t, err := time.Parse(time.RFC3339, written)
	if err != nil {
		return "<invalid>"
	}
	return since(t)
}
