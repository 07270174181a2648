package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/words"
)

// texts returns requirements on words. -a|b* means: neither a nor a word that begins with b.
func texts(t *testing.T, asked ...string) (out Slim) {
	t.Helper()
	for _, one := range asked {
		one, not := strings.CutPrefix(one, "-")
		f := FullText{Not: not}
		for phrase := range strings.SplitSeq(one, "|") {
			text, prefix := strings.CutSuffix(phrase, "*")
			p, err := words.Parse(text, prefix)
			check(t, err)
			f.Any = append(f.Any, p)
		}
		out.Texts = append(out.Texts, f)
	}
	return out
}

// withText returns an object of a type, with the text in an annotation and in its message.
func withText(group, resource, name, about string) Row {
	r := pod("a", "x", name, nil, nil)
	r.Group, r.Resource = group, resource
	r.Body, _ = json.Marshal(map[string]any{ //nolint:errchkjson // strings
		"metadata": map[string]any{"annotations": map[string]string{"about": about}}, "message": about, "reason": "Reason", "data": map[string]string{"password": "hidden"},
	})
	return r
}

// TestWordsAreIndexed: a query for words returns the objects that have them, few or many, after
// objects are created, changed, deleted and created again, and after a cluster is dropped.
func TestWordsAreIndexed(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		var rare []string
		var rows []Row
		for i := range fewFullText + 100 {
			about := "common words"
			if i%1000 == 0 {
				about = "common and rare"
				rare = append(rare, fmt.Sprintf("a/x/pod-%05d", i))
			}
			rows = append(rows, withText("", "pods", fmt.Sprintf("pod-%05d", i), about))
		}
		for chunk := range slices.Chunk(rows, 500) {
			write(t, s, chunk...)
		}
		ask := func(of ...string) Query { return Query{Resource: "pods", Slim: texts(t, of...)} }
		found := func(what string, q Query, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, listed(t, s, q), cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
		paged(t, s, "rare", ask("rare"), rare)
		paged(t, s, "two", ask("common", "rare"), rare)
		found("none", ask("common words rare"))
		if n := len(listed(t, s, ask("common"))); n != len(rows) {
			t.Errorf("%d are common", n)
		}
		if n := len(listed(t, s, ask("-rare"))); n != len(rows)-len(rare) {
			t.Errorf("%d are not rare", n)
		}
		write(t, s, withText("", "pods", "pod-01000", "common words"), withText("", "pods", "pod-00007", "Rare"))
		found("changed", ask("rare"), "a/x/pod-00000", "a/x/pod-00007", "a/x/pod-02000", "a/x/pod-03000", "a/x/pod-04000", "a/x/pod-05000")
		check(t, s.Write(t.Context(), []Change{{Row: withText("", "pods", "pod-00007", ""), Delete: true}}))
		found("deleted", ask("rare"), "a/x/pod-00000", "a/x/pod-02000", "a/x/pod-03000", "a/x/pod-04000", "a/x/pod-05000")
		again := withText("", "pods", "pod-02000", "other")
		again.UID = "another"
		write(t, s, again)
		found("another of its name", ask("rare"), "a/x/pod-00000", "a/x/pod-03000", "a/x/pod-04000", "a/x/pod-05000")
		elsewhere := withText("", "pods", "pod", "rare")
		elsewhere.Cluster = "b"
		write(t, s, elsewhere, withText("", "services", "of another type", "rare"))
		indexedExactly(t, s)
		check(t, s.DropCluster(t.Context(), "a"))
		found("dropped", ask("rare"), "b/x/pod")
		indexedExactly(t, s)
	})
}

