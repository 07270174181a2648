package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
)

// fleetOfTwo is a hub with the clusters oak and elm. Each has a kubelet. In namespace shop both
// have a Deployment web, with pods web-1 and web-2 in oak and web-1 in elm, each with the
// containers web and side. Elm also has a pod solo.
type fleetOfTwo struct {
	t        *testing.T
	hub      *testenv.Hub
	oak, elm *testenv.Server
	kubelets map[string]*testenv.Kubelet
}

func startFleetOfTwo(t *testing.T) *fleetOfTwo {
	t.Helper()
	dir := t.TempDir()
	f := &fleetOfTwo{t: t, oak: testenv.StartServer(t), elm: testenv.StartServer(t), kubelets: map[string]*testenv.Kubelet{}}
	var err error
	if f.hub, err = testenv.StartHub(dir, ownBinary(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.hub.Stop(); err != nil {
			t.Error(err)
		}
	})
	for name, server := range map[string]*testenv.Server{"oak": f.oak, "elm": f.elm} {
		f.kubelets[name] = testenv.StartKubelet(t, server.Config(), "n1")
		serveMetrics(t, server)
		kubeconfig := filepath.Join(dir, name)
		if err := os.WriteFile(kubeconfig, server.Kubeconfig(), 0o600); err != nil {
			t.Fatal(err)
		}
		mustRun(t, f, "cluster", "join", name, "--cluster-kubeconfig="+kubeconfig, "--timeout=10m")
		pods := []string{"web-1", "web-2"}
		if name == "elm" {
			pods = []string{"web-1", "solo"}
		}
		f.fill(server, pods)
	}
	for container, lines := range map[string]map[int]string{"oak/web-1/web": {1: "a", 4: "d"}, "oak/web-2/web": {2: "b"}, "elm/web-1/web": {3: "c"}, "elm/solo/web": {9: "alone"}} {
		cluster, of, _ := strings.Cut(container, "/")
		for _, second := range slices.Sorted(keysOf(lines)) {
			f.kubelets[cluster].Says(of, second, lines[second])
		}
	}
	return f
}

func keysOf(lines map[int]string) func(func(int) bool) {
	return func(yield func(int) bool) {
		for second := range lines {
			if !yield(second) {
				return
			}
		}
	}
}

// fill creates the objects of a cluster.
func (f *fleetOfTwo) fill(server *testenv.Server, pods []string) {
	f.t.Helper()
	c := kubernetes.NewForConfigOrDie(server.Config())
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	_, err := c.CoreV1().Namespaces().Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	must(err)
	_, err = c.CoreV1().ServiceAccounts("shop").Create(f.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(err)
	spec := corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web", Image: "shop/web:1"}, {Name: "side", Image: "shop/side:1"}}}
	labels := map[string]string{"app": "web"}
	template := *spec.DeepCopy()
	template.NodeName = ""
	_, err = c.AppsV1().Deployments("shop").Create(f.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template},
		},
	}, metav1.CreateOptions{})
	must(err)
	for _, name := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": strings.Split(name, "-")[0]}}, Spec: spec}
		pod, err = c.CoreV1().Pods("shop").Create(f.t.Context(), pod, metav1.CreateOptions{})
		must(err)
		pod.Status.Phase = corev1.PodRunning
		_, err = c.CoreV1().Pods("shop").UpdateStatus(f.t.Context(), pod, metav1.UpdateOptions{})
		must(err)
	}
}

