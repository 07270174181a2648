package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestLeave: what a cluster was told to let go is gone for the others until it is told otherwise, and longer while a request of which the outcome is not
// known may still be carried out.
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
