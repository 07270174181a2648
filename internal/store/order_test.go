package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
)

// resident returns a random pod with values for every index.
func resident(random *rand.Rand, cluster, namespace, name string) Row {
	phase := []string{"Running", "Running", "Running", "Pending", ""}[random.IntN(5)]
	app := fmt.Sprint("app-", random.IntN(3))
	r := pod(cluster, namespace, name, map[string]string{"app": app}, nil)
	r.UID = types.UID(fmt.Sprintf("%s-%s-%s-%d", cluster, namespace, name, random.IntN(1000)))
	r.OwnerUID = types.UID(fmt.Sprint("owner-", random.IntN(4)))
	r.Created = time.Unix(1_700_000_000+int64(random.IntN(8)), 0).UTC()
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"namespace": namespace, "name": name,
			"annotations":       map[string]any{"about": []any{"the shop", "Shop the été", "a b c", "", nil}[random.IntN(5)], "n": random.IntN(5)},
			"deletionTimestamp": []any{nil, nil, "2026-01-01T00:00:00Z"}[random.IntN(3)],
		},
		"spec": map[string]any{
			"nodeName": fmt.Sprint("node-", random.IntN(3)),
			"containers": []any{map[string]any{
				"image": fmt.Sprint("image-", random.IntN(3)), "ports": []any{map[string]any{"containerPort": 80 + random.IntN(2)}, "x", nil},
				"args": [][]any{nil, {}, {"a", true, 1, nil, map[string]any{"a": "b"}}, {[]any{"true"}}}[random.IntN(4)],
			}, map[string]any{"image": "sidecar"}, "none"},
			"sometimes": []any{nil, 0, false, "", "x", []any{}, map[string]any{}}[random.IntN(7)],
			"volumes":   []any{map[string]any{"configMap": map[string]any{"name": app}}},
		},
		"status": map[string]any{"phase": phase, "other": fmt.Sprint(random.IntN(3)), "conditions": [][]any{nil, ready("True"), ready("False"), ready("Unknown")}[random.IntN(4)]},
	})
	if err != nil {
		panic(err)
	}
	r.Body = body
	return r
}

func ready(status string) []any {
	return []any{map[string]any{"type": "Initialized", "status": "True"}, map[string]any{"type": "Ready", "status": status}}
}

