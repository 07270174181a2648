package site

import (
	"os"
	"testing"
)

// TestSlots: of two locks, both can be taken, and a third only after one of them is released.
func TestSlots(t *testing.T) {
	dir := t.TempDir()
	take := func(want bool) *os.File {
		t.Helper()
		slot, err := takeSlot(dir, 2)
		if err != nil || (slot != nil) != want {
			t.Fatalf("a slot: %v, %v; want one: %t", slot, err, want)
		}
		return slot
	}
	first, second := take(true), take(true)
	take(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third := take(true)
	take(false)
	for _, slot := range []*os.File{second, third} {
		if err := slot.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
