package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/selection"
)

// valuesOf returns the values that a row has for a column, label or field to group by.
func valuesOf(r *Row, b By) (out []string) {
	switch {
	case b.Column == "cluster":
		return []string{r.Cluster}
	case b.Column == "namespace":
		return []string{r.Namespace}
	case b.Label != "":
		return []string{r.Labels[b.Label]}
	}
	for _, term := range termsOf(groupResource{r.Group, r.Resource}, r.Body) {
		if term.key == declaredPair(b.Field, "").key {
			out = append(out, term.value)
		}
	}
	if out == nil && !several(b.Field) {
		out = []string{""}
	}
	return out
}

// TestGroups: the counts are those of the selected rows, for every index that can drive the
// query.
func TestGroups(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := rand.New(rand.NewPCG(5, 6))
		var rows []Row
		for cluster := 'a'; cluster <= 'c'; cluster++ {
			for namespace := 'x'; namespace <= 'z'; namespace++ {
				for i := range 12 {
					rows = append(rows, resident(random, string(cluster), string(namespace), fmt.Sprintf("pod-%02d", i)))
				}
			}
		}
		rows = append(rows, pod("a", "x", "bare", nil, nil))
		write(t, s, rows...)
		bys := map[string][]By{
			"Cluster":               {{Column: "cluster"}},
			"ClusterAndNamespace":   {{Column: "cluster"}, {Column: "namespace"}},
			"Label":                 {{Label: "app"}},
			"LabelOfNone":           {{Label: "none"}, {Column: "namespace"}},
			"Phase":                 {{Field: "status.phase"}},
			"ClusterAndPhase":       {{Column: "cluster"}, {Field: "status.phase"}},
			"NodeAndLabel":          {{Field: "spec.nodeName"}, {Label: "app"}},
			"Images":                {{Field: FieldImages}, {Column: "cluster"}},
			"LabelThatIsAnObstacle": {{Label: "a'b"}},
		}
		for name, q := range led(t) {
			for by, columns := range bys {
				q.Resource = "pods"
				want := map[string]int64{}
				for i := range rows {
					if !q.selects(&rows[i]) {
						continue
					}
					all := [][]string{{}}
					for _, b := range columns {
						var next [][]string
						for _, before := range all {
							for _, value := range valuesOf(&rows[i], b) {
								next = append(next, append(append([]string{}, before...), value))
							}
						}
						all = next
					}
					for _, values := range all {
						want[list(values)]++
					}
				}
				groups, err := s.Groups(t.Context(), q, columns)
				if err != nil {
					t.Errorf("%s by %s: %v", name, by, err)
					continue
				}
				got := map[string]int64{}
				for _, g := range groups {
					got[list(g.Values)] += g.Objects
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s by %s: %s", name, by, diff)
				}
			}
		}
	})
}

func TestGroupsRefused(t *testing.T) {
	s := openStore(t, t.TempDir())
	write(t, s, pod("a", "x", "one", nil, nil))
	for name, tc := range map[string]struct {
		q  Query
		by []By
	}{
		"Nothing":     {Query{Resource: "pods"}, nil},
		"Past":        {Query{Resource: "pods", At: time.Unix(1, 0)}, []By{{Column: "cluster"}}},
		"TwoFields":   {Query{Resource: "pods"}, []By{{Field: "status.phase"}, {Field: "spec.nodeName"}}},
		"NotDeclared": {Query{Resource: "pods"}, []By{{Field: "spec.hostname"}}},
		"NoColumn":    {Query{Resource: "pods"}, []By{{Column: "uid; DROP TABLE object"}}},
		"Label":       {Query{Resource: "pods"}, []By{{Label: `a"b`}}},
		"Selector":    {Query{Resource: "pods", Fields: []FieldRequirement{{Path: "a[x", Operator: selection.Equals}}}, []By{{Column: "cluster"}}},
		"Glob":        {Query{Resource: "pods", Slim: Slim{Patterns: []Pattern{{Globs: []Glob{{"a\x00", ""}}}}}}, []By{{Column: "cluster"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := s.Groups(t.Context(), tc.q, tc.by); !errors.Is(err, ErrSelector) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