// led returns queries for every index that can drive a query.
func led(t *testing.T) map[string]Query {
	t.Helper()
	field := func(path, value string) []FieldRequirement {
		return []FieldRequirement{{Path: path, Operator: selection.Equals, Value: value}}
	}
	many := map[string][]string{"a": withMany("x")[:fewSpans], "c": {"x", "y"}}
	return map[string]Query{
		"Everything":        {},
		"Cluster":           {Clusters: []string{"b"}},
		"Namespace":         {Namespaces: []string{"x"}},
		"Scopes":            {Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"ManyScopes":        {Scopes: many},
		"Prefix":            {NamePrefix: "pod-1"},
		"PrefixOfNothing":   {NamePrefix: "pod-1x"},
		"PrefixWildcards":   {NamePrefix: "pod_1%"},
		"PrefixUnicode":     {NamePrefix: "pod-\ud7ff"},
		"PrefixAndScopes":   {NamePrefix: "pod-1", Scopes: map[string][]string{"a": {"x", "y"}}},
		"PrefixAndMany":     {NamePrefix: "pod-1", Scopes: many},
		"PrefixAndLabel":    {NamePrefix: "pod-1", Labels: selector(t, "app=app-1")},
		"Name":              {Names: []string{"pod-03"}},
		"NameAndScopes":     {Names: []string{"pod-03"}, Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"NameAndPrefix":     {Names: []string{"pod-03"}, NamePrefix: "pod-0"},
		"Label":             {Labels: selector(t, "app=app-1")},
		"LabelAndScopes":    {Labels: selector(t, "app=app-1"), Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"LabelAndMany":      {Labels: selector(t, "app=app-1"), Scopes: many},
		"Phase":             {Fields: field("status.phase", "Running")},
		"PhaseNot":          {Fields: []FieldRequirement{{Path: "status.phase", Operator: selection.NotEquals, Value: "Running"}}},
		"NoPhase":           {Fields: field("status.phase", "")},
		"PhaseAndLabel":     {Fields: field("status.phase", "Running"), Labels: selector(t, "app=app-1")},
		"PhaseAndScopes":    {Fields: field("status.phase", "Running"), Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"PhaseAndMany":      {Fields: field("status.phase", "Running"), Scopes: many},
		"PhaseAndNode":      {Fields: append(field("status.phase", "Running"), field("spec.nodeName", "node-1")...)},
		"Node":              {Fields: field("spec.nodeName", "node-2")},
		"Image":             {Fields: field(FieldImages, "image-1")},
		"ImageOfAll":        {Fields: field(FieldImages, "sidecar")},
		"ImageNot":          {Fields: []FieldRequirement{{Path: FieldImages, Operator: selection.NotEquals, Value: "image-1"}}},
		"Reference":         {Fields: field(FieldReferences, "ConfigMap/app-2")},
		"Unready":           {Fields: field(FieldIs, Unready)},
		"UnreadyAndScopes":  {Fields: field(FieldIs, Unready), Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"Terminating":       {Fields: field(FieldIs, Terminating), Labels: selector(t, "app=app-1")},
		"TerminatingNot":    {Fields: []FieldRequirement{{Path: FieldIs, Operator: selection.NotEquals, Value: Terminating}}},
		"FieldOfTheBody":    {Fields: field("status.other", "1")},
		"Owner":             {OwnerUID: "owner-2"},
		"OwnerAndPhase":     {OwnerUID: "owner-2", Fields: field("status.phase", "Running")},
		"OwnerAndMany":      {OwnerUID: "owner-2", Scopes: many},
		"Contains":          {NameContains: []string{"d-1"}},
		"ContainsShort":     {NameContains: []string{"1"}},
		"ContainsTwo":       {NameContains: []string{"pod", "-0"}},
		"ContainsNothing":   {NameContains: []string{"%_%"}},
		"ContainsAndLabel":  {NameContains: []string{"od-1"}, Labels: selector(t, "app=app-1")},
		"ContainsAndScopes": {NameContains: []string{"od-1"}, Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"ContainsAndMany":   {NameContains: []string{"od-1"}, Scopes: many},
		"ContainsAndPhase":  {NameContains: []string{"od-1"}, Fields: field("status.phase", "Running")},
		"Since":             {Since: time.Unix(1_700_000_004, 0)},
		"Between":           {Since: time.Unix(1_700_000_002, 0), Before: time.Unix(1_700_000_005, 0)},
		"BeforeAndLabel":    {Before: time.Unix(1_700_000_005, 0), Labels: selector(t, "app=app-1")},
		"BeforeAndMany":     {Before: time.Unix(1_700_000_005, 0), Scopes: many},
		"In":                {Fields: []FieldRequirement{{Path: "status.phase", Operator: selection.In, Values: []string{"Pending", "Failed"}}}},
		"NotIn":             {Fields: []FieldRequirement{{Path: "spec.nodeName", Operator: selection.NotIn, Values: []string{"node-1", "node-0"}}}},
		"InOfTheBody":       {Fields: []FieldRequirement{{Path: "status.other", Operator: selection.In, Values: []string{"1", "2"}}}},
		"InOrNothing":       {Fields: []FieldRequirement{{Path: "status.phase", Operator: selection.In, Values: []string{"Pending", ""}}}},
		"Exists":            {Fields: []FieldRequirement{{Path: "spec.sometimes", Operator: selection.Exists}}},
		"ExistsNot":         {Fields: []FieldRequirement{{Path: "spec.sometimes", Operator: selection.DoesNotExist}}},
		"Images":            {Fields: field("spec.containers[].image", "image-1")},
		"ImagesNot":         {Fields: []FieldRequirement{{Path: "spec.containers[].image", Operator: selection.NotEquals, Value: "image-1"}}},
		"ImagesIn":          {Fields: []FieldRequirement{{Path: "spec.containers[].image", Operator: selection.In, Values: []string{"image-1", "image-2"}}}},
		"FirstImage":        {Fields: field("spec.containers[0].image", "image-1")},
		"Ports":             {Fields: field("spec.containers[].ports[].containerPort", "80")},
		"Args":              {Fields: field("spec.containers[].args[]", "true")},
		"ArgsThere":         {Fields: []FieldRequirement{{Path: "spec.containers[].args[]", Operator: selection.Exists}}},
		"NoArgs":            {Fields: []FieldRequirement{{Path: "spec.containers[].args", Operator: selection.DoesNotExist}}},
		"OwnerAndNamespace": {OwnerUID: "owner-2", Namespaces: []string{"x"}},
		"GlobOfNames":       {Slim: Slim{Patterns: []Pattern{{Globs: []Glob{{"pod-", "3"}, {"pod-01"}}}}}},
		"GlobNot":           {Slim: Slim{Patterns: []Pattern{{Globs: []Glob{{"", "1", ""}}, Not: true}}}},
		"GlobWildcards":     {Slim: Slim{Patterns: []Pattern{{Globs: []Glob{{"", "%", ""}, {"pod_0", ""}, {"pod-?", ""}, {"", "[0-9]"}, {"", "!", ""}, {"POD", ""}}}}}},
		"GlobOfNamespaces":  {Slim: Slim{Patterns: []Pattern{{Namespace: true, Globs: []Glob{{"x"}, {"", "z", ""}}}}}, Labels: selector(t, "app=app-1")},
		"GlobAndMany":       {Slim: Slim{Patterns: []Pattern{{Globs: []Glob{{"", "1"}}}}}, Scopes: many},
		"Mentions":          {Slim: Slim{Mentions: [][]string{{Mention("image-1", true), Mention("age-2", false)}, {Mention("Running", true)}}}},
		"MentionsNothing":   {Slim: Slim{Mentions: [][]string{{Mention(`%"`, false)}}}},
		"Words":             {Slim: texts(t, "shop")},
		"WordsOfAll":        {Slim: texts(t, "SIDECAR")},
		"WordsTwo":          {Slim: texts(t, "shop", "image-1")},
		"WordsAny":          {Slim: texts(t, "shop the|b c|nothing")},
		"WordsNot":          {Slim: texts(t, "-shop", "-a b")},
		"WordsPrefix":       {Slim: texts(t, "sho*", "ÉT*")},
		"WordsPhrase":       {Slim: texts(t, "shop the")},
		"WordsNoPhrase":     {Slim: texts(t, "the image")},
		"WordsAndScopes":    {Slim: texts(t, "shop"), Scopes: map[string][]string{"a": {"x"}, "c": {"y", "z"}}},
		"WordsAndMany":      {Slim: texts(t, "shop"), Scopes: many},
		"WordsAndPhase":     {Slim: texts(t, "été"), Fields: field("status.phase", "Running")},
		"WordsAndContains":  {Slim: texts(t, "shop"), NameContains: []string{"od-1"}},
		"CreatedFrom":       {Slim: Slim{CreatedFrom: time.Unix(1_700_000_003, 0)}},
		"CreatedBetween":    {Slim: Slim{CreatedFrom: time.Unix(1_700_000_002, 0), CreatedBefore: time.Unix(1_700_000_005, 0)}, Namespaces: []string{"x", "y"}},
		"CreatedBefore":     {Slim: Slim{CreatedBefore: time.Unix(1_700_000_002, 0)}, Fields: field("status.phase", "Running")},
	}
}

// orders returns the orders that have an index, in both directions, and some that need a sort.
func orders(t *testing.T) []Order {
	t.Helper()
	out := []Order{ByKey, Newest, Oldest, ByName}
	for _, columns := range [][]OrderColumn{
		{{"name", true}},
		{{"cluster", true}},
		{{"namespace", false}},
		{{"namespace", true}, {"name", false}},
		{{"created", true}, {"name", false}},
	} {
		o, err := OrderBy(columns...)
		check(t, err)
		out = append(out, o)
	}
	return out
}

// TestOrders: in each order, now and at a past moment, a query returns page by page the rows
// that it selects, sorted, and counts them. Without SOAK it makes a third of the queries in
// orders that have an index, and a twelfth in the others, which differ only in the sort.
func TestOrders(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		type ordered struct {
			name  string
			query Query
		}
		var indexed, sorted []ordered
		queries := led(t)
		for _, name := range slices.Sorted(maps.Keys(queries)) {
			for _, order := range orders(t) {
				q := queries[name]
				q.Resource, q.Order = "pods", order
				if order < custom {
					indexed = append(indexed, ordered{name, q})
				} else {
					sorted = append(sorted, ordered{name, q})
				}
			}
		}
		choice := testenv.Rand(t)
		for _, cases := range [][]ordered{indexed, sorted} {
			choice.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
		}
		cases := slices.Concat(testenv.Sample(t, 3, indexed), testenv.Sample(t, 12, sorted))
		s := openStore(t, at)
		c := clocked(t, s)
		random := rand.New(rand.NewPCG(3, 4))
		stored, ids := map[string]Row{}, map[string]int64{}
		change := func(n int) {
			var changes []Change
			for range n {
				r := resident(random, string(rune('a'+random.IntN(3))), string(rune('x'+random.IntN(3))), fmt.Sprintf("pod-%02d", random.IntN(20)))
				key := keys([]Row{r})[0]
				if was, ok := stored[key]; ok && random.IntN(2) == 0 { // the same object
					r.UID = was.UID
				}
				if random.IntN(5) == 0 {
					r.UID = ""
					delete(stored, key)
					changes = append(changes, Change{Row: r, Delete: true})
					continue
				}
				stored[key] = r
				changes = append(changes, Change{Row: r})
			}
			check(t, s.Write(t.Context(), changes))
		}
		expected := func(q Query) (out []string) {
			var rows []found
			for key, r := range stored {
				if q.selects(&r) {
					rows = append(rows, found{Row: r, id: ids[key]})
				}
			}
			slices.SortFunc(rows, q.Order.rows)
			for _, r := range rows {
				out = append(out, keys([]Row{r.Row})...)
			}
			return out
		}
		for range 12 {
			change(25)
		}
		c.tick()
		past := map[string][]string{}
		moment := c.now
		for _, when := range []string{"Then", "Now"} {
			if when == "Now" {
				c.tick()
				for range 6 {
					change(15)
				}
			}
			check(t, each(t.Context(), s.db.read, "SELECT id, cluster, namespace, name FROM object", func(rows *sql.Rows) error {
				var r Row
				var id int64
				err := rows.Scan(&id, &r.Cluster, &r.Namespace, &r.Name)
				ids[keys([]Row{r})[0]] = id
				return err
			}))
			for _, tc := range cases {
				name, q, order := tc.name, tc.query, tc.query.Order
				want := expected(q)
				if when == "Then" {
					past[fmt.Sprint(name, order)] = want
				} else if order < custom {
					then := q
					then.At = moment
					paged(t, s, fmt.Sprint(name, order, "Then"), then, past[fmt.Sprint(name, order)])
				}
				s.db.nearby = []int{nearby, 2}[choice.IntN(2)] // so that a page may count as far
				paged(t, s, fmt.Sprint(name, order, when), q, want)
				bounded := q
				bounded.Limit = 5
				if n, err := s.Count(t.Context(), bounded); err != nil || n != int64(len(want)) && n != 5 || n > int64(len(want)) {
					t.Errorf("%s: counted to 5: %d, %v, of %d", name, n, err, len(want))
				}
				if n, err := s.Count(t.Context(), q); err != nil || n != int64(len(want)) {
					t.Errorf("%s: %d, %v, want %d", name, n, err, len(want))
				}
			}
			indexedExactly(t, s)
		}
	})
}

// paged compares the result of a query with the wanted rows: as one page, and in pages of 9,
// usually after some skipped rows.
func paged(t *testing.T, s *Store, name string, q Query, want []string) {
	t.Helper()
	for _, limit := range []int{0, 9} {
		q.Limit, q.Continue, q.Offset = limit, "", 0
		var got []string
		if limit > 0 && q.At.IsZero() && len(want) > 3 { // skip the first rows
			q.Offset = 3 + len(name)%2*testenv.Rand(t).IntN(len(want))
			got = append(got, want[:min(q.Offset, len(want))]...)
		}
		for {
			page, err := s.List(t.Context(), q)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			if got = append(got, keys(page.Rows)...); page.Continue == "" || len(got) > 2*len(want)+limit {
				break
			}
			q.Continue, q.Offset = page.Continue, 0
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, limit %d: %s", name, limit, diff)
			return
		}
	}
}

// indexedExactly checks that the indexed labels, fields, words and counts are exactly those of
// the stored rows.
func indexedExactly(t *testing.T, s *Store) {
	t.Helper()
	type entry struct {
		pair

		created, object int64
	}
	want, got := map[entry]bool{}, map[entry]bool{}
	fullText := map[int64]string{}
	err := each(t.Context(), s.db.read, "SELECT o.id, o.type, o.name, o.created, o.labels, o.prose, "+s.db.dialect.exactBody()+" FROM object o JOIN body b ON b.object = o.id", func(rows *sql.Rows) error {
		var id, kind, created, fingerprint int64
		var name, text string
		var body, packed []byte
		if err := rows.Scan(&id, &kind, &name, &created, &text, &fingerprint, &body, &packed); err != nil {
			return err
		}
		var labels map[string]string
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			return err
		}
		row := Row{Body: body}
		if err := s.db.unpack(&row, packed); err != nil {
			return err
		}
		for one := range pairsOf(labels, termsOf(s.db.kindOf(kind), row.Body)) {
			want[entry{one, created, id}] = true
		}
		row.Name, row.Labels = name, labels
		_, source := read(s.db.kindOf(kind), &row)
		if fingerprint != source.Fingerprint() {
			t.Errorf("the fingerprint of %s is %d, want %d", name, fingerprint, source.Fingerprint())
		}
		if fingerprint != 0 {
			fullText[id] = " " + kindWord(kind) + source.Text()
		}
		return nil
	})
	check(t, err)
	check(t, each(t.Context(), s.db.read, "SELECT label_key, label_value, created, object FROM label", func(rows *sql.Rows) error {
		var one entry
		err := rows.Scan(&one.key, &one.value, &one.created, &one.object)
		got[one] = true
		return err
	}))
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{}, pair{})); diff != "" {
		t.Error(diff)
	}
	fullTextExactly(t, s, fullText)
	var wrong int
	if s.server == nil { // servers update their indexes themselves
		check(t, s.db.read.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM object WHERE id NOT IN (SELECT id FROM object_grams_docsize)) +
			(SELECT count(*) FROM object_grams_docsize WHERE id NOT IN (SELECT id FROM object))`).Scan(&wrong))
		if wrong != 0 {
			t.Error("the index of names is not of the objects")
		}
	}
	check(t, s.db.read.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM tally t WHERE objects <>
			(SELECT count(*) FROM object o WHERE o.type = t.type AND o.cluster = t.cluster AND o.namespace = t.namespace)) +
		(SELECT count(*) FROM object) - (SELECT coalesce(sum(objects), 0) FROM tally)`).Scan(&wrong))
	if wrong != 0 {
		t.Error("the counts of namespaces are not those of the objects")
	}
}

