package site

import (
	"os"
	"testing"
)

// TestTurns takes two turns, after which there is none until one of them ends.
func TestTurns(t *testing.T) {
	dir := t.TempDir()
	take := func(want bool) *os.File {
		t.Helper()
		turn, err := takeTurn(dir, 2)
		if err != nil || (turn != nil) != want {
			t.Fatalf("a turn: %v, %v; want one: %t", turn, err, want)
		}
		return turn
	}
	first, second := take(true), take(true)
	take(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third := take(true)
	take(false)
	for _, turn := range []*os.File{second, third} {
		if err := turn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