// serveMetrics makes a cluster serve metrics of its node and of pod web-1.
func serveMetrics(t *testing.T, of *testenv.Server) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := func(kind string, items ...any) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": "metrics.k8s.io/v1beta1", "items": items})
		}
		use := func(cpu, memory string) map[string]any { return map[string]any{"cpu": cpu, "memory": memory} }
		switch r.URL.Path {
		case "/apis/metrics.k8s.io/v1beta1":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1","resources":[
				{"name":"nodes","singularName":"","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]},
				{"name":"pods","singularName":"","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]}]}`)
		case "/apis/metrics.k8s.io/v1beta1/nodes":
			list("NodeMetricsList", map[string]any{"metadata": map[string]any{"name": "n1"}, "usage": use("500m", "1Gi")})
		case "/apis/metrics.k8s.io/v1beta1/pods", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods":
			list("PodMetricsList", map[string]any{
				"metadata": map[string]any{"name": "web-1", "namespace": "shop"},
				"containers": []any{
					map[string]any{"name": "web", "usage": use("100m", "10Mi")}, map[string]any{"name": "side", "usage": use("20m", "5Mi")},
				},
			})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	c := kubernetes.NewForConfigOrDie(of.Config())
	// The API server creates the namespace only after it is ready.
	testenv.Eventually(t, "create the Service", testenv.Patience, func() error {
		_, err := c.CoreV1().Services("kube-system").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an earlier attempt had no answer
			return nil
		}
		return err
	})
	if _, err := aggregator.NewForConfigOrDie(of.Config()).ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics", Port: new(int32(port))},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// run runs a command against the hub.
func (f *fleetOfTwo) run(args ...string) (code int, out, errOut string) {
	return f.runWith("", args...)
}

func (f *fleetOfTwo) runWith(in string, args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	// Flags after -- belong to the command in the container.
	code = Main(append([]string{args[0], "--kubeconfig=" + f.hub.Kubeconfig()}, args[1:]...), strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

// prints runs a command until it succeeds with that output.
func (f *fleetOfTwo) prints(want string, args ...string) {
	f.t.Helper()
	testenv.Eventually(f.t, strings.Join(args, " "), testenv.Patience, func() error {
		code, out, errOut := f.run(args...)
		if diff := cmp.Diff(want, out); code != 0 || diff != "" {
			return fmt.Errorf("%d: %s%s", code, diff, errOut)
		}
		return nil
	})
}

// fails runs a command that must fail with that exit code and a text on stderr. It repeats the
// command while the hub or a cluster does not answer.
func (f *fleetOfTwo) fails(code int, want string, args ...string) {
	f.t.Helper()
	testenv.Eventually(f.t, strings.Join(args, " "), testenv.Patience, func() error {
		got, out, errOut := f.run(args...)
		if got == 0 && code != 0 {
			f.t.Fatalf("%s succeeds, want code %d:\n%s%s", strings.Join(args, " "), code, out, errOut)
		}
		if got != code || !strings.Contains(errOut, want) {
			return fmt.Errorf("code %d, want %d with %q:\n%s%s", got, code, want, out, errOut)
		}
		return nil
	})
}

// TestKubectlInTheFleet runs kubectl's commands on a fleet with real members.
func TestKubectlInTheFleet(t *testing.T) {
	f := startFleetOfTwo(t)
	f.prints("elm   solo\nelm   web-1\noak   web-1\noak   web-2\n", "get", "pods", "-n", "shop", "--no-headers",
		"-o", `custom-columns=A:.metadata.annotations.fleet\.orrery\.dev/cluster,B:.metadata.name`)
	t.Run("Get", f.get)
	t.Run("Describe", f.describe)
	t.Run("Logs", f.logs)
	t.Run("ExecAndAttach", f.sessions)
	t.Run("Top", f.top)
	t.Run("Taints", f.taints)
	t.Run("Completion", f.completion)
	t.Run("Promote", f.promote)
	t.Run("MistypedCluster", f.mistyped)
	t.Run("Tenant", f.tenant)
	t.Run("CtrlC", f.ctrlC)
	t.Run("ClusterAway", f.away)
}

func (f *fleetOfTwo) get(t *testing.T) {
	head := []string{"CLUSTER", "NAME"}
	for name, tc := range map[string]struct {
		args []string
		want [][]string
	}{
		"EveryCluster": {[]string{"deploy", "-n", "shop"}, [][]string{head, {"elm", "web"}, {"oak", "web"}}},
		"ByName":       {[]string{"deploy", "web", "-n", "shop"}, [][]string{head, {"elm", "web"}, {"oak", "web"}}},
		"BySlash":      {[]string{"deploy/web", "pod/solo", "-n", "shop"}, [][]string{head, {"elm", "deployment.apps/web"}, {"oak", "deployment.apps/web"}, {}, head, {"elm", "pod/solo"}}},
		"OneCluster":   {[]string{"pods", "-n", "shop", "-C", "oak"}, [][]string{head, {"oak", "web-1"}, {"oak", "web-2"}}},
		"Pattern":      {[]string{"pods", "-n", "shop", "-C", "e*"}, [][]string{head, {"elm", "solo"}, {"elm", "web-1"}}},
		"Labels":       {[]string{"pods", "-A", "-l", "app=solo"}, [][]string{{"NAMESPACE", "CLUSTER"}, {"shop", "elm"}}},
		"Fields":       {[]string{"pods", "-n", "shop", "--field-selector", "metadata.name=web-2"}, [][]string{head, {"oak", "web-2"}}},
		"Live":         {[]string{"pods", "-n", "shop", "-C", "oak", "--live"}, [][]string{{"NAME", "READY"}, {"web-1", "0/2"}, {"web-2", "0/2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Eventually(t, "the table", testenv.Patience, func() error {
				code, out, errOut := f.run(append([]string{"get"}, tc.args...)...)
				var got [][]string
				for line := range strings.Lines(out) {
					words := strings.Fields(line)
					got = append(got, words[:min(len(words), 2)])
				}
				if diff := cmp.Diff(tc.want, got); code != 0 || diff != "" {
					return fmt.Errorf("%d: %s%s", code, diff, errOut)
				}
				return nil
			})
		})
	}
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && strings.Count(out, "\n") == 5
	}, "get", "pods", "-n", "shop", "-o", "wide", "-C", "oak,elm")
	// The output is a list, also for an object of one cluster. With a named cluster it is the
	// object.
	for _, tc := range [][]string{
		{"deploy", "web", "{range .items[*]}{.metadata.name};{end}", "web;web;"}, {"pod", "solo", "{.items[*].metadata.name}", "solo"}, {"pod", "solo", "{.metadata.name}", "solo", "-C", "elm"},
	} {
		args := append([]string{"get", tc[0], tc[1], "-n", "shop", "-o", "jsonpath=" + tc[2]}, tc[4:]...)
		runUntil(t, f.run, func(code int, out, _ string) bool { return code == 0 && out == tc[3] }, args...)
	}
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && out == strings.Repeat("deployment.apps/web\n", 2)
	}, "get", "deploy", "web", "-n", "shop", "-o", "name")
	f.fails(1, `Error from server (NotFound): pods "nil" not found`, "get", "pods", "web-2", "nil", "-n", "shop")
	f.fails(1, `Error from server (NotFound): pods "nil" not found`, "get", "pods", "nil", "-n", "shop", "-C", "oak")
	f.fails(0, "", "get", "pods", "nil", "-n", "shop", "--ignore-not-found")
	f.fails(0, "No resources found in none namespace.", "get", "pods", "-n", "none")
	f.fails(1, `no type "unicorns"`, "get", "unicorns", "x")
	f.fails(1, `unicorns`, "get", "unicorns")
	f.fails(1, `no cluster has a name like "x*"; the fleet has elm, oak`, "get", "pods", "-C", "x*")
	f.fails(2, "--live: name the cluster", "get", "pods", "--live")
	f.fails(2, "name the type", "get")
	f.fails(2, "name every object as TYPE/NAME", "get", "deploy/web", "web")

	// A watch shows existing objects, and new ones.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		root := newRoot(streams{in: strings.NewReader(""), out: writer, err: io.Discard})
		root.SetArgs([]string{"get", "cm", "note", "-n", "shop", "-w", "--no-headers", "--kubeconfig=" + f.hub.Kubeconfig()})
		ended <- root.ExecuteContext(ctx)
		writer.Close()
	}()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	for cluster, server := range map[string]*testenv.Server{"elm": f.elm, "oak": f.oak} {
		if _, err := kubernetes.NewForConfigOrDie(server.Config()).CoreV1().ConfigMaps("shop").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "note"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		line := <-lines
		if words := strings.Fields(line); len(words) < 2 || words[0] != cluster || words[1] != "note" {
			t.Errorf("watch: %q", line)
		}
	}
	cancel()
	for range lines { // lines about the end
	}
	<-ended
}

