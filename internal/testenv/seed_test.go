package testenv

import (
	"slices"
	"testing"
)

func TestSeed(t *testing.T) {
	t.Setenv("SEED", "")
	first := Seed(t)
	if second := Seed(t); first != second {
		t.Errorf("one binary has the seeds %d and %d", first, second)
	}
	t.Setenv("SEED", "7")
	if seed := Seed(t); seed != 7 {
		t.Errorf("SEED=7 gives %d", seed)
	}
	if got, want := rerun("TestSeed", 7), "SEED=7 go test -count 1 -run '^TestSeed$' ./internal/testenv"; got != want && !Soak() {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSample: the samples of n consecutive seeds are all cases, each once.
func TestSample(t *testing.T) {
	cases := []string{"a", "b", "c", "d", "e", "f", "g"}
	t.Setenv("SOAK", "")
	var all []string
	for _, seed := range []string{"0", "1", "2"} {
		t.Setenv("SEED", seed)
		chosen := Sample(t, 3, cases)
		if len(chosen) < 2 || len(chosen) > 3 {
			t.Errorf("a third of %d cases is %v", len(cases), chosen)
		}
		all = append(all, chosen...)
	}
	if slices.Sort(all); !slices.Equal(all, cases) {
		t.Errorf("three seeds have chosen %v of %v", all, cases)
	}
	t.Setenv("SEED", "5")
	if chosen := Sample(t, 3, cases[:1]); len(chosen) != 1 {
		t.Errorf("a third of one case is %v", chosen)
	}
	t.Setenv("SOAK", "1")
	if chosen := Sample(t, 3, cases); !slices.Equal(chosen, cases) {
		t.Errorf("a soak does %v of %v", chosen, cases)
	}
}

func TestCount(t *testing.T) {
	for name, c := range map[string]struct {
		soak, variable string
		want           int
	}{
		"Few":           {want: 2},
		"All":           {soak: "1", want: 20},
		"Chosen":        {variable: "5", want: 5},
		"ChosenAndSoak": {soak: "1", variable: "5", want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SOAK", c.soak)
			t.Setenv("KILLS", c.variable)
			if got := Count(t, "KILLS", 2, 20); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// TestRotated: with n consecutive seeds each test runs once.
func TestRotated(t *testing.T) {
	const n, tests = 3, 7
	for i := range tests {
		runs := 0
		for seed := range uint64(n) {
			if rotated(1e9+seed, n, i) {
				runs++
			}
		}
		if runs != 1 {
			t.Errorf("test %d runs %d times", i, runs)
		}
	}
}
