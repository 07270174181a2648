// Package e2e tests the whole of Orrery as users see it: the binary, plain kubectl, and real
// API servers in the hub and in every member.
package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

// All tests share the demo, each with a namespace of its own. Tests that harm the demo run
// alone. The others run in parallel after them, and name the clusters that they use, because
// one of them joins another cluster.
func TestMain(m *testing.M) { demo.Main(m) }

// deadline is the timeout for steps that normally take a moment.
const deadline = 3 * time.Minute

// apply applies manifests, and repeats that until the API server accepts them.
func apply(t testing.TB, context, manifest string, args ...string) {
	t.Helper()
	eventually(t, deadline, func() string {
		if out, err := demo.TryKubectl(context, manifest, append([]string{"apply", "-f", "-"}, args...)...); err != nil {
			return fmt.Sprintf("kubectl apply: %v\n%s\n%s", err, out, manifest)
		}
		return ""
	})
}

// get reads an object, or a list, as JSON into v.
func get(context string, v any, args ...string) error {
	out, err := demo.TryGet(context, append([]string{"-o", "json"}, args...)...)
	if err != nil {
		return fmt.Errorf("get %s: %w", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("read %s: %w\n%s", args, err, out)
	}
	return nil
}

// eventually waits until check returns "". Otherwise check returns what is missing. Time in
// which the machine did not run this process does not count.
func eventually(t testing.TB, within time.Duration, check func() string) {
	t.Helper()
	// A request in this process takes about 30 ms of a processor, and a start of kubectl 100
	// ms.
	const interval = 250 * time.Millisecond
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for end := time.Now().Add(within); ; {
		missing := check()
		asked := time.Now()
		if missing == "" {
			return
		}
		if asked.After(end) {
			t.Fatalf("after %s: %s", within, missing)
		}
		<-tick.C
		end = end.Add(max(0, time.Since(asked)-interval))
	}
}

// join joins a cluster, with the arguments of orrery cluster join. A busy hub may not answer a
// request of the join in time. Then join is repeated and completes the first attempt.
func join(t testing.TB, args ...string) {
	t.Helper()
	eventually(t, deadline, func() string {
		out, code := demo.Run(t, append([]string{"cluster", "join", "--timeout=10m"}, args...)...)
		if code != 0 && !demo.Unheard(out) {
			t.Fatalf("join: exit code %d:\n%s", code, out)
		}
		if code != 0 {
			return "join: " + out
		}
		return ""
	})
}

// kubectlIn runs kubectl with a kubeconfig file until it succeeds, and returns its output.
func kubectlIn(t testing.TB, kubeconfig string, args ...string) string {
	t.Helper()
	var text []byte
	eventually(t, deadline, func() string {
		var err error
		text, err = exec.Command(testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
		if created := args[0] == "create" && strings.Contains(string(text), "(AlreadyExists)"); err != nil && !created {
			return fmt.Sprintf("%v\n%s", err, text)
		}
		return ""
	})
	return string(text)
}

// namespace makes a namespace on the hub for one test.
func namespace(t testing.TB, name string) string {
	t.Helper()
	demo.Kubectl(t, "hub", "create", "namespace", name)
	t.Cleanup(func() { _, _ = demo.TryKubectl("hub", "", "delete", "namespace", name, "--ignore-not-found") })
	return name
}
