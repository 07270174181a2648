package addon

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/testenv"
)

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// ends checks that wait ends with one error that has all parts when its time is over. The time
// begins short, and grows while a busy machine comes to nothing in it.
func ends(t *testing.T, wait func(context.Context) error, parts ...string) {
	t.Helper()
	for brief := 300 * time.Millisecond; ; brief *= 2 {
		err := wait(within(t, brief))
		if err != nil && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(err.Error(), part) }) {
			return
		}
		if err == nil || brief > time.Minute {
			t.Fatalf("got error %v, want one with all of %q", err, parts)
		}
	}
}

// group returns a group with the objects of a manifest, in its own namespace.
func group(t *testing.T, manifest string) Group {
	t.Helper()
	ns := testenv.Namespace(t, testenv.Config(0))
	return Group{Name: ns, Namespace: ns, Objects: parsed(t, manifest)}
}

func parsed(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	all, err := manifest.Parse([]byte(text), yaml.YAMLToJSONStrict)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func mustApply(t *testing.T, cfg *rest.Config, g Group) int {
	t.Helper()
	changed, err := Apply(within(t, testenv.Patience), cfg, g)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// counted returns a config that counts reads and writes.
func counted(cfg *rest.Config, writes, reads *atomic.Int64) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(transport.WrapperFunc(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				reads.Add(1)
			} else {
				writes.Add(1)
			}
			return next.RoundTrip(r)
		})
	}))
	return cfg
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCluster applies the objects of a whole cluster to an API server.
func TestCluster(t *testing.T) {
	in := input(func(in *Input) {
		in.Spec.Addons = []clusterv1alpha1.Addon{
			{Name: "web", Namespace: "web", Chart: &clusterv1alpha1.Chart{Path: webChart}},
			{Name: "widgets", YAML: []string{"testdata/crd.yaml"}},
		}
		in.Spec.Network.KubeServiceCIDR = "10.96.0.0/16" // that of the server
	})
	groups, err := Objects(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	cfg := testenv.Config(0)
	total := 0
	for _, g := range groups {
		changed := mustApply(t, cfg, g)
		if changed != len(g.Objects) {
			t.Errorf("%s: %d objects were changed, want all %d", g.Name, changed, len(g.Objects))
		}
		total += changed
	}
	// The random parts of the chart are different now.
	if groups, err = Objects(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	var writes, reads atomic.Int64
	for _, g := range groups {
		if changed := mustApply(t, counted(cfg, &writes, &reads), g); changed != 0 {
			t.Errorf("%s: %d objects were changed again", g.Name, changed)
		}
	}
	if writes.Load() != 0 {
		t.Errorf("the second time there were %d writes", writes.Load())
	}
	reads.Store(0)
	changes, err := Observe(t.Context(), counted(cfg, &writes, &reads), groups)
	if err != nil || len(changes) > 0 {
		t.Errorf("Observe found %v, %v", changes, err)
	}
	if int(reads.Load()) >= total {
		t.Errorf("%d objects were observed by %d requests: one per kind is enough", total, reads.Load())
	}
	if removed, err := Prune(t.Context(), cfg, groups); err != nil || len(removed) > 0 {
		t.Errorf("Prune removed %v, %v", removed, err)
	}
	// Without the add-ons, their objects are removed, except for kinds that may have content of
	// others.
	removed, err := Prune(t.Context(), cfg, groups[:3])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(removed)
	want := []string{
		"ConfigMap kube-system/widgets", "ConfigMap web/before-1", "ConfigMap web/before-2", "Deployment web/web",
		"Gadget web/web", "Job web/after", "Secret web/web", "Widget one",
	}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Error(diff)
	}
	if changes, err := Observe(t.Context(), cfg, groups[:3]); err != nil || len(changes) > 0 {
		t.Errorf("after Prune, Observe found %v, %v", changes, err)
	}
}

const configs = `
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {x: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b}
data: {x: "1"}
`

func TestApplyRepairs(t *testing.T) {
	cfg := testenv.Config(0)
	client := kubernetes.NewForConfigOrDie(cfg)
	cases := map[string]struct {
		// disturb changes applied objects, or the group.
		disturb func(t *testing.T, g *Group)
		observe []string
		changed int
	}{
		"Nothing": {func(*testing.T, *Group) {}, nil, 0},
		"Deleted": {func(t *testing.T, g *Group) {
			if err := client.CoreV1().ConfigMaps(g.Namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, []string{"add ConfigMap NS/a"}, 1},
		"OurFieldChanged": {func(t *testing.T, g *Group) { setData(t, client, g.Namespace, "a", "x", "2") }, []string{"change ConfigMap NS/a"}, 1},
		// Fields of others stay.
		"FieldOfOthersAdded": {func(t *testing.T, g *Group) { setData(t, client, g.Namespace, "a", "y", "2") }, nil, 0},
		"LabelTaken": {func(t *testing.T, g *Group) {
			patch(t, client, g.Namespace, "a", `{"metadata": {"labels": {"lifecycle.orrery.dev/group": null}}}`)
		}, []string{"add ConfigMap NS/a"}, 1},
		"DesiredChanged": {func(t *testing.T, g *Group) {
			g.Objects = parsed(t, strings.Replace(configs, `x: "1"`, `x: "3"`, 1))
		}, []string{"change ConfigMap NS/a"}, 1},
		"DesiredAdded": {func(t *testing.T, g *Group) {
			g.Objects = append(g.Objects, parsed(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: c}\n")...)
		}, []string{"add Secret NS/c"}, 1},
		"InventoryLost": {func(t *testing.T, g *Group) {
			err := client.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), inventoryPrefix+g.Name, metav1.DeleteOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}, nil, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := group(t, configs)
			mustApply(t, cfg, g)
			tc.disturb(t, &g)
			want := make([]string, len(tc.observe))
			for i, s := range tc.observe {
				want[i] = strings.ReplaceAll(s, "NS", g.Namespace)
			}
			got := observe(t, cfg, g)
			if !slices.Equal(want, got) {
				t.Errorf("Observe found %v, want %v", got, want)
			}
			if changed := mustApply(t, cfg, g); changed != tc.changed {
				t.Errorf("%d objects were changed, want %d", changed, tc.changed)
			}
			if changed := mustApply(t, cfg, g); changed != 0 {
				t.Errorf("%d objects were changed again", changed)
			}
			if got := observe(t, cfg, g); len(got) > 0 {
				t.Errorf("after Apply, Observe found %v", got)
			}
			for _, o := range g.Objects {
				if o.GetKind() != "ConfigMap" {
					continue
				}
				live, err := client.CoreV1().ConfigMaps(g.Namespace).Get(t.Context(), o.GetName(), metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if want := at(t, o, "data", "x"); live.Data["x"] != want {
					t.Errorf("ConfigMap %s has %q, want %q", o.GetName(), live.Data["x"], want)
				}
			}
		})
	}
}

// observe returns the changes that Observe reports for a group's namespace.
func observe(t *testing.T, cfg *rest.Config, g Group) []string {
	t.Helper()
	changes, err := Observe(t.Context(), cfg, []Group{g})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(changes, func(s string) bool { return !strings.Contains(s, g.Namespace+"/") })
}

func setData(t *testing.T, client kubernetes.Interface, namespace, name, key, value string) {
	t.Helper()
	patch(t, client, namespace, name, `{"data": {"`+key+`": "`+value+`"}}`)
}

func patch(t *testing.T, client kubernetes.Interface, namespace, name, content string) {
	t.Helper()
	_, err := client.CoreV1().ConfigMaps(namespace).Patch(t.Context(), name, "application/merge-patch+json", []byte(content), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPrune(t *testing.T) {
	cfg := testenv.Config(0)
	client := kubernetes.NewForConfigOrDie(cfg)
	g := group(t, configs+`---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, annotations: {helm.sh/resource-policy: keep}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: moved}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: taken}
`)
	mustApply(t, cfg, g)
	patch(t, client, g.Namespace, "taken", `{"metadata": {"labels": {"lifecycle.orrery.dev/group": null}}}`)
	other := Group{Name: g.Name + "-other", Namespace: g.Namespace, Objects: g.Objects[3:4]}
	mustApply(t, cfg, other)
	g.Objects = g.Objects[:1]
	all := slices.Concat(groupsOf(t, cfg, g.Name, other.Name), []Group{g, other})
	removed, err := Prune(t.Context(), cfg, all)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ConfigMap " + g.Namespace + "/b"}, removed); diff != "" {
		t.Error(diff)
	}
	list, err := client.CoreV1().ConfigMaps(g.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "!nothing"})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, cm := range list.Items {
		if cm.Name != "kube-root-ca.crt" {
			left = append(left, cm.Name)
		}
	}
	if diff := cmp.Diff([]string{"a", "kept", "moved", "taken"}, left); diff != "" {
		t.Error(diff)
	}
}

// groupsOf returns the groups of other tests, so that Prune does not remove their objects.
func groupsOf(t *testing.T, cfg *rest.Config, except ...string) []Group {
	t.Helper()
	c, err := connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	inventories, err := c.inventories(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []Group
	for name, inv := range inventories {
		if slices.Contains(except, name) {
			continue
		}
		g := Group{Name: name}
		for r := range inv {
			o := &unstructured.Unstructured{}
			mapping, err := c.client.RESTMapper().RESTMapping(r.groupKind())
			if err != nil {
				continue
			}
			o.SetGroupVersionKind(mapping.GroupVersionKind)
			o.SetNamespace(r.Namespace)
			o.SetName(r.Name)
			g.Objects = append(g.Objects, o)
		}
		all = append(all, g)
	}
	return all
}

func TestApplyReplacesJob(t *testing.T) {
	const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: a, image: "a:1"}]
`
	cfg := testenv.Config(0)
	client := kubernetes.NewForConfigOrDie(cfg)
	g := group(t, job)
	mustApply(t, cfg, g)
	g.Objects = parsed(t, strings.Replace(job, "a:1", "a:2", 1))
	if changed := mustApply(t, cfg, g); changed != 1 {
		t.Errorf("%d objects were changed, want 1", changed)
	}
	live, err := client.BatchV1().Jobs(g.Namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := live.Spec.Template.Spec.Containers[0].Image; got != "a:2" {
		t.Errorf("the job runs %s, want a:2", got)
	}
	// A finished Job may be deleted.
	background := metav1.DeletePropagationBackground
	if err := client.BatchV1().Jobs(g.Namespace).Delete(t.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	if changed := mustApply(t, cfg, g); changed != 0 {
		t.Error("a job that was done is run again")
	}
}

func TestApplyRefused(t *testing.T) {
	cfg := testenv.Config(0)
	nobody := rest.CopyConfig(cfg)
	nobody.Impersonate = rest.ImpersonationConfig{UserName: "nobody"}
	wrongCA := rest.CopyConfig(cfg)
	wrongCA.CAData, wrongCA.CAFile = nil, ""
	cases := map[string]struct {
		cfg      *rest.Config
		manifest string
		want     string
	}{
		"Forbidden":   {nobody, configs, `forbidden: User "nobody"`},
		"Certificate": {wrongCA, configs, "certificate signed by unknown authority"},
		"UnknownKind": {cfg, "apiVersion: nowhere.example/v1\nkind: Thing\nmetadata: {name: a}\n", `Thing NS/a: no matches for kind "Thing"`},
		"Invalid":     {cfg, "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 99999}]}\n", "apply Service NS/a: "},
		"NoNamespace": {cfg, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: nowhere}\n", `ConfigMap nowhere/a: namespaces "nowhere" not found`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := group(t, tc.manifest)
			ctx := within(t, testenv.Patience)
			_, err := Apply(ctx, tc.cfg, g)
			want := strings.ReplaceAll(tc.want, "NS", g.Namespace)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got error %v, want one with %q", err, want)
			}
			if ctx.Err() != nil {
				t.Error("it was tried until the time was up")
			}
		})
	}
}

// TestServerAway: Apply waits for an API server that is down.
func TestServerAway(t *testing.T) {
	server := testenv.StartServer(t)
	cfg := server.Config()
	g := Group{Name: "away", Namespace: "default", Objects: parsed(t, configs)}
	server.Signal(t, syscall.SIGKILL)
	ends(t, func(ctx context.Context) error {
		_, err := Apply(ctx, cfg, g)
		return err
	}, "connection refused")
	done := make(chan error, 1)
	go func() {
		_, err := Apply(within(t, 2*testenv.Patience), cfg, g)
		done <- err
	}()
	server.Restart(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if changed := mustApply(t, cfg, g); changed != 0 {
		t.Errorf("%d objects were changed again", changed)
	}
}

// TestServerFails: the next Apply completes one that was interrupted at any request.
func TestServerFails(t *testing.T) {
	cfg := testenv.Config(0)
	for n := int64(1); ; n++ {
		g := group(t, configs)
		var requests atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		cut := rest.CopyConfig(cfg)
		cut.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				response, err := next.RoundTrip(r)
				if requests.Add(1) == n {
					cancel()
				}
				return response, err
			})
		})
		_, err := Apply(ctx, cut, g)
		cancel()
		mustApply(t, cfg, g)
		if got := observe(t, cfg, g); len(got) > 0 {
			t.Fatalf("after request %d was the last, Apply left %v undone", n, got)
		}
		if err == nil && requests.Load() < n {
			return
		}
	}
}
