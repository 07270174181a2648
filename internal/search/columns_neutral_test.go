package search

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/store"
)

// TestCellsAreNeutral: control characters in names and columns of a member, and in its values,
// are replaced in tables. Line breaks in values stay: kubectl shows the first line.
func TestCellsAreNeutral(t *testing.T) {
	const hostile = "x\toak\tweb\n\x1b[2J\u009b\u202e\u200b"
	c := &columns{
		heads: []head{clusterHead, nameHead, {name: "Own\t\x1b", typ: "string"}, {name: "Count", typ: "integer"}},
		row:   func(store.Row) ([]any, error) { return []any{hostile, int64(3)}, nil },
	}
	cells, err := c.cells(store.Row{Cluster: "elm", Name: hostile})
	if err != nil {
		t.Fatal(err)
	}
	const neutral = "x oak web\n\ufffd[2J\ufffd\ufffd\ufffd"
	if diff := cmp.Diff([]any{"elm", neutral, neutral, int64(3)}, cells); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	if got := c.definitions()[2].Name; got != "Own\ufffd\ufffd" {
		t.Errorf("the head is %q", got)
	}
}