func (f *fleetOfTwo) describe(t *testing.T) {
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && strings.HasPrefix(out, "==> cluster elm <==\nName:") && strings.Contains(out, "\n==> cluster oak <==\nName:") && strings.Count(out, "shop/web:1") == 2
	}, "describe", "deploy/web", "-n", "shop")
	for _, args := range [][]string{{"pod", "solo"}, {"pods", "so"}, {"pods", "-l", "app=solo"}, {"pod/solo", "-C", "elm"}, {"pods", "solo", "-C", "e*"}} {
		runUntil(t, f.run, func(code int, out, _ string) bool {
			return code == 0 && strings.HasPrefix(out, "Name:         solo\n") && !strings.Contains(out, "==>") && strings.Contains(out, "Node:         n1")
		}, append([]string{"describe", "-n", "shop"}, args...)...)
	}
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && strings.Count(out, "Namespace:    shop") == 2
	}, "describe", "pods", "-n", "shop", "-C", "oak")
	f.fails(1, `pods "nil" not found in any cluster`, "describe", "pod/nil", "-n", "shop")
	f.fails(1, `Error from server (NotFound): pods "solo" not found`, "describe", "pod", "solo", "-n", "shop", "-C", "oak")
	// Names that no cluster has are reported, and the others described.
	failsUntil(t, f.run, func(code int, out, errOut string) bool {
		return code == 1 && strings.HasPrefix(out, "Name:         solo\n") && strings.Contains(errOut, `pods "nil" not found in any cluster`) && strings.Contains(errOut, `pods "nul" not found in any cluster`)
	}, "describe", "pods", "nil", "solo", "nul", "-n", "shop")
	failsUntil(t, f.run, func(code int, out, errOut string) bool {
		return code == 1 && strings.Count(out, "==> cluster ") == 2 && strings.Count(out, "shop/web:1") == 2 && strings.Contains(errOut, `pods "nil" not found in any cluster`)
	}, "describe", "deploy/web", "pod/nil", "-n", "shop")
	f.fails(2, "name the type", "describe")
	f.fails(2, "--selector", "describe", "pod", "web", "-l", "a=b")
}

