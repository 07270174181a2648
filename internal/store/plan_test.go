package store

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/selection"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/words"
)

// planned returns the classes of queries, with the index that must drive each.
func planned(t *testing.T) map[string]planCase {
	t.Helper()
	field := func(path, value string) []FieldRequirement {
		return []FieldRequirement{{Path: path, Operator: selection.Equals, Value: value}}
	}
	nameDown, err := OrderBy(OrderColumn{"name", true})
	check(t, err)
	keyDown, err := OrderBy(OrderColumn{"cluster", true})
	check(t, err)
	few, many := map[string][]string{"a": {"b", "c"}, "b": {"b"}}, map[string][]string{"a": withMany("b")[:fewSpans], "b": {"b"}}
	return map[string]planCase{
		"Everything":   {q: Query{}, leads: "o USING INDEX object_key (type=? AND (cluster,namespace,name)>(?,?,?))", index: "object_key"},
		"Label":        {q: Query{Labels: selector(t, "app=web")}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND (cluster,namespace,name)>(?,?,?))", index: "PRIMARY"},
		"LabelAndMore": {q: Query{Labels: selector(t, "app=web,x!=y,z"), Fields: field("a.b", "")}, leads: "l USING PRIMARY KEY", index: "PRIMARY"},
		// Sorted: few objects have the label.
		"LabelKey":       {q: Query{Labels: selector(t, "marked")}, leads: "o USING INTEGER PRIMARY KEY (rowid=?)", sorted: true, index: "PRIMARY", estimated: true},
		"FieldOfTheBody": {q: Query{Fields: field("spec.other", "n")}, leads: "o USING INDEX object_key", index: "object_key", estimated: true},
		"Clusters":       {q: Query{Clusters: []string{"a", "b"}}, leads: "o USING INDEX object_key (type=? AND cluster=? AND (namespace,name)>(?,?))", index: "object_key"},
		"Namespace":      {q: Query{Namespaces: []string{"b"}}, leads: "o USING INDEX object_key (type=? AND cluster=? AND namespace=? AND name>?)", index: "object_key"},
		"Scopes":         {q: Query{Scopes: few}, leads: "o USING INDEX object_key (type=? AND cluster=? AND namespace=? AND name>?)", index: "object_key"},
		"ScopesByLabel":  {q: Query{Labels: selector(t, "app=web"), Scopes: few}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND cluster=? AND namespace=? AND name>?)", index: "PRIMARY"},
		// Sorted: an owner has few objects.
		"Owner":             {q: Query{OwnerUID: "u"}, leads: "o USING INDEX object_owner (owner=?)", sorted: true, index: "object_owner"},
		"Field":             {q: Query{Fields: field("spec.nodeName", "n")}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND (cluster,namespace,name)>(?,?,?))", index: "PRIMARY"},
		"Image":             {q: Query{Fields: field(FieldImages, "n"), Scopes: few}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND cluster=? AND namespace=? AND name>?)", index: "PRIMARY"},
		"TwoFields":         {q: Query{Fields: append(field("spec.nodeName", "n"), field("status.phase", "p")...)}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=?", index: "PRIMARY"},
		"PhaseNewest":       {q: Query{Fields: field("status.phase", "Pending"), Order: Newest}, leads: "l USING COVERING INDEX label_created (type=? AND label_key=? AND label_value=? AND (created,object)<(?,?))", index: "label_created"},
		"PhaseOldestOfMany": {q: Query{Fields: field("status.phase", "Pending"), Order: Oldest, Scopes: many}, leads: "l USING COVERING INDEX label_created (type=? AND label_key=? AND label_value=? AND (created,object)>(?,?))", index: "label_created", estimated: true},
		// Sorted: a node has few objects.
		"NodeNewest":      {q: Query{Fields: field("spec.nodeName", "n"), Order: Newest}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=?)", sorted: true, index: "PRIMARY"},
		"Left":            {q: Query{Labels: selector(t, "!a"), Fields: []FieldRequirement{{Path: "metadata.annotations['" + LeftAnnotation + "']", Operator: selection.Exists}}}, leads: "l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND (cluster,namespace,name)>(?,?,?))", index: "PRIMARY"},
		"Newest":          {q: Query{Order: Newest}, leads: "o USING INDEX object_created (type=? AND created<?)", index: "object_created"},
		"Oldest":          {q: Query{Order: Oldest, Scopes: many}, leads: "o USING INDEX object_created (type=? AND created>?)", index: "object_created", estimated: true},
		"NewestOfFew":     {q: Query{Order: Newest, Scopes: few}, leads: "o USING INDEX object_key (type=? AND cluster=? AND namespace=? AND name>?)", sorted: true, index: "object_key"},
		"Name":            {q: Query{Names: []string{"c"}}, leads: "o USING INDEX object_name (type=? AND name=?", index: "object_name"},
		"NameAndClusters": {q: Query{Names: []string{"c"}, Clusters: []string{"a", "b"}}, leads: "o USING INDEX object_name (type=? AND name=? AND cluster=?", index: "object_name"},
		"NameDown":        {q: Query{Order: nameDown}, leads: "o USING INDEX object_name (type=? AND (name,cluster,namespace)<(?,?,?))", index: "object_name"},
		"KeyDown":         {q: Query{Order: keyDown}, leads: "o USING INDEX object_key (type=? AND (cluster,namespace,name)<(?,?,?))", index: "object_key"},
		"Owners":          {q: Query{OwnerUID: "u", OwnerSteps: 0, Clusters: []string{"a"}}, leads: "o USING INDEX object_owner (owner=?)", sorted: true, index: "object_owner"},
		// The text is too short for the index of names in SQLite.
		"Contains":   {q: Query{NameContains: []string{"c"}}, leads: "o USING INDEX object_key (type=? AND (cluster,namespace,name)>(?,?,?))", index: "PRIMARY", estimated: true},
		"Containing": {q: Query{NameContains: []string{"od-11"}, Labels: selector(t, "app=web")}, leads: "o USING INTEGER PRIMARY KEY (rowid=?)", sorted: true, index: "PRIMARY", estimated: true},
		"Words":      {q: Query{Slim: texts(t, "11*", "pod 11*")}, leads: "o USING INTEGER PRIMARY KEY (rowid=?)", sorted: true, index: "PRIMARY", estimated: true},
		"WordsNot":   {q: Query{Slim: texts(t, "-11c")}, leads: "o USING INDEX object_key (type=? AND (cluster,namespace,name)>(?,?,?))", index: "object_key", estimated: true},
		"Recent":     {q: Query{Since: time.Unix(1_800_000_000, 0)}, leads: "o USING INDEX object_created (type=? AND created>?", sorted: true, index: "object_created", estimated: true},
		"Prefix":     {q: Query{NamePrefix: "c", Order: ByName}, leads: "o USING INDEX object_name (type=? AND (name,cluster,namespace)>(?,?,?)", index: "object_name"},
		// Sorted: few names have the prefix.
		"PrefixByKey": {q: Query{NamePrefix: "c"}, leads: "o USING INTEGER PRIMARY KEY (rowid=?)", sorted: true, index: "PRIMARY", estimated: true},
	}
}

type planCase struct {
	q      Query
	leads  string // beginning of the first step in SQLite
	index  string // its name in MariaDB
	sorted bool
	// PostgreSQL selects this index or another one by its estimates.
	estimated bool
}

// explained returns the steps of SQLite's query plan, without those for lists in the query
// itself.
func explained(t *testing.T, s *Store, st *statement) string {
	t.Helper()
	var steps []string
	check(t, each(t.Context(), s.db.read, "EXPLAIN QUERY PLAN "+st.text.String(), func(rows *sql.Rows) error {
		var a, b, c int
		var step string
		err := rows.Scan(&a, &b, &c, &step)
		if !strings.Contains(step, "VIRTUAL TABLE") && !strings.Contains(step, "SUBQUERY") && !strings.HasPrefix(step, "REUSE LIST") &&
			step != "CO-ROUTINE o" && step != "MATERIALIZE o" && step != "SCAN o" && step != "CO-ROUTINE page" && step != "MATERIALIZE page" && step != "SCAN page" {
			steps = append(steps, step)
		}
		return err
	}, st.args...))
	return strings.Join(steps, "\n")
}

// TestPlans: for every kind of query, SQLite reads a page along an index in the order of the
// page. It sorts only where the case says so and scans no table. It looks up the body of each
// row found.
func TestPlans(t *testing.T) {
	s := openStore(t, t.TempDir())
	write(t, s, pod("a", "b", "c", nil, nil), pod("b", "b", "c", nil, nil), pod("c", "b", "pod-11c", map[string]string{"marked": "yes"}, nil))
	for name, tc := range planned(t) {
		t.Run(name, func(t *testing.T) {
			tc.q.Resource, tc.q.Limit = "pods", 10
			p, err := s.db.plan(t.Context(), s.db.read, tc.q, position{Cluster: "a", Namespace: "b", Name: "c", Created: 5, ID: 5}, false)
			if err != nil || p == nil {
				t.Fatal(p, err)
			}
			st := &statement{dialect: s.db.dialect}
			s.db.dialect.list(st, p)
			all := explained(t, s, st)
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
	for name, tc := range map[string]struct {
		q    Query
		want string // beginning of the only step
	}{
		"Everything": {Query{}, "SEARCH o USING PRIMARY KEY (type=?)"},
		"Scopes":     {Query{Scopes: map[string][]string{"a": {"b", "c"}}}, "SEARCH o USING PRIMARY KEY (type=? AND cluster=? AND namespace=?)"},
		"Label":      {Query{Labels: selector(t, "app=web")}, "SEARCH l USING PRIMARY KEY (type=? AND label_key=? AND label_value=?)"},
		"Field":      {Query{Fields: []FieldRequirement{{Path: "status.phase", Operator: selection.Equals, Value: "p"}}, Clusters: []string{"a"}}, "SEARCH l USING PRIMARY KEY (type=? AND label_key=? AND label_value=? AND cluster=?"},
		"Prefix":     {Query{NamePrefix: "c"}, "SEARCH o USING COVERING INDEX object_name (type=? AND name>? AND name<?)"},
	} {
		t.Run("Count"+name, func(t *testing.T) {
			tc.q.Resource = "pods"
			if tc.q.NamePrefix != "" {
				tc.q.Order = ByName
			}
			p, err := s.db.plan(t.Context(), s.db.read, tc.q, position{}, true)
			check(t, err)
			st := &statement{dialect: s.db.dialect}
			s.db.dialect.count(st, p)
			if all := explained(t, s, st); !strings.HasPrefix(all, tc.want) || strings.Contains(all, "\n") {
				t.Errorf("%s, want %s", all, tc.want)
			}
		})
	}
}

// TestPlansOfWords: the index of words drives queries for words. They read no objects and no
// texts.
func TestPlansOfWords(t *testing.T) {
	asked := map[string][][]words.Word{}
	for _, one := range [][]string{{"shop"}, {"shop", "image"}, {"sho*"}, {"shop the", "imag*|sidecar"}} {
		asked[fmt.Sprint(one)] = clauses(texts(t, one...).Texts, nil)
	}
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := rand.New(rand.NewPCG(9, 10))
		var rows []Row
		for i := range 3000 {
			rows = append(rows, resident(random, "a", "x", fmt.Sprint("pod-", i)))
		}
		write(t, s, rows...)
		for name, of := range asked {
			st := &statement{dialect: s.db.dialect}
			s.db.dialect.fullText(st, s.db.kind(groupResource{"", "pods"}), of)
			if s.server == nil {
				var all []string
				check(t, each(t.Context(), s.db.read, "EXPLAIN QUERY PLAN "+st.text.String(), func(rows *sql.Rows) error {
					var a, b, c int
					var step string
					err := rows.Scan(&a, &b, &c, &step)
					all = append(all, step)
					return err
				}, st.args...))
				if len(all) != 1 || !strings.HasPrefix(all[0], "SCAN prose_words VIRTUAL TABLE INDEX 0:M") {
					t.Errorf("%s: %s", name, all)
				}
				continue
			}
			_, all := s.steps(t, st)
			if s.db.dialect.inverts() {
				if n := strings.Count(all, "| PRIMARY |"); n < len(of) || strings.Contains(all, "| ALL |") {
					t.Errorf("%s: %s", name, all)
				}
			} else if !strings.Contains(all, "Bitmap Index Scan on prose_index") || strings.Contains(all, "Seq Scan") {
				t.Errorf("%s: %s", name, all)
			}
		}
	})
}

// TestPlansOfChanges: changes in an interval are found by an index of their time.
func TestPlansOfChanges(t *testing.T) {
	s := openStore(t, t.TempDir())
	for i, index := range []string{"r USING INDEX revision_until (until>? AND until<?)", "r USING INDEX revision_until (until>?)", "o USING INDEX object_made (type=? AND made>? AND made<?)"} {
		st := &statement{dialect: s.db.dialect, args: []any{1, 2, 3, 4, 5}}
		st.sql(changeSources[i].text)
		if all := explained(t, s, st); !strings.HasPrefix(all, "SEARCH "+index) || strings.Contains(all, "SCAN") {
			t.Errorf("%s does not lead:\n%s", index, all)
		}
	}
}

// TestServerPlans: the same indexes drive the queries in the servers, which scan no table.
func TestServerPlans(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		random := rand.New(rand.NewPCG(7, 8))
		for n := 0; n < 6000; n += 500 {
			rows := make([]Row, 500)
			for i := range rows {
				rows[i] = resident(random, fmt.Sprint("cluster-", n%10), fmt.Sprint("namespace-", i%20), fmt.Sprint("pod-", n+i))
			}
			write(t, s, rows...)
		}
		write(t, s, resident(random, "a", "b", "c"), resident(random, "b", "b", "c"), pod("c", "b", "c", map[string]string{"marked": "yes"}, nil))
		if d == testenv.PostgreSQL {
			_, err := s.db.write.ExecContext(t.Context(), "VACUUM ANALYZE")
			check(t, err)
		}
		for name, tc := range planned(t) {
			if tc.estimated && d == testenv.PostgreSQL {
				continue
			}
			t.Run(name, func(t *testing.T) {
				tc.q.Resource, tc.q.Limit = "pods", 10
				p, err := s.db.plan(t.Context(), s.db.read, tc.q, position{}, false)
				check(t, err)
				st := &statement{dialect: s.db.dialect}
				s.db.dialect.list(st, p)
				leads, all := s.steps(t, st)
				index := tc.index
				if d == testenv.PostgreSQL && index == "PRIMARY" {
					index = "label_pkey"
				}
				if !strings.Contains(leads, index) || strings.Contains(all, "Seq Scan") {
					t.Errorf("%s does not lead, or a table is scanned:\n%s", index, all)
				}
			})
		}
	})
}

// steps returns the query plan of a server: the steps on objects and labels, and all steps.
func (s *Store) steps(t *testing.T, st *statement) (leads, all string) {
	t.Helper()
	check(t, each(t.Context(), s.db.read, "EXPLAIN "+st.text.String(), func(rows *sql.Rows) error {
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		values, texts := make([]any, len(columns)), make([]sql.NullString, len(columns))
		for i := range values {
			values[i] = &texts[i]
		}
		err = rows.Scan(values...)
		row := map[string]string{}
		for i, text := range texts {
			row[columns[i]] = text.String
			all += text.String + " | "
		}
		all += "\n"
		if len(columns) == 1 || row["table"] == "o" || row["table"] == "l" {
			leads += row["QUERY PLAN"] + row["key"] + "\n"
		}
		return err
	}, st.args...))
	return leads, all
}
