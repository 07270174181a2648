package node

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// TestAgentDigest: the digest of the agent is computed again only if its file has changed.
func TestAgentDigest(t *testing.T) {
	n := host(t, map[string]string{AgentPath: "one agent"})
	digest := func() string {
		applied, err := n.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return applied.Agent
	}
	if got, want := digest(), digestOf([]byte("one agent")); got != want {
		t.Errorf("before the first request: %s, want %s", got, want)
	}
	done(t, n, request(fileStep("a", "/etc/a", "a")))
	if got, want := digest(), digestOf([]byte("one agent")); got != want {
		t.Errorf("after the first request: %s, want %s", got, want)
	}
	// The stored digest is reported.
	now, kept := n.agentNow()
	if !kept {
		t.Fatal("the digest is not kept")
	}
	now.Digest = "sha256:kept"
	if err := n.writeChecked(n.dir(agentFile), now); err != nil {
		t.Fatal(err)
	}
	if got := digest(); got != "sha256:kept" {
		t.Errorf("the file was read again: %s", got)
	}
	for name, replace := range map[string]func(path, content string) error{
		"Renamed": func(path, content string) error {
			if err := os.WriteFile(path+".incoming", []byte(content), 0o755); err != nil {
				return err
			}
			return os.Rename(path+".incoming", path)
		},
		"WrittenTo": func(path, content string) error { return os.WriteFile(path, []byte(content), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			done(t, n, request(fileStep("a", "/etc/a", name)))
			path := n.path(AgentPath)
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			was, _ := n.agentNow()
			content := "of the same length, " + name[:7]
			for now := was; now.Changed == was.Changed; now, _ = n.agentNow() { // timestamps are coarse
				if err := replace(path, content); err != nil {
					t.Fatal(err)
				}
			}
			// An attempt to hide the change restores the modification time.
			if err := os.Chtimes(path, time.Now(), before.ModTime()); err != nil {
				t.Fatal(err)
			}
			if got, want := digest(), digestOf([]byte(content)); got != want {
				t.Errorf("after it was replaced: %s, want %s", got, want)
			}
		})
	}
}

// TestProtocol: a request with another protocol or an unknown field changes nothing.
func TestProtocol(t *testing.T) {
	for name, tc := range map[string]struct {
		line string
		want []string
	}{
		"Newer":        {`{"protocol":2,"clusterID":["another form"]}`, []string{"protocol 1", "asked in 2", "use the newest"}},
		"None":         {`{"cluster":"alpha","clusterID":"sha256:alpha","removeAll":true}`, []string{"asked in 0"}},
		"UnknownField": {`{"protocol":1,"cluster":"alpha","clusterID":"sha256:alpha","removeSome":true}`, []string{"read request", "removeSome"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := host(t, map[string]string{AgentPath: "agent"})
			done(t, n, request(fileStep("a", "/etc/a", "a")))
			before := tree(t, n, true)
			var out bytes.Buffer
			var said string
			if err := n.Apply(t.Context(), strings.NewReader(tc.line+"\n"), &out); err != nil {
				said = err.Error()
			} else if said = out.String(); !strings.Contains(said, string(lifecyclev1alpha1.StepFailed)) {
				t.Errorf("no failure: %s", said)
			}
			for _, want := range tc.want {
				if !strings.Contains(said, want) {
					t.Errorf("%q does not say %q", said, want)
				}
			}
			sameTree(t, "after it", tree(t, n, true), before)
		})
	}
}
