package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

// TestSearch searches the demo's clusters as a user does.
func TestSearch(t *testing.T) {
	t.Parallel()
	eventually(t, deadline, func() string {
		out, code := demo.Run(t, "search", "kind:ns name:kube-system cluster:*")
		if code != 0 || strings.Count(out, "kube-system") < 3 {
			return out
		}
		return ""
	})
	for _, tc := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"Table", []string{"search", "kind:Namespace", "kube-sys"}, 0, []string{"KIND", "CLUSTER", "NAMESPACE", "NAME", "AGE", "STATUS", "Active"}},
		{"Wide", []string{"search", "-o", "wide", "kind:Namespace kube-sys"}, 0, []string{"API VERSION"}},
		{"Name", []string{"search", "-o", "name", "kind:Namespace name:kube-system"}, 0, []string{" namespace/kube-system\n"}},
		{"YAML", []string{"search", "-o", "yaml", "name:kube-system"}, 0, []string{"kind: List", "fleet.orrery.dev/cluster:"}},
		{"Filter", []string{"search", "kind:Namespace", "--filter", `object.metadata.name == "kube-public"`}, 0, []string{"kube-public"}},
		{"FullText", []string{"search", `kind:Namespace text:"KUBE system"`}, 0, []string{"kube-system"}},
		{"Nothing", []string{"search", "no-name-has-this"}, 0, []string{"Nothing found"}},
		{"Limit", []string{"search", "--limit", "1", "kind:Namespace"}, 0, []string{"There are more than 1"}},
		{"Counts", []string{"search", "kind:Namespace kube-", "--group", "kind"}, 0, []string{"KIND", "OBJECTS", "TOTAL"}},
		{"Explain", []string{"search", "--explain", "kind:po,deploy image:nginx"}, 0, []string{"TERM", "MEANS", "an image is, or has as whole words, nginx", "pods", "deployments.apps"}},
		{"Unknown", []string{"search", "knd:Pod"}, 2, []string{"did you mean kind?"}},
		{"Cluster", []string{"search", "cluster:none"}, 1, []string{"no cluster is named none; the fleet has "}},
		{"CompleteKeys", []string{"__complete", "search", "k"}, 0, []string{"kind:"}},
		{"CompleteKinds", []string{"__complete", "search", "kind:Namesp"}, 0, []string{"kind:Namespace\n"}},
		{"CompleteNamespaces", []string{"__complete", "search", "kind:Pod ns:kube-s"}, 0, []string{"kind:Pod ns:kube-system\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			look := func() (missing string) {
				out, code := demo.Run(t, tc.args...)
				if code != tc.code {
					return fmt.Sprintf("exit code %d, want %d:\n%s", code, tc.code, out)
				}
				for _, text := range tc.says {
					if !strings.Contains(out, text) {
						return fmt.Sprintf("it does not say %q:\n%s", text, out)
					}
				}
				return ""
			}
			// A busy hub may not answer in time. In particular, a completion offers nothing if
			// it would keep the typing user waiting.
			eventually(t, deadline, look)
		})
	}
	// Warnings must go to stderr only. There may be some, because another test joins a cluster
	// whose mirror is not complete yet.
	eventually(t, deadline, func() string {
		cmd := testenv.Program(t.Context(), demo.Orrery(), "search", "-o", "json", "kind:Namespace name:kube-system")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var list struct {
			Kind  string
			Items []struct{ Kind string }
		}
		if err := errors.Join(err, json.Unmarshal(out, &list)); err != nil || list.Kind != "List" || len(list.Items) < 3 || list.Items[0].Kind != "Namespace" {
			return fmt.Sprintf("%v:\n%s\n%s", err, out, stderr.String())
		}
		return ""
	})
}