func (f *fleetOfTwo) logs(t *testing.T) {
	f.prints("[oak/web-1] a\n[oak/web-2] b\n[elm/web-1] c\n[oak/web-1] d\n", "logs", "deploy/web", "-n", "shop")
	f.prints("[oak/web-1] a\n[oak/web-2] b\n[oak/web-1] d\n", "logs", "deploy", "web", "-n", "shop", "-C", "oak")
	f.prints("a\nb\nc\nd\n", "logs", "deploy/web", "-n", "shop", "--prefix=false")
	f.prints("alone\n", "logs", "solo", "-n", "shop")
	f.prints("[elm/solo] alone\n", "logs", "pod/solo", "-n", "shop", "--prefix")
	f.prints("2026-01-02T03:04:09Z alone\n", "logs", "solo", "-n", "shop", "--timestamps")
	f.prints("[oak/web-2] b\n[elm/web-1] c\n[oak/web-1] d\n", "logs", "-l", "app=web", "-n", "shop", "--tail", "1")
	if got := f.kubelets["oak"].Asked(); got.Get("tailLines") != "1" {
		t.Errorf("asked %v", got)
	}
	f.prints("alone\n", "logs", "solo", "-n", "shop", "--since", "1500ms", "--limit-bytes", "100", "-p", "-c", "web")
	if got := f.kubelets["elm"].Asked(); got.Get("sinceSeconds") != "2" || got.Get("limitBytes") != "100" || got.Get("previous") != "true" {
		t.Errorf("asked %v", got)
	}
	f.prints("alone\n", "logs", "solo", "-n", "shop", "--since-time", "2026-01-01T00:00:00Z")
	if got := f.kubelets["elm"].Asked(); got.Get("sinceTime") != "2026-01-01T00:00:00Z" {
		t.Errorf("asked %v", got)
	}

	// A log that cannot be read is reported, and the others are printed.
	failsUntil(t, f.run, func(code int, out, errOut string) bool {
		return code == 1 && out == "[oak/web-1/web] a\n[oak/web-2/web] b\n[elm/web-1/web] c\n[oak/web-1/web] d\n" &&
			strings.Contains(errOut, "container side of pod web-1 in cluster elm") && strings.Contains(errOut, "waiting to start") && strings.Contains(errOut, "3 of 6 logs failed")
	}, "logs", "deploy/web", "-n", "shop", "--all-containers")
	failsUntil(t, f.run, func(code int, out, errOut string) bool {
		return code == 1 && out == "alone\n" && strings.Contains(errOut, `error: cluster oak: Error from server (NotFound): pods "solo" not found`)
	}, "logs", "solo", "-n", "shop", "-C", "elm,oak")
	f.fails(1, `pods "nil" not found in any cluster that you see`, "logs", "nil", "-n", "shop")
	f.fails(1, "these are 3 containers, and --max-log-requests is 2", "logs", "deploy/web", "-n", "shop", "--max-log-requests", "2")
	f.fails(0, "No pods found in shop namespace.", "logs", "-l", "app=none", "-n", "shop")
	f.fails(2, "want a pod", "logs")
	f.fails(2, "--selector: it is instead of a name", "logs", "web", "-l", "a=b")
	f.fails(2, "--since and --since-time", "logs", "web", "--since=1s", "--since-time=2026-01-01T00:00:00Z")
	f.fails(2, "--since-time", "logs", "web", "--since-time=yesterday")

	// With -f, lines are printed as they arrive until the command is ended.
	testenv.Eventually(t, "the logs are followed", testenv.Patience, func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		follow := &counted{want: 4, reached: cancel}
		root := newRoot(streams{in: strings.NewReader(""), out: follow, err: io.Discard})
		root.SetArgs([]string{"logs", "deploy/web", "-n", "shop", "-f", "--kubeconfig=" + f.hub.Kubeconfig()})
		if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("follow: %w", err)
		}
		lines := strings.Split(strings.TrimSpace(follow.text.String()), "\n")
		slices.Sort(lines)
		if diff := cmp.Diff([]string{"[elm/web-1] c", "[oak/web-1] a", "[oak/web-1] d", "[oak/web-2] b"}, lines); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// counted calls a function when that many lines were written.
type counted struct {
	text    bytes.Buffer
	want    int
	reached func()
}

func (c *counted) Write(b []byte) (int, error) {
	c.text.Write(b)
	if bytes.Count(c.text.Bytes(), []byte("\n")) >= c.want {
		c.reached()
	}
	return len(b), nil
}

func (f *fleetOfTwo) sessions(t *testing.T) {
	for _, tc := range []struct {
		in, out string
		args    []string
	}{
		{"", "date -u in shop/solo/web\n", []string{"exec", "solo", "-n", "shop", "-c", "web", "--", "date", "-u"}},
		{"", "date in shop/web-1/side\n", []string{"exec", "pod/web-1", "-n", "shop", "-C", "oak", "-c", "side", "--", "date"}},
		{"hello", "hello", []string{"exec", "solo", "-n", "shop", "-c", "web", "-i", "--", "cat"}},
		{"", "attached to shop/solo/web\n", []string{"attach", "solo", "-n", "shop", "-c", "web", "-q"}},
	} {
		run := func(args ...string) (code int, out, errOut string) { return f.runWith(tc.in, args...) }
		runUntil(t, run, func(code int, out, _ string) bool { return code == 0 && out == tc.out }, tc.args...)
	}
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && out == "date in shop/web-1/web\n"
	}, "exec", "deploy/web", "-n", "shop", "-C", "elm", "-c", "web", "--", "date")
	// The exit code is that of the command.
	failsUntil(t, f.run, func(code int, _, errOut string) bool {
		return code == 3 && errOut == "command terminated with exit code 3\n"
	}, "exec", "solo", "-n", "shop", "-c", "web", "--", "false")
	f.fails(1, "web-1 is in 2 clusters, elm, oak: name one with --cluster (-C)", "exec", "web-1", "-n", "shop", "--", "date")
	f.fails(1, "deploy/web is in 2 clusters, elm, oak", "attach", "deploy/web", "-n", "shop")
	f.fails(1, `pods "nil" not found in any cluster`, "exec", "nil", "-n", "shop", "--", "date")
	f.fails(2, "after -- the command", "exec", "solo")
	f.fails(2, "exactly one argument", "attach")
}

func (f *fleetOfTwo) top(t *testing.T) {
	f.prints("CLUSTER   NAME    CPU(cores)   MEMORY(bytes)\nelm       web-1   120m         15Mi\noak       web-1   120m         15Mi\n", "top", "pods", "-n", "shop")
	f.prints("oak   shop   web-1   web    100m       10Mi\noak   shop   web-1   side   20m        5Mi\n                            ________   ________\n                            120m       15Mi\n",
		"top", "pods", "-A", "-C", "oak", "--containers", "--sum", "--no-headers", "--sort-by", "cpu")
	f.prints("CLUSTER   NAME   CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)\nelm       n1     500m         25%      1024Mi          25%\noak       n1     500m         25%      1024Mi          25%\n", "top", "nodes")
	f.prints("elm   n1   500m   12%   1024Mi   12%\n", "top", "node", "n1", "-C", "e*", "--show-capacity", "--no-headers")
	f.fails(1, `"nil" not found`, "top", "pod", "nil", "-n", "shop")
	f.fails(2, `--sort-by "name": want cpu or memory`, "top", "nodes", "--sort-by", "name")
	f.fails(2, "at most one argument", "top", "pods", "a", "b")
}

