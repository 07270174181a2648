package testenv_test

import (
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

func TestCrash(t *testing.T) {
	const before = "I1122 started\nerror: it would panic: no\n"
	for name, line := range map[string]string{
		"Panic": "panic: assignment to entry in nil map", "Fatal": "fatal error: concurrent map read and map write", "Race": "WARNING: DATA RACE",
	} {
		t.Run(name, func(t *testing.T) {
			if got := testenv.Crash(before + line + "\n\ngoroutine 1 [running]:"); !strings.HasPrefix(got, line) {
				t.Errorf("got %q", got)
			}
		})
	}
	if got := testenv.Crash(before); got != "" {
		t.Errorf("of a log without one: %q", got)
	}
}