// TestWordsOfTypes: of Events, messages and reasons are indexed; of Leases and Endpoints,
// nothing; of Secrets, neither data nor annotations.
func TestWordsOfTypes(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := withKeys(t, at, sealingKeys(t, seal.New()))
		for _, gr := range []groupResource{{"", "events"}, {"events.k8s.io", "events"}, {"", "secrets"}, {"", "configmaps"}, {"coordination.k8s.io", "leases"}, {"", "endpoints"}, {"example.com", "events"}} {
			write(t, s, withText(gr.group, gr.resource, "web", "about it"))
			has := func(text string) bool {
				return len(listed(t, s, Query{Group: gr.group, Resource: gr.resource, Slim: texts(t, text)})) > 0
			}
			event := gr.resource == "events" && gr.group != "example.com"
			// A tool may have stored the applied object in an annotation.
			secret := gr.resource == "secrets"
			none := gr.resource == "leases" || gr.resource == "endpoints"
			if has("reason") != event || has("about it") == (none || secret) || has("web") == none || has("-web") != none || has("hidden") || has("password") {
				t.Errorf("%v: reason %t, about it %t, web %t, hidden %t", gr, has("reason"), has("about it"), has("web"), has("hidden"))
			}
		}
		indexedExactly(t, s)

		// Rows of an older version are indexed when the database is opened, before there is a
		// key.
		for _, text := range []string{"DELETE FROM prose", "UPDATE object SET prose = 0", "UPDATE epoch SET terms = 0"} {
			_, err := s.db.write.ExecContext(t.Context(), text)
			check(t, err)
		}
		if s.db.dialect.inverts() {
			_, err := s.db.write.ExecContext(t.Context(), "DELETE FROM word")
			check(t, err)
		}
		check(t, s.Close())
		s = openStore(t, at)
		indexedExactly(t, s)
		if len(listed(t, s, Query{Resource: "secrets", Slim: texts(t, "web")})) != 1 {
			t.Error("a Secret that is encrypted has lost its words")
		}
	})
}

// TestSameWordsAreNotWritten: a change that does not change the words writes neither the words
// nor their index.
func TestSameWordsAreNotWritten(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		write(t, s, withText("", "pods", "web", "about it"))
		_, err := s.db.write.ExecContext(t.Context(), "UPDATE prose SET words = ' marked '")
		check(t, err)
		changed := withText("", "pods", "web", "about it")
		changed.Body = []byte(strings.Replace(string(changed.Body), "hidden", "changed", 1))
		write(t, s, changed)
		var text string
		read := func() string {
			check(t, s.db.read.QueryRowContext(t.Context(), "SELECT words FROM prose").Scan(&text))
			return text
		}
		if read() != " marked " {
			t.Errorf("%q was written", text)
		}
		write(t, s, withText("", "pods", "web", "about more"))
		if !strings.Contains(read(), " about more ") {
			t.Errorf("%q was not", text)
		}
	})
}

// TestHostileWords: texts that have a meaning in a database, or are large, are ordinary words,
// or no words.
func TestHostileWords(t *testing.T) {
	hostile := []string{
		`"`, `'`, `a"b`, `' OR 1=1 --`, `a AND b`, `NEAR(a b, 2)`, `NOT a`, `a*b`, `^a`, `{x} : a`, `x:a`, `-a`, `a:*`, `a & !b | (c)`, `a <-> b`, `\`, `%`, `_`, `_1`, `_1_ a`, `a%b_c`, "a\x00b", "\xff\xfe a", "a\u200bb",
		"ÀÉÎ", "ß", "İi", "かな カナ", "٣٤", "👍 a", "e\u0301", strings.Repeat("a", 100_000), strings.Repeat("a b ", 25_000), strings.Repeat("é", 50_000), "the of in", "a", "+a -b ~c >d <e @f", "$1 ?1 :x", "~", "..", "a.b",
	}
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		var rows []Row
		for i, text := range hostile {
			rows = append(rows, withText("", "pods", fmt.Sprintf("pod-%02d", i), text))
		}
		write(t, s, rows...)
		asked := 0
		for _, text := range hostile {
			for _, prefix := range []bool{false, true} {
				p, err := words.Parse(text, prefix)
				if err != nil {
					continue
				}
				asked++
				for _, not := range []bool{false, true} {
					q := Query{Resource: "pods", Slim: Slim{Texts: []FullText{{Any: []words.Phrase{p}, Not: not}}}}
					var want []string
					for _, r := range rows {
						if q.selects(&r) {
							want = append(want, keys([]Row{r})...)
						}
					}
					paged(t, s, fmt.Sprintf("%.50q", text), q, want)
				}
			}
		}
		if asked < 40 {
			t.Errorf("%d of them are words", asked)
		}
		indexedExactly(t, s)
	})
}
