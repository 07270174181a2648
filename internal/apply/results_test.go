package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestLeave: replicas that a cluster was asked to release are gone for the others until it is
// asked to keep all. They stay gone while the outcome of an earlier request is unknown, because
// that request may still be executed.
func TestLeave(t *testing.T) {
	r := newResults()
	b, name := types.UID("binding"), types.NamespacedName{Name: "binding"}
	check := func(what string, want int32) {
		t.Helper()
		if got := r.leaves(b, "oak", 5); got != want {
			t.Errorf("%s: %d stay of five, want %d", what, got, want)
		}
	}
	check("nothing was said", 5)
	r.leave(b, "oak", 5, 2)
	check("three are to go", 2)
	if got := r.leaves(b, "oak", 1); got != 1 {
		t.Errorf("%d stay of one", got)
	}
	if got := r.leaves(b, "elm", 5); got != 5 {
		t.Errorf("%d stay of five in a cluster that was told nothing", got)
	}
	r.leave(b, "oak", 2, 2)
	check("it was done", 5)
	r.leave(b, "oak", 5, 0)
	check("all are to go", 0)
	r.leave(b, "oak", 0, 0)
	check("it is placed there again", 5)

	r.leave(b, "oak", 5, 2)
	r.update(name, b, "oak", func(s *state) { s.acts.Unsure = true })
	r.leave(b, "oak", 5, 4)
	check("fewer were asked for before, which was not answered", 2)
	r.leave(b, "oak", 5, 5)
	check("the same, and none is to go now", 2)
	r.update(name, b, "oak", func(s *state) { s.acts.Unsure = false })
	r.leave(b, "oak", 5, 5)
	check("the answer is known", 5)

	r.leave(b, "oak", 5, 2)
	r.forgetCluster("oak")
	check("the cluster has left", 5)
	r.leave(b, "oak", 5, 2)
	r.forget(b)
	check("the binding is gone", 5)
}

// TestEdited: an event about a version of the template that was planned already, as after a
// start, makes no result stale. An event about another version does, even before there is a
// result.
func TestEdited(t *testing.T) {
	b, name := types.UID("binding"), types.NamespacedName{Name: "binding"}
	report := func(r *results, of state, version string) {
		r.update(name, b, "oak", func(s *state) {
			s.result, s.known, s.about = Result{Applied: true, Template: version}, true, of.changes
		})
	}
	stale := func(r *results) bool {
		s, _ := r.get(b, "oak")
		return s.current().Stale
	}
	for what, c := range map[string]struct {
		do   func(r *results) (news bool)
		news bool
		want bool // it is stale
	}{
		"ToldBeforeThePlan": {func(r *results) bool {
			news := r.edited(name, b, "oak", "1")
			report(r, r.plan(b, "oak", "1"), "1")
			return news
		}, true, false},
		"ToldWhilePlanned": {func(r *results) bool {
			of := r.plan(b, "oak", "1")
			news := r.edited(name, b, "oak", "1")
			report(r, of, "1")
			return news
		}, false, false},
		"ToldAfterTheResult": {func(r *results) bool {
			report(r, r.plan(b, "oak", "1"), "1")
			return r.edited(name, b, "oak", "1")
		}, false, false},
		"EditedWhilePlanned": {func(r *results) bool {
			of := r.plan(b, "oak", "1")
			news := r.edited(name, b, "oak", "2")
			report(r, of, "1")
			return news
		}, true, true},
		"EditedAfterTheResult": {func(r *results) bool {
			report(r, r.plan(b, "oak", "1"), "1")
			return r.edited(name, b, "oak", "2")
		}, true, true},
		"GoneAfterTheResult": {func(r *results) bool {
			report(r, r.plan(b, "oak", "1"), "1")
			return r.edited(name, b, "oak", "")
		}, true, true},
		"NeverKnown": {func(r *results) bool {
			report(r, r.plan(b, "oak", ""), "")
			return r.edited(name, b, "oak", "")
		}, true, true},
		"LoadedWhilePlanned": {func(r *results) bool {
			of := r.plan(b, "oak", "1")
			r.load(b, "oak", state{cluster: "uid"})
			news := r.edited(name, b, "oak", "1")
			report(r, of, "1")
			return news
		}, false, false},
	} {
		t.Run(what, func(t *testing.T) {
			r := newResults()
			if news := c.do(r); news != c.news {
				t.Errorf("it is news: %v, want %v", news, c.news)
			}
			if got := stale(r); got != c.want {
				t.Errorf("the result is stale: %v, want %v", got, c.want)
			}
		})
	}
}