func (f *fleetOfTwo) taints(t *testing.T) {
	taints := func() (all []string) {
		t.Helper()
		var c clusterv1alpha1.Cluster
		if err := json.Unmarshal([]byte(mustRun(t, f, "cluster", "describe", "oak", "-o", "json")), &c); err != nil {
			t.Fatal(err)
		}
		for _, taint := range c.Spec.Taints {
			all = append(all, taint.ToString())
			if (taint.Effect == corev1.TaintEffectNoExecute) != (taint.TimeAdded != nil) {
				t.Errorf("%s was added at %v", taint.ToString(), taint.TimeAdded)
			}
		}
		return all
	}
	for _, step := range []struct {
		args []string
		out  string
		want []string
	}{
		{[]string{"cordon", "oak", "--dry-run=client"}, "cluster/oak cordoned (dry run)\n", nil},
		{[]string{"cordon", "oak", "--dry-run=server"}, "cluster/oak cordoned (server dry run)\n", nil},
		{[]string{"cordon", "oak"}, "cluster/oak cordoned\n", []string{"cluster.orrery.dev/unschedulable:NoSchedule"}},
		{[]string{"cordon", "oak"}, "cluster/oak already cordoned\n", []string{"cluster.orrery.dev/unschedulable:NoSchedule"}},
		{[]string{"taint", "cluster", "oak", "disk=old:NoSchedule", "gpu:NoExecute"}, "cluster/oak tainted\n", []string{"cluster.orrery.dev/unschedulable:NoSchedule", "disk=old:NoSchedule", "gpu:NoExecute"}},
		{[]string{"uncordon", "--all"}, "cluster/elm already uncordoned\ncluster/oak uncordoned\n", []string{"disk=old:NoSchedule", "gpu:NoExecute"}},
		{[]string{"taint", "clusters", "oak", "disk=new:NoSchedule", "--overwrite"}, "cluster/oak tainted\n", []string{"disk=new:NoSchedule", "gpu:NoExecute"}},
		{[]string{"taint", "cluster", "oak", "gpu:NoExecute-", "disk-"}, "cluster/oak untainted\n", nil},
	} {
		if out := mustRun(t, f, step.args...); out != step.out {
			t.Errorf("%q printed %q", step.args, out)
		}
		if diff := cmp.Diff(step.want, taints()); diff != "" {
			t.Errorf("%q: %s", step.args, diff)
		}
	}
	mustRun(t, f, "taint", "cluster", "oak", "a=b:NoSchedule")
	f.fails(1, `error: cluster oak: it has the taint "a=b:NoSchedule" already: --overwrite gives it another value`, "taint", "cluster", "oak", "a=c:NoSchedule")
	f.fails(1, `error: cluster elm: it has no taint "a"`, "taint", "cluster", "--all", "a-")
	f.fails(1, "error: no cluster is named ash; the fleet has elm, oak", "cordon", "ash")
	f.fails(2, "want names of clusters, or --selector, or --all", "cordon")
	f.fails(2, `effect "Never": want NoSchedule, PreferNoSchedule or NoExecute`, "taint", "cluster", "oak", "a=b:Never")
	if got := taints(); got != nil { // the taint was removed in its cluster
		t.Errorf("taints %v", got)
	}
}

// mustRun runs a command that must succeed, and returns its output.
func mustRun(t *testing.T, f *fleetOfTwo, args ...string) string {
	t.Helper()
	return succeeds(t, f.run, args...)
}

func (f *fleetOfTwo) completion(t *testing.T) {
	t.Setenv("KUBECONFIG", f.hub.Kubeconfig())
	for _, tc := range []struct {
		typed []string
		want  string // lines
	}{
		{[]string{"get", "deploym"}, "deployments"},
		{[]string{"get", "pods,deploym"}, "pods,deployments"},
		{[]string{"get", "deployments", "-n", "shop", ""}, "web"},
		{[]string{"get", "-n", "shop", "pods", "web-1", "w"}, "web-2"},
		{[]string{"get", "-n", "shop", "pods/so"}, "pods/solo"},
		{[]string{"get", "-n", "shop", "-C", "oak", "pods", ""}, "web-1 web-2"},
		{[]string{"describe", "pods/so", "-n", "shop", "-C", ""}, "elm oak"},
		{[]string{"get", "pods", "-C", "oak,"}, "oak,elm oak,oak"},
		{[]string{"get", "pods", "-n", "sh"}, "shop"},
		{[]string{"logs", "-n", "shop", "so"}, "solo"},
		{[]string{"logs", "-n", "shop", "deploy/w"}, "deploy/web"},
		{[]string{"exec", "-n", "shop", "deploy/w"}, "deploy/web"},
		{[]string{"top", "pods", "-n", "shop", "s"}, "solo"},
		{[]string{"cordon", "elm", ""}, "oak"},
		{[]string{"taint", "cluster", "o"}, "oak"},
		{[]string{"graph", "secret/x", "--cluster", "e"}, "elm"},
		{[]string{"get", "pods", "nil", "-o", "jsonpath-"}, "jsonpath-as-json jsonpath-file"},
	} {
		testenv.Eventually(t, "the completion", testenv.Patience, func() error {
			var out bytes.Buffer
			Main(append([]string{"__complete"}, tc.typed...), strings.NewReader(""), &out, io.Discard)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := strings.Join(lines[:len(lines)-1], " "); got != tc.want {
				return fmt.Errorf("%q completes to %q, want %q", tc.typed, got, tc.want)
			}
			return nil
		})
	}
	// An error offers no completions, and is not printed.
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out, errOut bytes.Buffer
	if Run("/usr/bin/kubectl_complete-orrery", []string{"get", "pods", "-C", ""}, strings.NewReader(""), &out, &errOut); out.String() != ":1\n" {
		t.Errorf("without a hub: %q %q", &out, &errOut)
	}
}

