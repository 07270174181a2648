package store

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/selection"
)

// TestPlans: whatever it selects, a page is a walk along an index, in its order: nothing is sorted, no table is scanned, and a body
// is looked up for a row that was found.
func TestPlans(t *testing.T) {
	s := openStore(t, t.TempDir())
	write(t, s, pod("a", "b", "c", nil, nil), pod("b", "b", "c", nil, nil))
	after := position{Cluster: "a", Namespace: "b", Name: "c"}
	for name, tc := range map[string]struct {
		q      Query
		leads  string // the first step; "": what is listed leads
		sorted bool
	}{
		"Everything":    {q: Query{}, leads: "o USING INDEX object_key (type=? AND (cluster,namespace,name)>(?,?,?))"},
		"Label":         {q: Query{Labels: selector(t, "app=web")}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND (cluster,namespace,name)>(?,?,?))"},
		"LabelAndMore":  {q: Query{Labels: selector(t, "app=web,x!=y,z"), Fields: []FieldRequirement{{Path: "a.b", Operator: selection.Equals}}}, leads: "l USING PRIMARY KEY"},
		"Field":         {q: Query{Fields: []FieldRequirement{{Path: "spec.nodeName", Operator: selection.Equals, Value: "n"}}}, leads: "o USING INDEX object_key"},
		"Clusters":      {q: Query{Clusters: []string{"a", "b"}}, leads: "o USING INDEX object_key (type=? AND cluster=? AND (namespace,name)>(?,?))"},
		"Namespace":     {q: Query{Namespaces: []string{"b"}}, leads: "o USING INDEX object_key (type=? AND cluster=? AND namespace=? AND name>?)"},
		"Scopes":        {q: Query{Scopes: map[string][]string{"a": {"b", "c"}, "b": {"b"}}}, leads: "o USING INDEX object_key (type=? AND cluster=? AND namespace=? AND name>?)"},
		"ScopesByLabel": {q: Query{Labels: selector(t, "app=web"), Scopes: map[string][]string{"a": {"b"}}}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND cluster=? AND namespace=? AND name>?)"},
		"Owner":         {q: Query{OwnerUID: "u"}, leads: "o USING INDEX object_owner (owner=?)", sorted: true}, // an owner has few
	} {
		t.Run(name, func(t *testing.T) {
			tc.q.Resource, tc.q.Limit = "pods", 10
			p, err := s.db.plan(tc.q, after, false)
			if err != nil || p == nil {
				t.Fatal(p, err)
			}
			st := &statement{dialect: s.db.dialect}
			s.db.dialect.list(st, p)
			var steps []string
			rows, err := s.db.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+st.text.String(), st.args...)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var a, b, c int
				var step string
				if err := rows.Scan(&a, &b, &c, &step); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(step, "VIRTUAL TABLE") || strings.Contains(step, "SUBQUERY") { // lists of the query's own
					continue
				}
				steps = append(steps, step)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			all := strings.Join(steps, "\n")
			if !strings.HasPrefix(all, "SEARCH "+tc.leads) {
				t.Errorf("it does not begin with a search of %s:\n%s", tc.leads, all)
			}
			if strings.Contains(all, "SCAN") || strings.Contains(all, "TEMP B-TREE") != tc.sorted {
				t.Errorf("it scans or sorts:\n%s", all)
			}
			if !strings.Contains(all, "SEARCH b USING INTEGER PRIMARY KEY (rowid=?)") {
				t.Errorf("bodies are not looked up:\n%s", all)
			}
		})
	}
}
