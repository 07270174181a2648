package server_test

import (
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"orrery.dev/orrery/internal/server"
)

// TestHistoryFlags: invalid bounds and types are refused before anything starts. The error
// names the flag.
func TestHistoryFlags(t *testing.T) {
	for name, tc := range map[string]struct{ flag, want string }{
		"NegativeTime": {"--mirror-history-time=-1h", "--mirror-history-time: -1h0m0s is negative"},
		"NegativeSize": {"--mirror-history-size=-1Gi", "--mirror-history-size: -1Gi is negative"},
		"NoType":       {"--mirror-history-except=Deployment", "--mirror-history-except: \"Deployment\" is no type"},
	} {
		t.Run(name, func(t *testing.T) {
			var o server.Options
			flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
			o.AddFlags(flags)
			if err := flags.Parse([]string{tc.flag}); err != nil {
				t.Fatal(err)
			}
			if err := server.Run(t.Context(), o, logr.Discard(), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
