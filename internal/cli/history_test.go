package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/testenv"
)

// hubOfTwo is a hub with the members oak and elm. Oak serves a deprecated version.
type hubOfTwo struct {
	hub      *testenv.Hub
	oak, elm *testenv.Server
}

// TestOnAHubOfTwo queries a hub with real members about their objects.
func TestOnAHubOfTwo(t *testing.T) {
	dir := t.TempDir()
	f := &hubOfTwo{oak: testenv.StartServer(t, "--runtime-config=networking.k8s.io/v1beta1=true"), elm: testenv.StartServer(t)}
	var err error
	if f.hub, err = testenv.StartHub(dir, ownBinary(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.hub.Stop(); err != nil {
			t.Error(err)
		}
	})
	for name, member := range map[string]*testenv.Server{"oak": f.oak, "elm": f.elm} {
		kubeconfig := filepath.Join(dir, name)
		if err := os.WriteFile(kubeconfig, member.Kubeconfig(), 0o600); err != nil {
			t.Fatal(err)
		}
		succeeds(t, f.run, "cluster", "join", name, "--cluster-kubeconfig="+kubeconfig, "--timeout=10m")
	}
	t.Run("Graph", f.graph)
	t.Run("History", f.history)
	t.Run("Orphans", f.orphans)
}

// runUntil runs a command until its output is right, because the hub or a cluster may not
// answer for a moment.
func runUntil(t *testing.T, run func(args ...string) (code int, out, errOut string), right func(code int, out, errOut string) bool, args ...string) {
	t.Helper()
	testenv.Eventually(t, strings.Join(args, " "), testenv.Patience, func() error {
		code, out, errOut := run(args...)
		if !right(code, out, errOut) {
			return fmt.Errorf("%d: %s%s", code, out, errOut)
		}
		return nil
	})
}

// failsUntil runs a command until its output is right. The command must fail each time.
func failsUntil(t *testing.T, run func(args ...string) (code int, out, errOut string), right func(code int, out, errOut string) bool, args ...string) {
	t.Helper()
	runUntil(t, run, func(code int, out, errOut string) bool {
		if code == 0 {
			t.Fatalf("%q succeeds: %s%s", args, out, errOut)
		}
		return right(code, out, errOut)
	}, args...)
}

// unanswered are texts of errors that mean that the hub or a cluster did not answer.
var unanswered = []string{
	"reach the hub at ", "cannot reach orrery server", "no API server answers", "answers but is not ready", "did not try the new credentials",
	"is unreachable", "no answer in time", "context deadline exceeded", "i/o timeout", "connection refused", "connection reset", "etcdserver: ",
	"unable to handle the request", "Error from server (ServiceUnavailable)", "Error from server (Timeout)", "Error from server (ServerTimeout)",
	"Error from server (TooManyRequests)",
}

// wasAnswered reports whether the hub and the clusters answered the command with these errors.
func wasAnswered(errOut string) bool {
	return !slices.ContainsFunc(unanswered, func(text string) bool { return strings.Contains(errOut, text) })
}

// succeeds runs a command that must succeed, and returns its output. It repeats the command
// while the hub or a cluster does not answer.
func succeeds(t *testing.T, run func(args ...string) (code int, out, errOut string), args ...string) (printed string) {
	t.Helper()
	runUntil(t, run, func(code int, out, errOut string) bool {
		if code != 0 && wasAnswered(errOut) {
			t.Fatalf("%q: %d %s%s", args, code, out, errOut)
		}
		printed = out
		return code == 0
	}, args...)
	return printed
}

