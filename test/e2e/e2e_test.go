// Package e2e tests the whole of Orrery as its users meet it: the binary, plain kubectl,
// real API servers in the hub and in every member.
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

// Every test shares the demo, each in a namespace of its own. Those that harm it run alone; the
// others run at once after them, and name the clusters they use, for one of them joins another.
func TestMain(m *testing.M) { demo.Main(m) }

// deadline is how long anything may take that should take a moment.
const deadline = 3 * time.Minute

// apply applies manifests; it is tried until the API server accepts them.
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

// eventually waits until check returns "", which says what is still missing. Time in which the
// machine did not run this process does not count.
func eventually(t testing.TB, within time.Duration, check func() string) {
	t.Helper()
	// To ask as kubectl does takes a processor some 30 ms, and to start kubectl 100 ms.
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
// request of the join in time. The same join then goes on.
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

// kubectlIn runs kubectl with a kubeconfig file until it works, and returns what it prints.
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
