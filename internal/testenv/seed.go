package testenv

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// Tests with random or many faults take too long to run all their cases at each commit. They
// run a part of the cases, which Seed selects, and all cases under Soak. The same code has the
// same seed, so that a rerun makes the same choices and Go's cache of test results is valid.
// Other code has another seed, so the selected parts vary.

// Soak reports whether tests must run all their cases: the environment variable SOAK is set, as
// `make soak` does.
func Soak() bool { return os.Getenv("SOAK") != "" }

// Seed returns the seed of the random choices of a test. This is the environment variable SEED if
// it is set, else a digest of the test binary. If the test has called Programs, that digest also
// covers the programs of the project. A failed test logs how to repeat the same choices.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := contentSeed()
	if text := os.Getenv("SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		seed = n
	} else if usesPrograms.Load() {
		seed = programSeed()
	}
	if _, registered := reproducible.LoadOrStore(t.Name(), true); registered {
		return seed
	}
	t.Cleanup(func() {
		reproducible.Delete(t.Name())
		if t.Failed() {
			t.Logf("to make the same choices again: %s", rerun(t.Name(), seed))
		}
	})
	return seed
}

// Rand returns a source of random numbers with the test's Seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Count returns how often a test repeats something: the value of the environment variable named
// variable if that is set. Otherwise it is all if Soak is true, else few.
func Count(t testing.TB, variable string, few, all int) int {
	t.Helper()
	text := os.Getenv(variable)
	switch {
	case text != "":
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q is not a number from 1", variable, text)
		}
		return n
	case Soak():
		return all
	}
	return few
}

// Sample returns the cases that a test runs: all of them if Soak is true. Otherwise it returns
// every nth case, from an index that Seed selects.
func Sample[T any](t testing.TB, n int, cases []T) []T {
	t.Helper()
	if Soak() {
		return cases
	}
	n = min(n, len(cases))
	var chosen []T
	// Rotate chooses by the rest of the seed alone. With the same choice here, a test of n that runs
	// at every nth commit would always have the same sample.
	first := (Seed(t) + Seed(t)/1000) % uint64(max(n, 1))
	for i := int(first); i < len(cases); i += n {
		chosen = append(chosen, cases[i])
	}
	return chosen
}

// Rotate skips the test t at some commits. tests are the names of tests of one package, and one of
// them is the name of t. At each commit every nth of them runs. The content of the test binary and
// of the project's programs chooses the first. All of them run under Soak, and if the variable SEED
// is set, which repeats a failed test.
func Rotate(t testing.TB, n int, tests ...string) {
	t.Helper()
	i := slices.Index(tests, t.Name())
	if i < 0 {
		t.Fatalf("%s is none of %v", t.Name(), tests)
	}
	Seed(t) // a failed test logs how to repeat it
	if !Soak() && os.Getenv("SEED") == "" && !rotated(programSeed(), n, i) {
		t.Skipf("at this commit others of %s run; make soak runs all of them, and SEED=1 this one", strings.Join(tests, ", "))
	}
}

// rotated reports whether the test with the index i runs at the commit with that seed.
func rotated(seed uint64, n, i int) bool { return uint64(i)%uint64(n) == seed%uint64(n) }

// programSeed returns the seed that follows from the content of this test binary and of the
// project's programs.
func programSeed() uint64 {
	return seedOf([]byte(fmt.Sprint(contentSeed(), os.Getenv("ORRERY_PROGRAMS"))))
}

var (
	// usesPrograms is true after a call of Programs.
	usesPrograms atomic.Bool
	reproducible sync.Map // names of tests that log their seed when they fail
)

// contentSeed returns the seed that follows from the content of this test binary.
var contentSeed = sync.OnceValue(func() uint64 {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	file, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		panic(err)
	}
	return seedOf(hash.Sum(nil))
})

// seedOf returns a seed that follows from content. It has at most nine digits, so that it is easy
// to type.
func seedOf(content []byte) uint64 {
	sum := sha256.Sum256(content)
	return binary.BigEndian.Uint64(sum[:]) % 1e9
}

// rerun returns the shell command that repeats the test with this name and seed.
func rerun(name string, seed uint64) string {
	command := fmt.Sprintf("SEED=%d ", seed)
	if Soak() {
		command += "SOAK=1 "
	}
	dir := "."
	if wd, err := syscall.Getwd(); err == nil {
		if relative, err := filepath.Rel(Root(), wd); err == nil {
			dir = relative
		}
	}
	return command + fmt.Sprintf("go test -count 1 -run '^%s$' ./%s", name, dir)
}