func (f *fleetOfTwo) promote(t *testing.T) {
	deployments := map[string]appsclient.DeploymentInterface{
		"oak": kubernetes.NewForConfigOrDie(f.oak.Config()).AppsV1().Deployments("shop"), "elm": kubernetes.NewForConfigOrDie(f.elm.Config()).AppsV1().Deployments("shop"),
	}
	web := func(cluster string) (d *appsv1.Deployment) {
		t.Helper()
		testenv.Eventually(t, "read web in "+cluster, testenv.Patience, func() (err error) {
			d, err = deployments[cluster].Get(t.Context(), "web", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return err
		})
		return d
	}
	nothing := func() {
		t.Helper()
		for _, kind := range []string{"PropagationPolicy", "ClusterPropagationPolicy"} {
			testenv.Eventually(t, "list the policies", testenv.Patience, func() error {
				all, err := f.hub.ListKind(t.Context(), "policy.orrery.dev/v1alpha1", kind, "")
				if len(all) > 0 {
					t.Errorf("the hub has %d %s", len(all), kind)
				}
				return err
			})
		}
	}
	before := web("oak")

	// A refused or incomplete command creates nothing.
	f.fails(1, "deploy/web is in 2 clusters, elm, oak: name one", "promote", "deploy/web", "-n", "shop")
	f.fails(1, "work.orrery.dev/allow-takeover=true", "promote", "deploy/web", "-n", "shop", "-C", "oak")
	f.fails(1, `deployments.apps "nil" not found`, "promote", "deploy/nil", "-n", "shop", "-C", "oak")
	f.fails(2, "exactly one object", "promote", "web")
	out := mustRun(t, f, "promote", "deploy/web", "-n", "shop", "-C", "oak", "--cluster-policy", "--dry-run")
	for _, part := range []string{"kind: Namespace", "kind: ClusterPropagationPolicy", "name: deployment-shop-web", "clusterNames:\n      - oak", "kind: Deployment", "image: shop/web:1"} {
		if !strings.Contains(out, part) {
			t.Errorf("a dry run prints no %q: %s", part, out)
		}
	}
	if strings.Contains(out, string(before.UID)) || strings.Contains(out, "managedFields") || strings.Contains(out, "observedGeneration") {
		t.Errorf("a dry run prints what the cluster made: %s", out)
	}
	nothing()

	// A run that was interrupted after its first step is continued.
	if out, err := f.hub.Kubectl("create", "namespace", "shop"); err != nil {
		t.Fatal(out)
	}
	if out, err := f.hub.Kubectl("label", "namespace", "shop", "work.orrery.dev/allow-takeover=true"); err != nil {
		t.Fatal(out)
	}
	p := &promoting{reaching: reaching{streams: streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}, hub: hubFlags{kubeconfig: f.hub.Kubeconfig()}, namespace: "shop"}}
	h, err := p.hub.api(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(h.config, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.plan(t.Context(), h, c, "oak", "deploy/web")
	if err != nil {
		t.Fatal(err)
	}
	f.competingPolicies(t, c, m)
	nothing()
	m.ours.Spec.ConflictResolution = policyv1alpha1.ConflictOverwrite
	if err := c.Create(t.Context(), m.policy); err != nil {
		t.Fatal(err)
	}
	f.fails(1, "the hub has another PropagationPolicy deployment-web", "promote", "deploy/web", "-n", "shop", "-C", "oak")
	if out, err := f.hub.Kubectl("-n", "shop", "patch", "propagationpolicy/deployment-web", "--type=merge", `--patch={"spec":{"conflictResolution":"Abort"}}`); err != nil {
		t.Fatal(out)
	}
	out = mustRun(t, f, "promote", "deploy/web", "-n", "shop", "-C", "oak", "--timeout=10m")
	want := "propagationpolicy.policy.orrery.dev/deployment-web is there\ndeployment.apps/web created\nDeployment web is placed in cluster oak, which keeps it as it was\n"
	if out != want {
		t.Errorf("the rest printed %q", out)
	}
	if out = mustRun(t, f, "promote", "deploy", "web", "-n", "shop", "-C", "oak", "--timeout=10m"); !strings.HasSuffix(out, "deployment.apps/web is there\nDeployment web is placed in cluster oak\n") {
		t.Errorf("again printed %q", out)
	}
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && strings.HasPrefix(out, "Deployment shop/web: it is placed in 1 cluster by PropagationPolicy shop/deployment-web") && strings.Contains(out, "\noak       yes ")
	}, "why", "deploy/web", "-n", "shop")
	f.fails(1, `deployments.apps "nil" not found in namespace "shop" of the hub: name another with --namespace`, "why", "deploy/nil", "-n", "shop")
	f.fails(2, "exactly one object", "why", "deploy", "-n", "shop")
	f.fails(1, "the hub has another PropagationPolicy deployment-web: give this one a name with --policy-name", "promote", "deploy/web", "-n", "shop", "-C", "elm")
	f.fails(1, `the hub has the Deployment "web" already`, "promote", "deploy/web", "-n", "shop", "-C", "elm", "--policy-name", "other")

	if _, err := kubernetes.NewForConfigOrDie(f.elm.Config()).CoreV1().ConfigMaps("shop").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out = mustRun(t, f, "promote", "cm/kept", "-n", "shop", "-C", "elm", "--cluster-policy", "--timeout=10m"); out != "clusterpropagationpolicy.policy.orrery.dev/configmap-shop-kept created\n"+
		"configmap/kept created\nConfigMap kept is placed in cluster elm, which keeps it as it was\n" {
		t.Errorf("of a ConfigMap: %q", out)
	}
	if out, err := f.hub.Kubectl("delete", "clusterpropagationpolicy/configmap-shop-kept"); err != nil {
		t.Fatal(out)
	}

	after := web("oak")
	if diff := cmp.Diff(before.Spec, after.Spec); diff != "" || after.UID != before.UID || after.Annotations[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginAdopted {
		t.Errorf("it runs on with %s and %v", diff, after.Annotations)
	}
	if other := web("elm"); other.Labels[workv1alpha2.BindingLabel] != "" {
		t.Errorf("the other cluster's was touched: %v", other.Labels)
	}

	// It stays when its template is deleted.
	if out, err := f.hub.Kubectl("-n", "shop", "delete", "deployment/web", "propagationpolicy/deployment-web"); err != nil {
		t.Fatal(out)
	}
	testenv.Eventually(t, "marks are gone", testenv.Patience, func() error {
		d := web("oak")
		if d.UID != before.UID || d.Labels[workv1alpha2.BindingLabel] != "" {
			return fmt.Errorf("%s %v", d.UID, d.Labels)
		}
		return nil
	})
	nothing()
}

// competingPolicies tests promotions while a competing policy exists. If the competing policy comes
// first, or the user may not list policies, the promotion creates nothing.
func (f *fleetOfTwo) competingPolicies(t *testing.T, c client.Client, m *promotion) {
	everywhere := policyv1alpha1.PropagationSpec{
		ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
		Priority:          1,
	}
	behind := *everywhere.DeepCopy()
	behind.Priority = 0
	inShop, ofAll := metav1.ObjectMeta{Namespace: "shop", Name: "rival"}, metav1.ObjectMeta{Name: "rival"}
	const namespaced, clusterWide = "PropagationPolicy rival selects it, too, and comes first", "ClusterPropagationPolicy rival selects it, too, and comes first"
	for name, tc := range map[string]struct {
		competing client.Object
		flag      string
		want      string // empty: our policy comes first
	}{
		"Namespaced":                    {&policyv1alpha1.PropagationPolicy{ObjectMeta: inShop, Spec: everywhere}, "--cluster-policy=false", namespaced},
		"NamespacedBehind":              {&policyv1alpha1.PropagationPolicy{ObjectMeta: inShop, Spec: behind}, "--cluster-policy=false", ""},
		"NamespacedBeforeClusterPolicy": {&policyv1alpha1.PropagationPolicy{ObjectMeta: inShop, Spec: behind}, "--cluster-policy", namespaced},
		"ClusterWide":                   {&policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: ofAll, Spec: everywhere}, "--cluster-policy", clusterWide},
		"ClusterWideBehind":             {&policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: ofAll, Spec: behind}, "--cluster-policy", ""},
		"ClusterWideBehindNamespaced":   {&policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: ofAll, Spec: everywhere}, "--cluster-policy=false", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.Create(t.Context(), tc.competing); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				testenv.Eventually(t, "delete the competing policy", testenv.Patience, func() error {
					return client.IgnoreNotFound(c.Delete(context.WithoutCancel(t.Context()), tc.competing))
				})
			})
			if tc.want == "" {
				mustRun(t, f, "promote", "deploy/web", "-n", "shop", "-C", "oak", tc.flag, "--dry-run")
				return
			}
			f.fails(1, tc.want, "promote", "deploy/web", "-n", "shop", "-C", "oak", tc.flag)
			made, err := f.hub.ListKind(t.Context(), "apps/v1", "Deployment", "")
			if err != nil || len(made) > 0 {
				t.Errorf("the hub has %d templates, %v", len(made), err)
			}
		})
	}

	config, err := f.hub.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = "nobody"
	nobody, err := client.New(config, client.Options{Scheme: hub.Scheme(), Mapper: c.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.first(t.Context(), nobody); err == nil || !strings.Contains(err.Error(), "the right to list propagationpolicies.policy.orrery.dev in namespace shop") {
		t.Errorf("who may not list policies is told: %v", err)
	}
}

// mistyped passes the name of a missing cluster to every command that takes one.
func (f *fleetOfTwo) mistyped(t *testing.T) {
	const want = "no cluster is named okk; the fleet has elm, oak"
	for path, c := range everyCommand {
		for _, args := range c.typos {
			args = append(strings.Fields(path), args...)
			runUntil(t, f.run, func(code int, out, errOut string) bool {
				if code == 0 || strings.Contains(errOut, `"http`) && wasAnswered(errOut) {
					t.Fatalf("%q: %d %s%s", args, code, out, errOut)
				}
				return code == 1 && strings.Count(errOut, want) == 1 && !strings.Contains(errOut, `"http`)
			}, args...)
		}
	}
	f.fails(1, "2 clusters are named, oak, okk: name one with --cluster (-C)", "exec", "web-1", "-n", "shop", "-C", "oak,okk", "--", "date")
	f.fails(1, "2 clusters are named, oak, okk", "promote", "deploy/web", "-n", "shop", "-C", "oak,okk")
}

// tenant tests a user with rights in one namespace of the hub, and none in clusters.
func (f *fleetOfTwo) tenant(t *testing.T) {
	for _, args := range [][]string{
		{"create", "namespace", "team-a"},
		{"-n", "team-a", "create", "serviceaccount", "dev"},
		{"-n", "team-a", "create", "rolebinding", "dev", "--clusterrole=edit", "--serviceaccount=team-a:dev"},
	} {
		if out, err := f.hub.Kubectl(args...); err != nil {
			t.Fatal(out)
		}
	}
	token, err := f.hub.Kubectl("-n", "team-a", "create", "token", "dev")
	if err != nil {
		t.Fatal(token)
	}
	config, err := clientcmd.LoadFromFile(f.hub.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}
	}
	kubeconfig := filepath.Join(t.TempDir(), "tenant")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, out, errOut string) {
		var o, e bytes.Buffer
		code = Main(append([]string{args[0], "--kubeconfig=" + kubeconfig}, args[1:]...), strings.NewReader(""), &o, &e)
		return code, o.String(), e.String()
	}
	const as = `, as user "system:serviceaccount:team-a:dev"; its ClusterRole `
	for command, want := range map[string]string{
		"cluster list":                         "you may not list clusters.cluster.orrery.dev on the hub" + as + "view",
		"cluster unjoin oak":                   `you may not get clusters.cluster.orrery.dev "oak" on the hub` + as + "view",
		"api-resources":                        "you may not list clusters.cluster.orrery.dev on the hub" + as + "view",
		"logs web-1 -n team-a -C oak":          "you may not get clusters/proxy of cluster oak on the hub" + as + "orrery:proxy",
		"describe deploy/web -n team-a -C oak": "you may not get clusters/proxy of cluster oak on the hub" + as + "orrery:proxy",
		"exec web-1 -n team-a -C oak -- date":  "you may not get clusters/proxy of cluster oak on the hub" + as + "orrery:proxy",
		"promote deploy/web -n team-a -C oak":  "you may not get clusters/proxy of cluster oak on the hub" + as + "orrery:proxy",
		"cordon oak":                           `you may not get clusters.cluster.orrery.dev "oak" on the hub` + as + "view",
		"get pods -n shop":                     "you may not list pods in namespace shop on the hub",
	} {
		// The hub may not have the role in its cache yet.
		runUntil(t, run, func(code int, out, errOut string) bool {
			if code == 0 || saysNone.MatchString(out+errOut) || strings.Contains(errOut, `"http`) && wasAnswered(errOut) {
				t.Fatalf("%s: %d %s%s", command, code, out, errOut)
			}
			return code == 1 && strings.Count(errOut, want) == 1 && !strings.Contains(errOut, `"http`)
		}, strings.Fields(command)...)
	}
	// One warning names all types that are shown only in part.
	runUntil(t, run, func(code int, _, errOut string) bool {
		return code == 0 && strings.Count(errOut, "you may list them on the hub are shown: team-a") == 1 && strings.Count(errOut, "you may not list them") == 1
	}, "search", "e")
	// A caller who may not list clusters learns neither their names nor whether there is one. A
	// diff fails earlier, because the namespace is new.
	for path, c := range everyCommand {
		for _, args := range c.typos {
			args = append(strings.Fields(path), args...)
			runUntil(t, run, func(code int, out, errOut string) bool {
				if code == 0 || strings.Contains(out+errOut, "elm") {
					t.Fatalf("%q: %d %s%s", args, code, out, errOut)
				}
				return code == 1 && (path == "diff" || strings.Contains(errOut, "you may not"))
			}, args...)
		}
	}
}

