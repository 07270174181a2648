package testenv

import (
	"errors"
	"net/url"
	"strconv"
	"syscall"
	"testing"

	"orrery.dev/orrery/internal/process"
)

// TestServerKeepsItsPort: nobody takes the port of an API server while it is dead, and it serves
// there again.
func TestServerKeepsItsPort(t *testing.T) {
	s := StartServer(t)
	address, err := url.Parse(s.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	taken := func(when string) {
		t.Helper()
		if _, err := process.ReservePort(address.Hostname(), number); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s, somebody else reserves its port: %v", when, err)
		}
	}
	taken("while it runs")
	s.Signal(t, syscall.SIGKILL)
	taken("when it was killed")
	s.Restart(t)
	taken("when it runs again")
	api, err := NewAPI(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	api.Object(t, "v1", "Namespace", "", "default")
}