func (f *hubOfTwo) run(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = Main(append(args, "--kubeconfig="+f.hub.Kubeconfig()), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// history queries the changes of objects, their authors, and the versions that members serve.
// It restarts the hub.
func (f *hubOfTwo) history(t *testing.T) {
	run := f.run
	// eventually runs a command until its output contains all texts.
	eventually := func(texts []string, args ...string) string {
		t.Helper()
		var last string
		testenv.Eventually(t, strings.Join(args, " "), testenv.Patience, func() error {
			code, out, errOut := run(args...)
			last = out + errOut
			for _, text := range texts {
				if code != 0 || !strings.Contains(last, text) {
					return fmt.Errorf("%d, without %q: %s", code, text, last)
				}
			}
			return nil
		})
		return last
	}
	in := kubernetes.NewForConfigOrDie(f.oak.Config())
	if _, err := in.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually([]string{"kube-apiserver"}, "history", "ns/kube-system", "--cluster=oak")
	eventually([]string{"RESOURCE", "deployments.apps"}, "api-resources")

	labels := map[string]string{"app": "web"}
	replicas := int32(1)
	deployments := in.AppsV1().Deployments("shop")
	web, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "shop/web:1"}}}},
		},
	}, metav1.CreateOptions{FieldManager: "carol"})
	if err != nil {
		t.Fatal(err)
	}
	history := []string{"history", "deploy/web", "-n", "shop"}
	eventually([]string{"Created", "carol"}, history...)
	then := time.Now().UTC().Format(time.RFC3339Nano)

	if _, err := deployments.Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"replicas":2,"template":{"spec":{"containers":[{"name":"web","image":"shop/web:2"}]}}}}`), metav1.PatchOptions{FieldManager: "dave"}); err != nil {
		t.Fatal(err)
	}
	table := eventually([]string{"dave", "spec.replicas: 1 → 2", `spec.template.spec.containers[name=web].image: "shop/web:1" → "shop/web:2"`}, history...)
	if _, err := deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"status":{"observedGeneration":2}}`), metav1.PatchOptions{FieldManager: "erin"}, "status"); err != nil {
		t.Fatal(err)
	}
	eventually([]string{"Left out are changes of status and the like alone: 1."}, history...)
	// A change of status alone is hidden by default.
	runUntil(t, run, func(_ int, out, _ string) bool { return out == table }, history...)
	eventually([]string{"erin/status", "status.observedGeneration"}, append(slices.Clone(history), "--all-fields")...)
	runUntil(t, run, func(_ int, out, _ string) bool {
		return strings.Contains(out, "    - spec.replicas: 1\n    + spec.replicas: 2\n") && !strings.Contains(out, "Created")
	}, append(slices.Clone(history), "--diff", "--cluster=oak", "--limit=1")...)
	runUntil(t, run, func(_ int, out, _ string) bool {
		var changes []typedChange
		return json.Unmarshal([]byte(out), &changes) == nil && len(changes) == 2 && changes[1].UID == web.UID && len(changes[0].By) > 0 && changes[0].By[0].Manager == "dave" && changes[0].Resource == "deployments.apps"
	}, append(slices.Clone(history), "-o", "json")...)

	want := "~ oak/shop  deployments.apps/web  Updated"
	runUntil(t, run, func(code int, out, _ string) bool {
		return code == 0 && strings.Contains(out, want) && strings.Contains(out, "+ spec.replicas: 2")
	}, "diff", "--since="+then, "-n", "shop")
	runUntil(t, run, func(_ int, out, _ string) bool { return out == "Nothing changed.\n" }, "diff", "--since="+then, "-n", "shop", "--cluster=elm")
	runUntil(t, run, func(_ int, out, _ string) bool { return out == "[]\n" }, "diff", "--since="+then, "-n", "shop", "-o", "yaml", "configmaps")
	failsUntil(t, run, func(code int, _, errOut string) bool { return code == 1 && strings.Contains(errOut, "is known from ") }, "diff", "--since=2020-01-01")
	failsUntil(t, run, func(code int, _, errOut string) bool {
		return code == 1 && strings.Contains(errOut, "no history is kept")
	}, "diff", "--since=1h", "events")

	testenv.Eventually(t, "delete the Deployment", testenv.Patience, func() error {
		return client.IgnoreNotFound(deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	})
	eventually([]string{"deployments.apps/web", string(web.UID)}, "history", "--deleted", "-n", "shop")
	eventually([]string{"Deleted", "dave", "carol"}, history...)
	eventually([]string{"- oak/shop  deployments.apps/web  Deleted"}, "diff", "--since="+then, "deploy")

	// A client writes a ServiceCIDR in the deprecated version.
	if _, err := in.NetworkingV1beta1().ServiceCIDRs().Create(t.Context(), &networkingv1beta1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1beta1.ServiceCIDRSpec{CIDRs: []string{"10.97.0.0/16"}},
	}, metav1.CreateOptions{FieldManager: "frank"}); err != nil {
		t.Fatal(err)
	}
	eventually([]string{"networking.k8s.io/v1beta1", "servicecidrs.networking.k8s.io/more", "frank", "1.37"}, "api-resources")
	runUntil(t, run, func(_ int, out, _ string) bool { return strings.Contains(out, "v1 (elm,oak) v1beta1 (oak)") }, "api-resources", "--clusters")
	runUntil(t, run, func(_ int, out, _ string) bool {
		var report servedReport
		return json.Unmarshal([]byte(out), &report) == nil && len(report.Leaving) == 1 && len(report.Clusters) == 2 &&
			slices.Equal(report.Leaving[0].By, []string{"frank"}) && report.Leaving[0].Cluster == "oak" && report.Clusters[0].Problem == ""
	}, "api-resources", "-o", "json")

	// A restart loses nothing.
	_, before, _ := run(history...)
	if err := errors.Join(f.hub.Stop(), f.hub.Start()); err != nil {
		t.Fatal(err)
	}
	if after := eventually([]string{"Deleted"}, history...); !strings.HasPrefix(after, before) {
		t.Errorf("after a restart:\n%s\nbefore:\n%s", after, before)
	}
}

func TestHistoryIsRefused(t *testing.T) {
	for name, args := range map[string][]string{
		"NoObject": {"history"}, "NoName": {"history", "deploy"}, "TwoObjects": {"history", "a", "b", "c"}, "Limit": {"history", "deploy/web", "--limit=-1"},
		"DiffOfDeleted": {"history", "--deleted", "--diff"}, "NoMoment": {"diff"}, "Format": {"diff", "--since=1h", "-o", "name"},
	} {
		t.Run(name, func(t *testing.T) {
			var errOut bytes.Buffer
			if code := Main(args, strings.NewReader(""), &bytes.Buffer{}, &errOut); code != 2 {
				t.Errorf("%d: %s, want 2", code, errOut.String())
			}
		})
	}
}

func TestPrintFields(t *testing.T) {
	var c typedChange
	if err := json.Unmarshal([]byte(`{"fields": [
		{"path": "spec.replicas", "before": 1, "after": 2}, {"path": "data", "hidden": true}, {"path": "spec.new", "after": {"a": "b"}},
		{"path": "data.file", "before": "one\ntwo\nthree\n", "after": "one\n2\nthree\n"}
	]}`), &c); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printFields(&out, &c); err != nil {
		t.Fatal(err)
	}
	want := `    - spec.replicas: 1
    + spec.replicas: 2
    ~ data: (not shown)
    + spec.new: {"a": "b"}
    ~ data.file, line 2:
      - two
      + 2
`
	if out.String() != want {
		t.Errorf("%s, want:\n%s", out.String(), want)
	}
	if got := c.what(false); got != `spec.replicas: 1 → 2; data; spec.new: (none) → {"a": "b"}; and 1 more` {
		t.Errorf("%q", got)
	}
}
