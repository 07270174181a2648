package slots

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
)

func TestAddress(t *testing.T) {
	for name, tc := range map[string]struct{ a, b string }{
		"Ports":      {"192.0.2.1:1", "192.0.2.1:2"},
		"MappedIPv4": {"192.0.2.1:1", "[::ffff:192.0.2.1]:2"},
		"Subnet":     {"[2001:db8:1:2::1]:1", "[2001:db8:1:2:ffff:ffff:ffff:ffff]:1"},
		"Zones":      {"[fe80::1%eth0]:1", "[fe80::2%eth1]:1"},
		"NoAddress":  {"", "@"},
	} {
		t.Run(name, func(t *testing.T) {
			if a, b := Address(tc.a), Address(tc.b); a != b {
				t.Errorf("%s is %s, %s is %s", tc.a, a, tc.b, b)
			}
		})
	}
	for _, pair := range [][2]string{{"192.0.2.1:1", "192.0.2.2:1"}, {"[2001:db8:1:2::1]:1", "[2001:db8:1:3::1]:1"}, {"192.0.2.1:1", ""}} {
		if a, b := Address(pair[0]), Address(pair[1]); a == b {
			t.Errorf("%q and %q are both %s", pair[0], pair[1], a)
		}
	}
}

// TestTake: when no slot is free, the connection that was silent longest is closed, of the address
// that has most.
func TestTake(t *testing.T) {
	//nolint:dupword // an address takes several slots
	for name, tc := range map[string]struct {
		steps string // an address takes a slot: A; the N-th connection is heard: !N; is released: -N
		want  []int  // the connections that are closed, in their order
	}{
		"Free":                      {"A A A B", nil},
		"OneAddressHasAll":          {"A A A A B", []int{0}},
		"TheLongestSilentGoes":      {"A A A A !0 !1 B C", []int{2, 3}},
		"NobodyElseLoses":           {"B A A A A A A A", []int{1, 2, 3, 4}},
		"ReleasedOnesAreFree":       {"A A A A -2 B", nil},
		"ShareBetweenTwo":           {"A A A A B B B B", []int{0, 1, 4, 5}},
		"ManyAddresses":             {"A B C D E F", []int{0, 1}},
		"ManyAddressesAndActiveOne": {"A B C D !0 E F G", []int{1, 2, 3}},
		"TheSecondOneOfAnAddress":   {"A B C C D", []int{2}},
		"OwnAddressHasMost":         {"A A B B A C", []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var closed []int
			count := 0
			p := New(Options{Limit: 4, Closed: func() { count++ }, Log: logr.Discard()})
			var all []*Slot
			for step := range strings.FieldsSeq(tc.steps) {
				at := 0
				switch step[0] {
				case '!':
					_, _ = fmt.Sscanf(step, "!%d", &at)
					all[at].Heard()
				case '-':
					_, _ = fmt.Sscanf(step, "-%d", &at)
					all[at].Release()
					all[at].Release() // once more changes nothing
				default:
					i := len(all)
					all = append(all, p.Take(fmt.Sprintf("192.0.2.%d:%d", step[0], i), func() { closed = append(closed, i) }))
				}
				if p.Len() > 4 {
					t.Fatalf("%d slots are taken", p.Len())
				}
			}
			if diff := cmp.Diff(tc.want, closed); diff != "" || count != len(tc.want) {
				t.Errorf("closed, and %d counted (-want +got):\n%s", count, diff)
			}
			for i, s := range all {
				if s.Held() == slices.Contains(closed, i) && !strings.Contains(tc.steps, fmt.Sprintf("-%d", i)) {
					t.Errorf("connection %d: has its slot: %v", i, s.Held())
				}
				s.Release()
			}
			if p.Len() != 0 || len(p.by) != 0 {
				t.Errorf("all are released, and %d are taken: %v", p.Len(), p.by)
			}
		})
	}
}

// TestLog: a flood makes one log line a minute, with the number of closed connections.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		p := New(Options{Limit: 2, Log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})})
		take := func() { p.Take("[2001:db8::1]:1", func() {}) }
		for range 100 {
			take()
		}
		time.Sleep(logInterval)
		take()
		if len(lines) != 2 || !strings.Contains(lines[0], `"closed"=1 `) || !strings.Contains(lines[1], `"closed"=98 `) ||
			!strings.Contains(lines[1], `"address"="2001:db8::/64" "slotsOfAddress"=2`) {
			t.Errorf("%q", lines)
		}
	})
}