// fullTextExactly checks that the stored words are exactly those of the objects. If the index of
// words is a table, it checks the index as well.
func fullTextExactly(t *testing.T, s *Store, want map[int64]string) {
	t.Helper()
	got := map[int64]string{}
	check(t, each(t.Context(), s.db.read, "SELECT object, words FROM prose", func(rows *sql.Rows) error {
		var id int64
		var text string
		err := rows.Scan(&id, &text)
		got[id] = text
		return err
	}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if s.server == nil {
		var wrong int
		check(t, s.db.read.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM prose WHERE object NOT IN (SELECT id FROM prose_words_docsize)) +
			(SELECT count(*) FROM prose_words_docsize WHERE id NOT IN (SELECT object FROM prose))`).Scan(&wrong))
		if wrong != 0 {
			t.Error("the index of words is not of the objects")
		}
	}
	if !s.db.dialect.inverts() {
		return
	}
	indexed, listed := map[string]bool{}, map[string]bool{}
	for id, text := range want {
		for _, word := range wordsOf(text) {
			indexed[fmt.Sprint(id, word)] = true
		}
	}
	check(t, each(t.Context(), s.db.read, "SELECT object, word FROM word", func(rows *sql.Rows) error {
		var id int64
		var word string
		err := rows.Scan(&id, &word)
		listed[fmt.Sprint(id, word)] = true
		return err
	}))
	if diff := cmp.Diff(indexed, listed); diff != "" {
		t.Error(diff)
	}
}

// TestOrderIsOfTheContinueToken: a continue token is invalid for another order or name prefix.
func TestOrderIsOfTheContinueToken(t *testing.T) {
	s := openStore(t, t.TempDir())
	write(t, s, pod("a", "x", "1", nil, nil), pod("a", "x", "2", nil, nil))
	page, err := s.List(t.Context(), Query{Resource: "pods", Order: Newest, Limit: 1})
	check(t, err)
	for name, q := range map[string]Query{
		"Order": {Order: Oldest}, "Key": {}, "Prefix": {Order: Newest, NamePrefix: "1"},
	} {
		q.Resource, q.Continue = "pods", page.Continue
		if _, err := s.List(t.Context(), q); !errors.Is(err, ErrContinue) {
			t.Errorf("%s: %v, want ErrContinue", name, err)
		}
	}
	for name, q := range map[string]Query{
		"NoOrder": {Order: 7}, "Below": {Order: -1}, "PrefixOfNoText": {NamePrefix: "\xff"}, "PrefixWithNUL": {NamePrefix: "a\x00"},
		"NoImage":     {Fields: []FieldRequirement{{Path: FieldImages, Operator: selection.Equals}}},
		"LongImage":   {Fields: []FieldRequirement{{Path: FieldImages, Operator: selection.Equals, Value: strings.Repeat("x", mostTerm+1)}}},
		"ImageOfNone": {Group: "other", Fields: []FieldRequirement{{Path: FieldImages, Operator: selection.Equals, Value: "x"}}},
	} {
		q.Resource = "pods"
		if _, err := s.List(t.Context(), q); !errors.Is(err, ErrSelector) {
			t.Errorf("%s: %v, want ErrSelector", name, err)
		}
	}
}

func TestTermsOf(t *testing.T) {
	pods := groupResource{"", "pods"}
	for name, tc := range map[string]struct {
		gr   groupResource
		body string
		want []pair
	}{
		"Pod": {
			pods, `{"status":{"phase":"Running"},"spec":{"nodeName":"n","serviceAccountName":"default","imagePullSecrets":[{"name":"pull"}],
			"initContainers":[{"image":"i"}],"containers":[{"image":"a","env":[{"valueFrom":{"secretKeyRef":{"name":"s"}}}],"envFrom":[{"configMapRef":{"name":"c"}}]},{"image":"a"}],
			"volumes":[{"configMap":{"name":"kube-root-ca.crt"}},{"secret":{"secretName":"v"}},{"persistentVolumeClaim":{"claimName":"p"}},
				{"projected":{"sources":[{"configMap":{"name":"kube-root-ca.crt"}},{"secret":{"name":"q"}}]}}]}}`,
			[]pair{
				{"!status.phase", "Running"},
				{".spec.nodeName", "n"},
				{".[images]", "i"},
				{".[images]", "a"},
				{".[references]", "Secret/s"},
				{".[references]", "ConfigMap/c"},
				{".[references]", "Secret/pull"},
				{".[references]", "Secret/v"},
				{".[references]", "PersistentVolumeClaim/p"},
				{".[references]", "Secret/q"},
			},
		},
		"Deployment":  {groupResource{"apps", "deployments"}, `{"spec":{"template":{"spec":{"serviceAccountName":"x","containers":[{"image":"a"}]}}}}`, []pair{{".[images]", "a"}, {".[references]", "ServiceAccount/x"}}},
		"CronJob":     {groupResource{"batch", "cronjobs"}, `{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"containers":[{"image":"a"}]}}}}}}`, []pair{{".[images]", "a"}}},
		"PodTemplate": {groupResource{"", "podtemplates"}, `{"template":{"spec":{"containers":[{"image":"a"}]}}}`, []pair{{".[images]", "a"}}},
		"Ingress": {
			groupResource{"networking.k8s.io", "ingresses"},
			`{"spec":{"tls":[{"secretName":"s"}],"rules":[{"http":{"paths":[{"backend":{"service":{"name":"web"}}}]}}]}}`,
			[]pair{{".[references]", "Service/web"}, {".[references]", "Secret/s"}},
		},
		"RoleBinding": {
			groupResource{"rbac.authorization.k8s.io", "rolebindings"},
			`{"metadata":{"namespace":"a"},"roleRef":{"kind":"Role","name":"r"},"subjects":[{"kind":"ServiceAccount","namespace":"b","name":"x"}]}`,
			[]pair{{".[references]", "Role.rbac.authorization.k8s.io/r"}, {".[references]", "ServiceAccount/x"}, {".[references]", "ServiceAccount/b/x"}},
		},
		"Event":         {groupResource{"", "events"}, `{"type":"Warning","involvedObject":{"uid":"u"}}`, []pair{{"!type", "Warning"}, {".involvedObject.uid", "u"}}},
		"AnyType":       {groupResource{"example.com", "things"}, `{"status":{"phase":"Ready"},"spec":{"nodeName":"n"}}`, []pair{{"!status.phase", "Ready"}}},
		"Unready":       {groupResource{"example.com", "things"}, `{"status":{"conditions":[{"type":"Available","status":"Unknown"},{"type":"Ready","status":"False"}]}}`, []pair{{".[is]", "unready"}}},
		"Ready":         {pods, `{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"Available","status":"True"}]}}`, nil},
		"NeitherNor":    {pods, `{"status":{"conditions":[{"type":"Initialized","status":"False"}]}}`, nil},
		"Terminating":   {groupResource{"apps", "replicasets"}, `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`, []pair{{".[is]", "terminating"}}},
		"Secret":        {groupResource{"", "secrets"}, `{"status":{"phase":"x"},"data":{"a":"b"}}`, nil},
		"OtherTypes":    {pods, `{"status":{"phase":7},"spec":{"nodeName":true,"containers":{"image":"a"},"volumes":[1,{"configMap":"c"},{"configMap":{"name":"d"}}]}}`, []pair{{"!status.phase", "7"}, {".spec.nodeName", "true"}, {".[references]", "ConfigMap/d"}}},
		"OtherShapes":   {pods, `{"status":[],"spec":"x"}`, nil},
		"OtherCase":     {pods, `{"Status":{"phase":"Running"},"status":{"Phase":"Running"}}`, nil},
		"NoText":        {pods, `{"status":{"phase":"a\u0000b"},"spec":{"nodeName":"` + strings.Repeat("x", mostTerm+1) + `"}}`, nil},
		"Null":          {pods, `{"status":{"phase":null},"spec":{"containers":null}}`, nil},
		"NotAnObject":   {pods, `[]`, nil},
		"NoJSON":        {pods, `{`, nil},
		"DeepContainer": {pods, `{"spec":{"containers":[{"image":{"a":"b"}},{"image":"z"}]}}`, []pair{{".[images]", "z"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, termsOf(tc.gr, []byte(tc.body)), cmp.AllowUnexported(pair{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestReindex: opening a database whose declared fields are from another version indexes it for
// this version, even if earlier attempts were interrupted.
func TestReindex(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := rand.New(rand.NewPCG(5, 6))
		for n := 0; n < 2*chunk+10; n += 500 {
			rows := make([]Row, 500)
			for i := range rows {
				rows[i] = resident(random, "a", "x", fmt.Sprint("pod-", n+i))
			}
			write(t, s, rows...)
		}
		q := Query{Resource: "pods", Fields: []FieldRequirement{{Path: "status.phase", Operator: selection.Equals, Value: "Pending"}}, Order: Newest}
		want := listed(t, s, q)
		for _, text := range []string{
			"DELETE FROM label WHERE label_key < '/' AND object > 700", "DELETE FROM prose WHERE object > 800", "UPDATE object SET terms = '[]' WHERE id > 700",
			"UPDATE object SET prose = 0 WHERE id > 800", "UPDATE prose SET words = ' other ' WHERE object < 500", "UPDATE object SET prose = 7 WHERE id < 500",
			// References in the format of the first version.
			"UPDATE object SET terms = REPLACE(terms, 'ConfigMap/', 'configmaps/')", "UPDATE label SET label_value = REPLACE(label_value, 'ConfigMap/', 'configmaps/') WHERE label_key = '.[references]'",
			"UPDATE epoch SET terms = 0",
		} {
			_, err := s.db.write.ExecContext(t.Context(), text)
			check(t, err)
		}
		if len(want) < 100 || len(listed(t, s, q)) >= len(want) {
			t.Fatal("nothing is missing")
		}
		check(t, s.Close())

		// Open does not wait for the work, which is interrupted several times and then
		// continues.
		beside := func(s *Store) { s.patience = 0 }
		for range 5 {
			check(t, openStore(t, at, beside).Close())
		}
		again := openStore(t, at, beside)
		if _, err := again.List(t.Context(), q); err != nil && !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		func() {
			again.opening.Lock() // held while the database is opened
			defer again.opening.Unlock()
		}()
		if diff := cmp.Diff(want, listed(t, again, q)); diff != "" || again.Losses() > 0 {
			t.Error(diff, again.Losses())
		}
		indexedExactly(t, again)
	})
}
