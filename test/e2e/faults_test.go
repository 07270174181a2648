package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pid reads the pidfile of a process of the demo; the hub's own are under hub/.
func pid(t testing.TB, name string) int {
	t.Helper()
	for _, pattern := range []string{
		filepath.Join(dataDir, "processes", name+".pid"),
		filepath.Join(dataDir, "hub", "*", name+".pid"),
	} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			n, err := strconv.Atoi(strings.Fields(string(b))[0])
			if err == nil {
				return n
			}
		}
	}
	t.Fatalf("no pidfile of %s under %s", name, dataDir)
	return 0
}

func signal(t testing.TB, name string, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid(t, name), sig); err != nil {
		t.Fatalf("signal %s: %v", name, err)
	}
}

// configMaps returns the manifests of numbered ConfigMaps.
func configMaps(from, to int, ns string) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%03d, namespace: %s}\ndata: {n: \"%d\"}\n", i, ns, i)
	}
	return b.String()
}

func configMapPolicy(ns string) string {
	return fmt.Sprintf(`
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: all, namespace: %s}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap}]
`, ns)
}

// counts the placed ConfigMaps of a namespace in a member.
func countPlaced(context, ns string) (int, error) {
	out, err := tryKubectl(context, "", "get", "configmaps", "-n", ns, "-l", "work.orrery.dev/binding", "-o", "name")
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return len(strings.Fields(out)), nil
}

func eventuallyPlaced(t testing.TB, ns string, want int) {
	t.Helper()
	eventually(t, 3*time.Minute, func() string {
		for _, m := range members {
			n, err := countPlaced(m, ns)
			if err != nil {
				return err.Error()
			}
			if n != want {
				return fmt.Sprintf("%s has %d of %d", m, n, want)
			}
		}
		return ""
	})
}

// TestKillInTheMiddleOf200Placements kills each process of the hub with SIGKILL while
// objects are being placed. Everything must converge: nothing missing, nothing twice,
// nothing left after deletion.
func TestKillInTheMiddleOf200Placements(t *testing.T) {
	const count = 200
	for _, victim := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "hub"} {
		t.Run(victim, func(t *testing.T) {
			ns := namespace(t, "kill-"+victim)
			apply(t, "hub", configMapPolicy(ns))
			apply(t, "hub", configMaps(0, count/2, ns))
			// In the middle: some objects are there already, others are on their way.
			eventually(t, time.Minute, func() string {
				n, err := countPlaced(members[0], ns)
				if err != nil {
					return err.Error()
				}
				if n == 0 {
					return "nothing is placed yet"
				}
				return ""
			})
			signal(t, victim, syscall.SIGKILL)
			eventually(t, 2*time.Minute, func() string {
				if out, err := tryKubectl("hub", configMaps(count/2, count, ns), "apply", "-f", "-"); err != nil {
					return out
				}
				return ""
			})
			eventuallyPlaced(t, ns, count)

			kubectl(t, "hub", "delete", "configmaps", "-n", ns, "--all", "--wait=false")
			eventuallyPlaced(t, ns, 0)
			eventually(t, time.Minute, func() string {
				if left := kubectl(t, "hub", "get", "resourcebindings", "-n", ns, "-o", "name"); left != "" {
					return "bindings are left: " + left
				}
				return ""
			})
		})
	}
}

// TestMemberGoneAndBack kills, then hangs, a member's API server: nothing is deleted,
// its status becomes unknown, and it converges when it is back.
func TestMemberGoneAndBack(t *testing.T) {
	for name, fault := range map[string]struct{ inject, mend func() }{
		"Killed": {
			inject: func() { signal(t, "birch-apiserver", syscall.SIGKILL) },
			mend:   func() {}, // the supervisor starts it again
		},
		"Hung": {
			inject: func() { signal(t, "birch-apiserver", syscall.SIGSTOP) },
			mend:   func() { signal(t, "birch-apiserver", syscall.SIGCONT) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t, "gone-"+strings.ToLower(name))
			apply(t, "hub", configMapPolicy(ns))
			apply(t, "hub", configMaps(0, 5, ns))
			eventuallyPlaced(t, ns, 5)

			fault.inject()
			if name == "Hung" {
				eventually(t, 2*time.Minute, func() string {
					if s := kubectl(t, "hub", "get", "cluster", "birch", "-o", "jsonpath={.status.conditions[?(@.type=='Reachable')].status}"); s != "Unknown" {
						return "Reachable is " + s
					}
					if s := kubectl(t, "hub", "get", "resourcebinding", "c000-configmap", "-n", ns, "-o", "jsonpath={.status.aggregatedStatus[?(@.clusterName=='birch')].health}"); s != "Unknown" {
						return "health in birch is " + s
					}
					return ""
				})
				// What was seen of it is still answered, with a warning.
				out := kubectl(t, "fleet", "get", "configmaps", "-n", ns)
				if n := strings.Count(out, "birch "); n < 5 {
					t.Errorf("the fleet shows %d objects of the unreachable cluster, want 5 or more:\n%s", n, out)
				}
			}
			// Objects created meanwhile wait for it and hold up nobody else.
			eventually(t, time.Minute, func() string {
				if out, err := tryKubectl("hub", configMaps(5, 10, ns), "apply", "-f", "-"); err != nil {
					return out
				}
				return ""
			})
			eventually(t, time.Minute, func() string {
				n, err := countPlaced("oak", ns)
				if err != nil {
					return err.Error()
				}
				if n != 10 {
					return fmt.Sprintf("oak has %d of 10", n)
				}
				return ""
			})
			fault.mend()
			eventuallyPlaced(t, ns, 10)
			kubectl(t, "hub", "wait", "--for=condition=Ready", "cluster/birch", "--timeout=60s")
		})
	}
}

// TestNoOrphansWhenTheDemoIsKilled kills a demo's own process with SIGKILL: every process
// that it started must go.
func TestNoOrphansWhenTheDemoIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(orreryBinary(), "demo", "up", "--clusters=1", "--data-dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	// The last to start is a member's API server, the hub's own children run by then.
	eventually(t, 2*time.Minute, func() string {
		running := strings.Join(processesOf(dir), "\n")
		for _, p := range []string{"kube-apiserver", "kube-controller-manager", "members/oak"} {
			if !strings.Contains(running, p) {
				return "waiting for " + p + ":\n" + running
			}
		}
		return ""
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, 20*time.Second, func() string {
		if left := processesOf(dir); len(left) > 0 {
			return "left: " + strings.Join(left, "\n")
		}
		return ""
	})
}

// TestDemoInTheForeground runs a demo as a newcomer does, and ends it with Ctrl-C.
func TestDemoInTheForeground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shown := filepath.Join(t.TempDir(), "shown")
	out, err := os.Create(shown)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(orreryBinary(), "demo", "up", "--clusters=1", "--data-dir", dir)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	text := func() string {
		text, err := os.ReadFile(shown)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	eventually(t, 2*time.Minute, func() string {
		if !strings.Contains(text(), "Ctrl-C") {
			return "it shows:\n" + text()
		}
		return ""
	})
	for _, want := range []string{
		"starting a hub", "joining clusters", "waiting until the sample is ready", // progress, line by line
		"hello   oak       6          Healthy",
		"kubectl --context fleet get pods -A", "kubectl --context hub -n demo patch website", "orrery cluster describe oak",
	} {
		if !strings.Contains(text(), want) {
			t.Errorf("it does not show %q:\n%s", want, text())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v\n%s", err, text())
	}
	if left := processesOf(dir); len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, "\n"))
	}
}
