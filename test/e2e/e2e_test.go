// Package e2e tests the whole of Orrery as its users meet it: the binary, plain kubectl,
// real API servers in the hub and in every member.
package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/test/e2e/demo"
)

// Every test shares the demo, each in a namespace of its own. Those that harm it run alone; the
// others run at once after them, and name the clusters they use, for one of them joins another.
func TestMain(m *testing.M) { demo.Main(m) }

// deadline is how long anything may take that should take a moment.
const deadline = 3 * time.Minute

// apply applies manifests.
func apply(t testing.TB, context, manifest string, args ...string) {
	t.Helper()
	out, err := demo.TryKubectl(context, manifest, append([]string{"apply", "-f", "-"}, args...)...)
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
}

// get reads an object, or a list, as JSON into v.
func get(t testing.TB, context string, v any, args ...string) {
	t.Helper()
	out, err := demo.TryGet(context, append([]string{"-o", "json"}, args...)...)
	if err != nil {
		t.Fatalf("get %s: %v", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("read %s: %v\n%s", args, err, out)
	}
}

// eventually waits until check returns "", which says what is still missing.
func eventually(t testing.TB, within time.Duration, check func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// To ask as kubectl does takes a processor some 30 ms, and to start kubectl 100 ms.
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := check()
		if missing == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %s", within, missing)
		case <-tick.C:
		}
	}
}

// namespace makes a namespace on the hub for one test.
func namespace(t testing.TB, name string) string {
	t.Helper()
	demo.Kubectl(t, "hub", "create", "namespace", name)
	t.Cleanup(func() { _, _ = demo.TryKubectl("hub", "", "delete", "namespace", name, "--ignore-not-found") })
	return name
}
