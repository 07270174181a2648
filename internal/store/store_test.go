package store

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

func openStore(t testing.TB, dir string, options ...Option) *Store {
	t.Helper()
	s, err := open(t, dir, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pod returns a row with a matching body.
func pod(cluster, namespace, name string, ls map[string]string, spec map[string]any) Row {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": spec,
		"metadata": map[string]any{
			"namespace": namespace, "name": name, "labels": ls, "annotations": map[string]any{"example.com/team": "a'b"},
		},
	})
	if err != nil {
		panic(err)
	}
	return Row{
		Cluster: cluster, Version: "v1", Resource: "pods", Kind: "Pod", Namespace: namespace, Name: name,
		UID: types.UID(cluster + namespace + name), OwnerUID: types.UID("owner-of-" + namespace), ResourceVersion: "7",
		Created: time.Unix(1_700_000_000, 0).UTC(), Labels: ls, Body: body,
	}
}

func write(t testing.TB, s *Store, rows ...Row) {
	t.Helper()
	changes := make([]Change, 0, len(rows))
	for _, r := range rows {
		changes = append(changes, Change{Row: r})
	}
	if err := s.Write(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

func keys(rows []Row) []string {
	out := make([]string, 0, len(rows))
	for _, r := range rows {
		out = append(out, r.Cluster+"/"+r.Namespace+"/"+r.Name)
	}
	return out
}

func listed(t testing.TB, s *Store, q Query) []string {
	t.Helper()
	p, err := s.List(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	n, err := s.Count(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	if q.Limit == 0 && n != int64(len(p.Rows)) {
		t.Errorf("Count %d, List %d", n, len(p.Rows))
	}
	return keys(p.Rows)
}

func selector(t testing.TB, s string) labels.Selector {
	t.Helper()
	out, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSelect(t *testing.T) { onEach(t, testSelect) }

func testSelect(t *testing.T, at string) {
	s := openStore(t, at)
	write(t, s,
		pod("east", "a", "one", map[string]string{"app": "web", "tier": "front", "size": "3"}, map[string]any{"nodeName": "n1", "hostNetwork": true}),
		pod("east", "a", "two", map[string]string{"app": "web", "size": "20"}, map[string]any{"nodeName": "n2", "priority": 5}),
		pod("east", "b", "one", map[string]string{"app": "db", "example.com/x": "é'\""}, map[string]any{"a.b": "dotted"}),
		pod("west", "a", "one", map[string]string{"app": "db", "size": "large"}, map[string]any{"nodeName": "n1"}),
		pod("west", "c", "bare", nil, map[string]any{}),
	)
	all := []string{"east/a/one", "east/a/two", "east/b/one", "west/a/one", "west/c/bare"}
	field := func(path string, op selection.Operator, value string) []FieldRequirement {
		return []FieldRequirement{{Path: path, Operator: op, Value: value}}
	}
	cases := map[string]struct {
		q    Query
		want []string
	}{
		"Everything":          {Query{}, all},
		"OtherType":           {Query{Group: "apps"}, []string{}},
		"Version":             {Query{Version: "v1"}, all},
		"OtherVersion":        {Query{Version: "v2"}, []string{}},
		"Interchangeable":     {Query{Version: "v2", Interchangeable: []string{"v3", "v1"}}, all},
		"NotInterchangeable":  {Query{Version: "v2", Interchangeable: []string{"v3"}}, []string{}},
		"VersionInjection":    {Query{Version: "' OR 1=1 --"}, []string{}},
		"ManyTerms":           {Query{Labels: selector(t, "size>3"+strings.Repeat(",size>3", MostTerms-1))}, all[1:2]},
		"ManyValues":          {Query{Labels: selector(t, "app in (web,"+manyValues(9000)+")")}, all[:2]},
		"Cluster":             {Query{Clusters: []string{"west"}}, all[3:]},
		"Clusters":            {Query{Clusters: []string{"west", "east", "none"}}, all},
		"UnknownCluster":      {Query{Clusters: []string{"none"}}, []string{}},
		"Namespace":           {Query{Namespaces: []string{"a"}}, []string{all[0], all[1], all[3]}},
		"Namespaces":          {Query{Namespaces: []string{"c", "b"}}, []string{all[2], all[4]}},
		"Scopes":              {Query{Scopes: map[string][]string{"east": {"b", "c"}, "west": {"a"}}}, []string{all[2], all[3]}},
		"ScopesAndLabel":      {Query{Labels: selector(t, "app=db"), Scopes: map[string][]string{"west": {"a", "b"}}}, all[3:4]},
		"ScopesAndNamespaces": {Query{Namespaces: []string{"a"}, Scopes: map[string][]string{"east": {"a"}, "west": {"c"}}}, all[:2]},
		// So many that the query reads clusters, and not each namespace.
		"ManyNamespaces":           {Query{Namespaces: withMany("b", "c")}, []string{all[2], all[4]}},
		"ManyNamespacesOfACluster": {Query{Namespaces: withMany("b", "c"), Clusters: []string{"west"}}, all[4:]},
		"ManyNamespacesAndLabel":   {Query{Namespaces: withMany("a"), Labels: selector(t, "app=db")}, all[3:4]},
		"ManyNamespacesAndOwner":   {Query{Namespaces: withMany("a"), OwnerUID: "owner-of-a", Clusters: []string{"west"}}, all[3:4]},
		"ManyScopesAlike":          {Query{Scopes: map[string][]string{"east": withMany("b", "c"), "west": withMany("b", "c")}}, []string{all[2], all[4]}},
		"ManyScopesAndNobody":      {Query{Scopes: map[string][]string{"east": {}, "west": withMany("b", "c")}}, all[4:]},
		"ManyScopesOfOneCluster":   {Query{Scopes: map[string][]string{"west": withMany("b", "c")}, Clusters: []string{"east", "west"}}, all[4:]},
		"ScopesOfNobody":           {Query{Scopes: map[string][]string{"east": {}}}, []string{}},
		"Name":                     {Query{Names: []string{"one"}}, []string{all[0], all[2], all[3]}},
		"Names":                    {Query{Names: []string{"two", "bare"}}, []string{all[1], all[4]}},
		"Owner":                    {Query{OwnerUID: "owner-of-a"}, []string{all[0], all[1], all[3]}},
		"LabelEquals":              {Query{Labels: selector(t, "app=web")}, all[:2]},
		"LabelEqualsTwo":           {Query{Labels: selector(t, "app=web,tier=front")}, all[:1]},
		"LabelNotEquals":           {Query{Labels: selector(t, "app!=web")}, all[2:]},
		"LabelIn":                  {Query{Labels: selector(t, "app in (db, other)")}, all[2:4]},
		"LabelNotIn":               {Query{Labels: selector(t, "app notin (db, web)")}, all[4:]},
		"LabelExists":              {Query{Labels: selector(t, "tier")}, all[:1]},
		"LabelNotExists":           {Query{Labels: selector(t, "!size")}, []string{all[2], all[4]}},
		"LabelGreater":             {Query{Labels: selector(t, "size>3")}, all[1:2]},
		"LabelLess":                {Query{Labels: selector(t, "size<20")}, all[:1]},
		"LabelNothing":             {Query{Labels: labels.Nothing()}, []string{}},
		"LabelEverything":          {Query{Labels: labels.Everything()}, all},
		"LabelMiss":                {Query{Labels: selector(t, "app=none")}, []string{}},
		"LabelAndNamespace":        {Query{Labels: selector(t, "app=db"), Namespaces: []string{"b"}}, all[2:3]},
		"FieldName":                {Query{Fields: field("metadata.name", selection.Equals, "two")}, all[1:2]},
		"FieldNotNamespace":        {Query{Fields: field("metadata.namespace", selection.NotEquals, "a")}, []string{all[2], all[4]}},
		"FieldPath":                {Query{Fields: field("spec.nodeName", selection.DoubleEquals, "n1")}, []string{all[0], all[3]}},
		"FieldPathNot":             {Query{Fields: field("spec.nodeName", selection.NotEquals, "n1")}, []string{all[1], all[2], all[4]}},
		"FieldPathAbsent":          {Query{Fields: field("spec.nodeName", selection.Equals, "")}, []string{all[2], all[4]}},
		"FieldBoolean":             {Query{Fields: field("spec.hostNetwork", selection.Equals, "true")}, all[:1]},
		"FieldNumber":              {Query{Fields: field("spec.priority", selection.Equals, "5")}, all[1:2]},
		"FieldQuotedKey":           {Query{Fields: field("spec['a.b']", selection.Equals, "dotted")}, all[2:3]},
		"FieldOneLetterKey":        {Query{Fields: field("spec['a']", selection.Equals, "")}, all},
		"FieldInTheMiddle":         {Query{Fields: field("metadata['annotations']['example.com/team']", selection.Equals, "a'b")}, all},
		"FieldValueInjection":      {Query{Fields: field("spec.nodeName", selection.Equals, "' OR 1=1 --")}, []string{}},
		"NameInjection":            {Query{Names: []string{"' OR 1=1 --", `") --`}}, []string{}},
		"ClusterInjection":         {Query{Clusters: []string{"'; DROP TABLE object; --"}}, []string{}},
		"NamespaceInjection":       {Query{Namespaces: []string{"a' OR 'a'='a"}}, []string{}},
		"OwnerInjection":           {Query{OwnerUID: "' OR ''='"}, []string{}},
		"TypeInjection":            {Query{Group: "' OR 1=1 --"}, []string{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.q.Resource = "pods"
			if diff := cmp.Diff(tc.want, listed(t, s, tc.q)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if diff := cmp.Diff(all, listed(t, s, Query{Resource: "pods"})); diff != "" {
		t.Error("after the injections:", diff)
	}
}

// withMany returns the namespaces and many that do not exist.
func withMany(namespaces ...string) []string {
	for i := range mostSpans {
		namespaces = append(namespaces, fmt.Sprintf("none-%d", i))
	}
	return namespaces
}

func manyValues(n int) string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("v%d", i)
	}
	return strings.Join(values, ",")
}

// TestTooManyTerms: a query that is too large for the database is refused before it is sent.
func TestTooManyTerms(t *testing.T) { onEach(t, testTooManyTerms) }

func testTooManyTerms(t *testing.T, at string) {
	s := openStore(t, at)
	fields := make([]FieldRequirement, 1000)
	for i := range fields {
		fields[i] = FieldRequirement{Path: "spec.a", Operator: selection.Equals, Value: "x"}
	}
	for name, q := range map[string]Query{
		"Labels": {Labels: selector(t, "a!=b"+strings.Repeat(",a!=b", 9000))},
		"Fields": {Fields: fields},
		"Both":   {Labels: selector(t, "a!=b"+strings.Repeat(",a!=b", MostTerms-1)), Fields: fields[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			q.Resource = "pods"
			if _, err := s.List(t.Context(), q); !errors.Is(err, ErrSelector) || !strings.Contains(err.Error(), "at most 100") {
				t.Errorf("%v, want ErrSelector", err)
			}
		})
	}
}

func TestSelectRefuses(t *testing.T) { onEach(t, testSelectRefuses) }

func testSelectRefuses(t *testing.T, at string) {
	s := openStore(t, at)
	for name, f := range map[string]FieldRequirement{
		"Operator":    {Path: "spec.a", Operator: selection.In, Value: "x"},
		"Greater":     {Path: "spec.a", Operator: selection.GreaterThan, Value: "1"},
		"EmptyPath":   {Path: "", Operator: selection.Equals},
		"EmptyKey":    {Path: "spec..a", Operator: selection.Equals},
		"TrailingDot": {Path: "spec.", Operator: selection.Equals},
		"Unclosed":    {Path: "spec['a", Operator: selection.Equals},
		"DoubleQuote": {Path: `spec['a"b']`, Operator: selection.Equals},
		"Injection":   {Path: `spec.a') OR 1=1 --`, Operator: selection.Equals},
		"Wildcard":    {Path: "spec.*", Operator: selection.Equals},
		"Index":       {Path: "spec.containers[x].image", Operator: selection.Equals},
		"Negative":    {Path: "spec.containers[-1].image", Operator: selection.Equals},
		"EmptyOfList": {Path: "spec.containers[].image", Operator: selection.Equals},
		"NoValues":    {Path: "spec.a", Operator: selection.NotIn},
		"Long":        {Path: strings.Repeat("a.", 1000) + "a", Operator: selection.Equals},
	} {
		t.Run(name, func(t *testing.T) {
			q := Query{Resource: "pods", Fields: []FieldRequirement{f}}
			if _, err := s.List(t.Context(), q); !errors.Is(err, ErrSelector) {
				t.Errorf("List: %v, want ErrSelector", err)
			}
			if _, err := s.Count(t.Context(), q); !errors.Is(err, ErrSelector) {
				t.Errorf("Count: %v, want ErrSelector", err)
			}
		})
	}
}

func TestRowSurvives(t *testing.T) { onEach(t, testRowSurvives) }

func testRowSurvives(t *testing.T, at string) {
	s := openStore(t, at)
	want := pod("c", "n", "o", map[string]string{"a": "1"}, map[string]any{"x": "<>&\u2028é"})
	write(t, s, want)
	p, err := s.List(t.Context(), Query{Resource: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Row{want}, p.Rows, cmpopts.IgnoreFields(Row{}, "Changed")); diff != "" {
		t.Error(diff)
	}
}

func TestPages(t *testing.T) { onEach(t, testPages) }

func testPages(t *testing.T, at string) {
	s := openStore(t, at)
	var want []string
	for _, cluster := range []string{"a", "b", "c"} {
		for _, namespace := range []string{"x", "y"} {
			for i := range 7 {
				r := pod(cluster, namespace, fmt.Sprintf("p%d", i), map[string]string{"even": fmt.Sprint(i%2 == 0)}, nil)
				write(t, s, r)
				if i%2 == 0 {
					want = append(want, keys([]Row{r})...)
				}
			}
		}
	}
	for name, q := range map[string]Query{
		"ByLabel":          {Labels: selector(t, "even=true")},
		"ByLabelIn":        {Labels: selector(t, "even notin (false)")},
		"WithNamespaces":   {Labels: selector(t, "even=true"), Namespaces: []string{"y", "x"}},
		"ByLabelAndFields": {Labels: selector(t, "even=true"), Fields: []FieldRequirement{{Path: "kind", Operator: selection.Equals, Value: "Pod"}}},
	} {
		t.Run(name, func(t *testing.T) {
			for limit := 1; limit <= len(want)+1; limit++ {
				q := q
				q.Resource, q.Limit = "pods", limit
				var got []string
				for pages := 0; ; pages++ {
					p, err := s.List(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					if len(p.Rows) > limit || pages > len(want) {
						t.Fatalf("limit %d: page %d has %d rows", limit, pages, len(p.Rows))
					}
					got = append(got, keys(p.Rows)...)
					if q.Continue = p.Continue; q.Continue == "" {
						break
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("limit %d: %s", limit, diff)
				}
			}
		})
	}
}

func TestPageIsStableWhileObjectsComeAndGo(t *testing.T) {
	onEach(t, testPageIsStableWhileObjectsComeAndGo)
}

func testPageIsStableWhileObjectsComeAndGo(t *testing.T, at string) {
	s := openStore(t, at)
	write(t, s, pod("a", "x", "1", nil, nil), pod("a", "x", "3", nil, nil), pod("a", "x", "5", nil, nil))
	q := Query{Resource: "pods", Limit: 2}
	p, err := s.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	gone := pod("a", "x", "1", nil, nil)
	if err := s.Write(t.Context(), []Change{{Row: gone, Delete: true}, {Row: pod("a", "x", "2", nil, nil)}, {Row: pod("a", "x", "4", nil, nil)}}); err != nil {
		t.Fatal(err)
	}
	q.Continue = p.Continue
	if diff := cmp.Diff([]string{"a/x/4", "a/x/5"}, listed(t, s, q)); diff != "" {
		t.Error(diff)
	}
}

func TestContinueIsChecked(t *testing.T) { onEach(t, testContinueIsChecked) }

func testContinueIsChecked(t *testing.T, at string) {
	s := openStore(t, at)
	write(t, s, pod("a", "x", "1", nil, nil), pod("a", "x", "2", nil, nil))
	p, err := s.List(t.Context(), Query{Resource: "pods", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]Query{
		"Garbage":       {Continue: "!!!"},
		"NotJSON":       {Continue: "AAAA"},
		"Truncated":     {Continue: p.Continue[:len(p.Continue)-5]},
		"OtherSelector": {Continue: p.Continue, Labels: selector(t, "a=b")},
		"OtherCluster":  {Continue: p.Continue, Clusters: []string{"a"}},
		"OtherType":     {Continue: p.Continue, Group: "apps"},
		"OtherText":     {Continue: p.Continue, Slim: texts(t, "web")},
	} {
		t.Run(name, func(t *testing.T) {
			q.Resource = "pods"
			if _, err := s.List(t.Context(), q); !errors.Is(err, ErrContinue) || errors.Is(err, ErrOtherQuery) != (name == "OtherCluster") {
				t.Errorf("%v, want ErrContinue", err)
			}
		})
	}
}

func TestWriteIsIdempotentAndFollowsLabels(t *testing.T) {
	onEach(t, testWriteIsIdempotentAndFollowsLabels)
}

func testWriteIsIdempotentAndFollowsLabels(t *testing.T, at string) {
	s := openStore(t, at)
	first := pod("a", "x", "1", map[string]string{"app": "web", "old": "1"}, nil)
	write(t, s, first, first)
	second := pod("a", "x", "1", map[string]string{"app": "db"}, nil)
	second.UID, second.ResourceVersion = "another", "9"
	write(t, s, second)
	write(t, s, second)
	for query, want := range map[string][]string{"app=web": {}, "old": {}, "app=db": {"a/x/1"}} {
		if diff := cmp.Diff(want, listed(t, s, Query{Resource: "pods", Labels: selector(t, query)})); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
	for range 2 {
		if err := s.Write(t.Context(), []Change{{Row: Row{Cluster: "a", Resource: "pods", Namespace: "x", Name: "1"}, Delete: true}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"object", "body", "label"} {
		if n := rowsOf(t, s, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

func rowsOf(t testing.TB, s *Store, table string) (n int) {
	t.Helper()
	if err := s.db.read.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBadRowsDoNotHoldUpTheOthers(t *testing.T) { onEach(t, testBadRowsDoNotHoldUpTheOthers) }

func testBadRowsDoNotHoldUpTheOthers(t *testing.T, at string) {
	s := openStore(t, at)
	changes := make([]Change, 0, 102)
	var want []string
	for i := range 100 {
		r := pod("a", "x", fmt.Sprintf("%03d", i), map[string]string{"n": fmt.Sprint(i)}, nil)
		if i == 13 || i == 77 {
			r.Body = []byte(`{"metadata": `)
		}
		want = append(want, keys([]Row{r})...)
		changes = append(changes, Change{Row: r})
	}
	changes = append(changes, Change{Row: pod("a", "x", "", nil, nil)}, Change{Row: pod("", "x", "1", nil, nil)})
	err := s.Write(t.Context(), changes)
	if _, ok := errors.AsType[*RejectedError](err); !ok {
		t.Fatalf("%v, want RejectedErrors", err)
	}
	for _, name := range []string{"x/013", "x/077"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %q", name, err)
		}
	}
	if diff := cmp.Diff(want, listed(t, s, Query{Resource: "pods"})); diff != "" {
		t.Error(diff)
	}
}

func TestDrop(t *testing.T) { onEach(t, testDrop) }

func testDrop(t *testing.T, at string) {
	s := openStore(t, at)
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for _, cluster := range []string{"a", "b"} {
		rows := make([]Row, 0, 2*(chunk+10))
		for i := range chunk + 10 {
			r := pod(cluster, "x", fmt.Sprint(i), map[string]string{"a": "1", "b": "2"}, nil)
			rows = append(rows, r)
			r.Group, r.Resource = deployments.Group, deployments.Resource
			rows = append(rows, r)
		}
		write(t, s, rows...)
		if err := s.SaveType(t.Context(), Type{Cluster: cluster, Resource: deployments, API: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.DropType(t.Context(), "a", deployments), s.DropType(t.Context(), "none", deployments)); err != nil {
		t.Fatal(err)
	}
	count := func(group, resource string) int64 {
		n, err := s.Count(t.Context(), Query{Group: group, Resource: resource})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count("apps", "deployments"); n != chunk+10 {
		t.Errorf("%d deployments are left, want those of one cluster", n)
	}
	if got, err := s.Types(t.Context()); err != nil || len(got) != 1 || got[0].Cluster != "b" {
		t.Errorf("types %v, %v, want those of b", got, err)
	}
	if err := errors.Join(s.DropCluster(t.Context(), "b"), s.DropCluster(t.Context(), "b")); err != nil {
		t.Fatal(err)
	}
	if n := count("apps", "deployments"); n != 0 {
		t.Errorf("%d deployments are left", n)
	}
	if n := count("", "pods"); n != chunk+10 {
		t.Errorf("%d pods are left, want those of one cluster", n)
	}
	write(t, s, pod("b", "x", "new", nil, nil))
	if diff := cmp.Diff([]string{"b/x/new"}, listed(t, s, Query{Resource: "pods", Clusters: []string{"b"}})); diff != "" {
		t.Error(diff)
	}
	// The cluster was dropped, and the deletion of its rows was interrupted.
	if _, err := s.db.write.ExecContext(t.Context(), "UPDATE cluster SET dropped = 1"); err != nil {
		t.Fatal(err)
	}
	again := openStore(t, at)
	for _, table := range []string{"object", "body", "label", "served", "cluster"} {
		if n := rowsOf(t, again, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

func TestTypesAndKeysAreRemembered(t *testing.T) { onEach(t, testTypesAndKeysAreRemembered) }

func testTypesAndKeysAreRemembered(t *testing.T, at string) {
	s := openStore(t, at)
	want := Type{Cluster: "a", Resource: schema.GroupResource{Resource: "pods"}, API: []byte(`{"kind":"Pod"}`)}
	if err := errors.Join(s.SaveType(t.Context(), want), s.SaveType(t.Context(), want)); err != nil {
		t.Fatal(err)
	}
	write(t, s, pod("a", "x", "1", nil, nil), pod("b", "x", "2", nil, nil))
	s = openStore(t, at)
	types, err := s.Types(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Type{want}, types); diff != "" {
		t.Error(diff)
	}
	got, err := s.Keys(t.Context(), "a", want.Resource)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Key{{Namespace: "x", Name: "1", UID: "ax1", Version: "v1", ResourceVersion: "7"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	write(t, s, pod("a", "x", "first", nil, nil))
	var pages int
	if err := s.db.write.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(n int) {
		t.Helper()
		if err := s.db.write.QueryRowContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", n)).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages + 20)
	changes := make([]Change, 0, 200)
	for i := range 200 {
		changes = append(changes, Change{Row: pod("a", "x", fmt.Sprint(i), nil, map[string]any{"fill": strings.Repeat("x", 2000)})})
	}
	if err := s.Write(t.Context(), changes); !errors.Is(err, ErrFull) {
		t.Fatalf("%v, want ErrFull", err)
	}
	if diff := cmp.Diff([]string{"a/x/first"}, listed(t, s, Query{Resource: "pods"})); diff != "" {
		t.Error(diff)
	}
	limit(1 << 20)
	if err := s.Write(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if n := len(listed(t, s, Query{Resource: "pods"})); n != 201 {
		t.Errorf("%d rows after there was room again, want 201", n)
	}
	checkIntegrity(t, s)
}

func checkIntegrity(t *testing.T, s *Store) {
	t.Helper()
	var verdict string
	if err := s.db.read.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity check: %s, %v", verdict, err)
	}
	for what, query := range map[string]string{
		"objects without body":  "SELECT count(*) FROM object WHERE id NOT IN (SELECT object FROM body)",
		"bodies without object": "SELECT count(*) FROM body WHERE object NOT IN (SELECT id FROM object)",
		"labels without object": "SELECT count(*) FROM label WHERE object NOT IN (SELECT id FROM object)",
	} {
		var n int
		if err := s.db.read.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d %s, %v", n, what, err)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Run("Mode", func(t *testing.T) {
		dir := t.TempDir()
		s := openStore(t, dir)
		write(t, s, pod("a", "x", "1", nil, nil))
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) < 2 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, %v", f, info.Mode(), err)
			}
		}
	})
	t.Run("OddPath", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "a b?c#d%20")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		openStore(t, dir)
		if _, err := os.Stat(filepath.Join(dir, "mirror.db")); err != nil {
			t.Error(err)
		}
	})
	t.Run("NoDirectory", func(t *testing.T) {
		if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v, want ErrNotExist", err)
		}
	})
	t.Run("FailedMigrationIsUndone", func(t *testing.T) {
		db, err := sql.Open("sqlite", fileDSN(filepath.Join(t.TempDir(), "x.db")))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := migrateOne(t.Context(), sqliteDialect{}, db, 1, []string{"CREATE TABLE a (b); CREATE TABLE a (b)"}); err == nil {
			t.Error("no error")
		}
		var version, tables int
		if err := errors.Join(db.QueryRow("PRAGMA user_version").Scan(&version), db.QueryRow("SELECT count(*) FROM sqlite_schema").Scan(&tables)); err != nil || version+tables != 0 {
			t.Errorf("version %d, %d tables, %v", version, tables, err)
		}
	})
}

// TestKilledWriter kills a process at random moments while it writes batches.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("STORE_TEST_KILLED"); dir != "" {
		writeForever(t, dir)
	}
	dir := t.TempDir()
	written := 0
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "STORE_TEST_KILLED="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 5 && lines.Scan(); n++ {
			if _, err := fmt.Sscanf(lines.Text(), "wrote %d", &written); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		s, err := Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		checkIntegrity(t, s)
		got := listed(t, s, Query{Resource: "pods"})
		if len(got)%100 != 0 {
			t.Errorf("%d rows: a part of a batch was written", len(got))
		}
		if len(got) < written {
			t.Errorf("%d rows, and %d were reported as written", len(got), written)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// writeForever writes batches of 100 rows and reports each.
func writeForever(t *testing.T, dir string) {
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for n := len(listed(t, s, Query{Resource: "pods"})); ; n += 100 {
		rows := make([]Row, 0, 100)
		for i := range 100 {
			rows = append(rows, pod("a", "x", fmt.Sprint(n+i), map[string]string{"app": "web"}, map[string]any{"fill": strings.Repeat("x", 1000)}))
		}
		write(t, s, rows...)
		fmt.Println("wrote", n+100)
	}
}

func FuzzFieldPath(f *testing.F) {
	for _, p := range []string{"spec.nodeName", "metadata.annotations['a.b/c']", "a[0]", `a"b`, "['x'].y"} {
		f.Add(p)
	}
	s := openStore(f, f.TempDir())
	f.Fuzz(func(t *testing.T, path string) {
		_, err := s.List(t.Context(), Query{Resource: "pods", Fields: []FieldRequirement{{Path: path, Operator: selection.Equals, Value: "x"}}})
		if err != nil && !errors.Is(err, ErrSelector) {
			t.Errorf("%q: %v", path, err)
		}
	})
}

// tallied adds the content of the tables and columns that schemas with the tally have in
// addition.
const tallied = `; UPDATE label SET created = 5;
	INSERT INTO tally SELECT type, cluster, namespace, count(*) FROM object GROUP BY type, cluster, namespace`

// TestMigrations: a database of each earlier schema is migrated with all of its content.
func TestMigrations(t *testing.T) {
	for version := 1; version < len(sqliteMigrations); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			dir := t.TempDir()
			db, err := sql.Open("sqlite", filepath.Join(dir, "mirror.db"))
			check(t, err)
			for i := range version {
				check(t, migrateOne(t.Context(), sqliteDialect{}, db, i+1, sqliteMigrations[i]))
			}
			script := `
				INSERT INTO cluster VALUES (1, 'b'), (2, 'a'), (3, NULL);
				INSERT INTO type VALUES (1, '', 'pods'), (9, 'apps', 'deployments');
				INSERT INTO served (cluster, type, api) VALUES (1, 1, '{"b":1}'), (3, 1, '{}');
				INSERT INTO object (id, cluster, type, namespace, name, version, kind, uid, owner, created, rv, labels)
					SELECT c.id, c.id, 1, 'ns', 'x', 'v1', 'Pod', 'u', 'o', 5, '7', '{"app":"web"}' FROM cluster c;
				INSERT INTO label SELECT cluster, type, 'app', 'web', namespace, name, id FROM object;
				INSERT INTO body SELECT id, '{"spec":{"a":' || cluster || '},"status":{"phase":"Running"}}' FROM object`
			if version >= 3 {
				script = withNames
			}
			if version >= 5 {
				script += tallied
			}
			_, err = db.ExecContext(t.Context(), script)
			check(t, errors.Join(err, db.Close()))
			s := openStore(t, dir)
			if s.Losses() != 0 {
				t.Errorf("%d losses", s.Losses())
			}
			want := Row{
				Cluster: "a", Version: "v1", Resource: "pods", Kind: "Pod", Namespace: "ns", Name: "x", UID: "u", OwnerUID: "o",
				ResourceVersion: "7", Created: time.Unix(5, 0).UTC(), Labels: map[string]string{"app": "web"}, Body: []byte(`{"spec":{"a":2},"status":{"phase":"Running"}}`),
			}
			other := want
			other.Cluster, other.Body = "b", []byte(`{"spec":{"a":1},"status":{"phase":"Running"}}`)
			page, err := s.List(t.Context(), Query{Resource: "pods", Labels: selector(t, "app=web")})
			check(t, err)
			if diff := cmp.Diff([]Row{want, other}, page.Rows, cmpopts.IgnoreFields(Row{}, "Changed")); diff != "" {
				t.Error(diff)
			}
			running := []FieldRequirement{{Path: "status.phase", Operator: selection.Equals, Value: "Running"}}
			if diff := cmp.Diff([]string{"b/ns/x", "a/ns/x"}, listed(t, s, Query{Resource: "pods", Fields: running, Order: Newest})); diff != "" && version >= 3 {
				t.Error(diff) // both were created in the same second; b's has the greater ID
			}
			if got := listed(t, s, Query{Resource: "pods", Fields: running}); len(got) != 2 {
				t.Errorf("%v are running", got)
			}
			if got := listed(t, s, Query{Resource: "pods", Slim: texts(t, "app web")}); len(got) != 2 {
				t.Errorf("%v have the words of their label", got)
			}
			types, err := s.Types(t.Context())
			if diff := cmp.Diff([]Type{{Cluster: "b", Resource: schema.GroupResource{Resource: "pods"}, API: []byte(`{"b":1}`)}}, types); diff != "" || err != nil {
				t.Error(diff, err)
			}
			write(t, s, pod("a", "ns", "new", nil, nil), Row{Cluster: "a", Group: "new", Resource: "new", Name: "y", Body: []byte("{}")})
			if n := rowsOf(t, s, "object"); n != 4 {
				t.Errorf("%d objects, want 4: none of the dropped cluster", n)
			}
			indexedExactly(t, s)
			checkIntegrity(t, s)
		})
	}
}

// withNames is the content of databases from schema 3 on, for TestMigrations.
const withNames = `
	INSERT INTO cluster VALUES ('a', 0), ('b', 0), ('c', 1);
	INSERT INTO type VALUES (1, '', 'pods'), (9, 'apps', 'deployments');
	INSERT INTO served (cluster, type, api) VALUES ('b', 1, '{"b":1}'), ('c', 1, '{}');
	INSERT INTO object (id, seq, type, cluster, namespace, name, version, kind, uid, owner, created, rv, labels, note) VALUES
		(10, 20, 1, 'a', 'ns', 'x', 'v1', 'Pod', 'u', 'o', 5, '7', '{"app":"web"}', ''),
		(11, 11, 1, 'b', 'ns', 'x', 'v1', 'Pod', 'u', 'o', 5, '7', '{"app":"web"}', ''),
		(12, 12, 1, 'c', 'ns', 'x', 'v1', 'Pod', 'u', 'o', 5, '7', '{"app":"web"}', '');
	INSERT INTO label (type, label_key, label_value, cluster, namespace, name, object) SELECT type, 'app', 'web', cluster, namespace, name, id FROM object;
	INSERT INTO body (object, json) SELECT id, CASE cluster WHEN 'a' THEN '{"spec":{"a":2},"status":{"phase":"Running"}}' ELSE '{"spec":{"a":1},"status":{"phase":"Running"}}' END FROM object;
	UPDATE epoch SET seq = 30`

// TestRejectedError: the error names the type as Kubernetes does.
func TestRejectedError(t *testing.T) {
	for want, e := range map[string]RejectedError{
		"store secrets shop/login of cluster east: too deep":                 {Resource: "secrets", Namespace: "shop", Name: "login"},
		"store deployments.apps shop/web of cluster east: too deep":          {Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"},
		"store storageclasses.storage.k8s.io fast of cluster east: too deep": {Group: "storage.k8s.io", Resource: "storageclasses", Name: "fast"},
	} {
		e.Cluster, e.Err = "east", errors.New("too deep")
		if got := e.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
