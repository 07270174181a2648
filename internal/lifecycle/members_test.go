package lifecycle

import (
	"strings"
	"testing"
)

// TestMembersWithoutAnyHost: the error says why no member was asked.
func TestMembersWithoutAnyHost(t *testing.T) {
	for name, tc := range map[string]struct {
		hosts []string
		want  string
	}{
		"NotReached": {[]string{"h-1", "h-2"}, "etcd of host h-2: the host was not reached"},
		"NoHost":     {nil, "no other host runs etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := (&run{}).members(t.Context(), tc.hosts)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "%!") {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