// ctrlC ends a watch, as a shell does.
func (f *fleetOfTwo) ctrlC(t *testing.T) {
	testenv.Eventually(t, "a watch shows something, and Ctrl-C ends it", testenv.Patience, func() error {
		cmd := exec.Command(ownBinary(t), "get", "pods", "-n", "shop", "-C", "oak", "-w", "--kubeconfig="+f.hub.Kubeconfig())
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() { // the hub or oak may not answer for a moment
			_ = cmd.Wait()
			if errOut.Len() == 0 {
				t.Fatalf("a watch shows nothing, and ends with code %d", cmd.ProcessState.ExitCode())
			}
			return fmt.Errorf("a watch shows nothing: %s", errOut.String())
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // lines before the end
		}
		_ = cmd.Wait() // the exit code is checked below
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Fatalf("a watch after Ctrl-C: code %d, %q", code, errOut.String())
		}
		if errOut.Len() > 0 { // the watch was disturbed before that
			return fmt.Errorf("a watch after Ctrl-C: %q", errOut.String())
		}
		return nil
	})
}

// away is the last test: elm does not answer any more.
func (f *fleetOfTwo) away(t *testing.T) {
	f.elm.Signal(t, syscall.SIGSTOP)
	t.Cleanup(func() { f.elm.Signal(t, syscall.SIGCONT) })
	testenv.Eventually(t, "elm is away", testenv.Patience, func() error {
		code, out, errOut := f.run("logs", "deploy/web", "-n", "shop")
		if code != 1 || out != "[oak/web-1] a\n[oak/web-2] b\n[oak/web-1] d\n" || !strings.Contains(errOut, `error: cluster elm: `) || !strings.Contains(errOut, "1 of 3 logs failed") {
			return fmt.Errorf("%d %q %s", code, out, errOut)
		}
		return nil
	})
	testenv.Eventually(t, "elm is known to be away", testenv.Patience, func() error {
		code, out, errOut := f.run("get", "deploy", "web", "-n", "shop")
		if code != 0 || strings.Count(out, "web") != 2 || !strings.Contains(out, "LAST SEEN") || !strings.Contains(errOut, "elm") {
			return fmt.Errorf("%d %s%s", code, out, errOut)
		}
		return nil
	})
	failsUntil(t, f.run, func(code int, out, errOut string) bool {
		return code == 1 && strings.Contains(out, "==> cluster oak <==") && strings.Contains(errOut, "error: cluster elm: ")
	}, "describe", "deploy/web", "-n", "shop")
}
