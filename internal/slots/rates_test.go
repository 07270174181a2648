package slots

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestRates: one address gets its rate, and leaves the rest of the rate of all for others. The
// memory for addresses is bounded.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(Rate{PerSecond: 10, Burst: 30}, Rate{PerSecond: 4, Burst: 10})
		taken := func(address string) (n int) {
			for r.Allow(address) {
				n++
			}
			return n
		}
		for i, want := range []int{10, 10, 10, 0} {
			if n := taken(fmt.Sprintf("192.0.2.%d:1", i)); n != want {
				t.Errorf("address %d may do it %d times, want %d", i, n, want)
			}
		}
		time.Sleep(time.Second)
		for i, want := range []int{4, 4} {
			if n := taken(fmt.Sprintf("192.0.2.%d:2", i)); n != want {
				t.Errorf("a second later, address %d may do it %d times, want %d", i, n, want)
			}
		}
		for i := range 2 * mostAddresses {
			r.Allow(fmt.Sprintf("[2001:db8:%x::1]:1", i))
		}
		if len(r.by) > mostAddresses {
			t.Errorf("%d addresses are kept", len(r.by))
		}
	})
}
