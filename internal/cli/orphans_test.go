package cli

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/testenv"
)

func TestOrphaned(t *testing.T) {
	placed := &placedOnHub{
		clusters: map[string]types.UID{"oak": "oak-2", "pine": "pine-1"},
		bindings: map[types.UID]map[string]bool{"b": {"oak": true}},
		key:      mark.Key("key"),
	}
	source := func(cluster types.UID) string {
		return mark.Key("key").Sign(mark.Source{Template: "t", Generation: 3, Version: 7, Cluster: cluster})
	}
	for name, tc := range map[string]struct{ cluster, binding, source, want string }{
		"OfThisJoin":                      {"oak", "b", source("oak-2"), ""},
		"OfAnEarlierJoinAndStillPlaced":   {"oak", "b", source("oak-1"), ""},
		"OfAnEarlierJoinAndPlacedNoMore":  {"pine", "b", source("pine-0"), orphanEarlierJoin},
		"OfThisJoinAndAboutToBePruned":    {"pine", "b", source("pine-1"), ""},
		"BindingUnknown":                  {"oak", "c", source("oak-2"), orphanNoBinding},
		"BindingUnknownOfAnEarlierJoin":   {"oak", "c", source("oak-1"), orphanNoBinding},
		"BindingUnknownAndWithoutASource": {"oak", "c", "", ""},
		"OfAnotherHub":                    {"oak", "c", mark.Key("another").Sign(mark.Source{Template: "t", Cluster: "oak-1"}), ""},
		"WithoutASource":                  {"pine", "b", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &metav1.ObjectMeta{
				Labels: map[string]string{workv1alpha2.BindingLabel: tc.binding}, Annotations: map[string]string{workv1alpha2.SourceAnnotation: tc.source},
			}
			if got := placed.orphaned(tc.cluster, o); got != tc.want {
				t.Errorf("reason %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLeftAtUnjoin(t *testing.T) {
	placed := &placedOnHub{
		clusters:  map[string]types.UID{"oak": "oak-2", "elm": ""},
		templates: map[binding.Template]bool{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Namespace: "shop", Name: "taken-back"}: true},
		hub:       "hub", key: mark.Key("key"),
	}
	left := func(key string, change func(*mark.Source, *mark.Orphan)) string {
		source, o := mark.Source{Template: "t", Version: 7, Cluster: "oak-1"}, mark.Orphan{Hub: "hub", Template: "t"}
		if change != nil {
			change(&source, &o)
		}
		o.Source = mark.Key(key).Sign(source)
		return o.String()
	}
	for name, tc := range map[string]struct {
		cluster, name, annotation string
		owned                     bool
		want                      bool
	}{
		"Left":                {cluster: "oak", annotation: left("key", nil), want: true},
		"MadeByAController":   {cluster: "oak", annotation: left("key", nil), owned: true},
		"TemplateHasABinding": {cluster: "oak", name: "taken-back", annotation: left("key", nil)},
		"ClusterIsNoMember":   {cluster: "ash", annotation: left("key", nil)},
		"OfAnotherHub":        {cluster: "oak", annotation: left("key", func(_ *mark.Source, o *mark.Orphan) { o.Hub = "other" })},
		"Forged":              {cluster: "oak", annotation: left("another key", nil)},
		"WithoutASource":      {cluster: "oak", annotation: "hub/t"},
		"NamespaceOfTheHub":   {cluster: "oak", annotation: "hub/"},
		"WasThereBefore":      {cluster: "oak", annotation: left("key", func(_ *mark.Source, o *mark.Orphan) { o.Origin = workv1alpha2.OriginAdopted })},
		"LeftOnPurpose":       {cluster: "oak", annotation: left("key", func(s *mark.Source, _ *mark.Orphan) { s.Cluster = "" })},
		"NoMark":              {cluster: "oak"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &copied{kind: "ConfigMap", resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}}
			o.Namespace, o.Name = "shop", cmp.Or(tc.name, "settings")
			o.Annotations = map[string]string{workv1alpha2.OrphanAnnotation: tc.annotation}
			if tc.owned {
				o.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "web", Controller: new(true)}}
			}
			if got := placed.leftAtUnjoin(tc.cluster, o); got != tc.want {
				t.Errorf("left at unjoin: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestOrphansThatStay: --remove keeps an orphan that has a reason to stay.
func TestOrphansThatStay(t *testing.T) {
	for name, tc := range map[string]struct {
		orphan orphan
		says   string
	}{
		"ConfigMap":      {orphan{Version: "v1", Resource: "configmaps"}, ""},
		"Namespace":      {orphan{Cluster: "oak", Version: "v1", Resource: "namespaces", Name: "shop"}, "kubectl --context oak delete namespaces shop"},
		"CRD":            {orphan{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "everything in it"},
		"WasThereBefore": {orphan{Version: "v1", Resource: "configmaps", before: true}, "before the hub"},
	} {
		t.Run(name, func(t *testing.T) {
			if why := tc.orphan.stays(); (why == "") != (tc.says == "") || !strings.Contains(why, tc.says) {
				t.Errorf("it stays because %q, want %q", why, tc.says)
			}
		})
	}
}

// TestOnAHub runs commands against a hub's API server.
func TestOnAHub(t *testing.T) {
	server := testenv.StartServer(t)
	if err := testenv.InstallCRDs(server.Config()); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.Config(), client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, out, errOut string) {
		t.Helper()
		var o, e bytes.Buffer
		code = Main(append(args, "--kubeconfig="+kubeconfig), strings.NewReader(""), &o, &e)
		return code, o.String(), e.String()
	}

	if code, out, _ := run("cluster", "list", "--no-headers"); code != 0 || out != "" {
		t.Errorf("no clusters without headers: %d %q, want nothing", code, out)
	}
	for _, name := range []string{"oak", "pine"} {
		if err := c.Create(t.Context(), &clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: clusterv1alpha1.ClusterSpec{
				SyncMode: clusterv1alpha1.Push, APIEndpoint: "https://127.0.0.1:1",
				SecretRef: clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: name},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, out, _ := run("cluster", "list", "-o", "name"); out != "oak\npine\n" {
		t.Errorf("-o name prints %q", out)
	}
	if _, out, _ := run("cluster", "list", "--no-headers"); strings.Contains(out, "NAME") || !strings.HasPrefix(out, "oak ") {
		t.Errorf("--no-headers prints %q", out)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	for _, command := range []string{"describe", "unjoin", "orphans"} {
		var out bytes.Buffer
		if Main([]string{"__complete", "cluster", command, ""}, strings.NewReader(""), &out, &bytes.Buffer{}); !strings.HasPrefix(out.String(), "oak\npine\n") {
			t.Errorf("%s completes to %q", command, out.String())
		}
	}
	var formats bytes.Buffer
	if Main([]string{"__complete", "cluster", "list", "-o", ""}, strings.NewReader(""), &formats, &bytes.Buffer{}); !strings.Contains(formats.String(), "name\n") {
		t.Errorf("-o completes to %q", formats.String())
	}

	for name, tc := range map[string]struct{ kind, namespace, name, want string }{
		"NotThere":            {"ConfigMap", "shop", "nope", `it is not in namespace "shop" of the hub: name another with --namespace`},
		"NotThereInNoNS":      {"Namespace", "", "nope", "the hub does not have it"},
		"ThereAndNotPlaced":   {"Namespace", "", "default", "no policy places it"},
		"KindThatIsNotServed": {"Nope", "", "x", string(appsv1alpha1.RebalanceObjectNotFound)},
	} {
		w := &appsv1alpha1.ObservedWorkload{
			Workload: appsv1alpha1.ObjectReference{APIVersion: "v1", Kind: tc.kind, Namespace: tc.namespace, Name: tc.name},
			Reason:   appsv1alpha1.RebalanceObjectNotFound,
		}
		if got := notRebalanced(t.Context(), c, w); got != tc.want {
			t.Errorf("%s is not placed anew because %q, want %q", name, got, tc.want)
		}
	}

	if code, out, _ := run("server", "confirm-restore"); code != 0 || !strings.Contains(out, "nothing to confirm") {
		t.Errorf("without a suspicion: %d %q", code, out)
	}
	clients := kubernetes.NewForConfigOrDie(server.Config())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	if _, err := clients.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	maps := clients.CoreV1().ConfigMaps(clusterv1alpha1.SecretNamespace)
	data := map[string]string{restoreState: "Suspected", restoreSince: "2026-01-02T03:04:05Z", restoreReason: "oak has a newer Deployment"}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: restoreName}, Data: data}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := run("server", "confirm-restore"); code != 2 || !strings.Contains(out, "oak has a newer Deployment") || !strings.Contains(errOut, "--yes") {
		t.Errorf("with nobody to answer: %d %q %q", code, out, errOut)
	}
	state := func() map[string]string {
		t.Helper()
		said, err := maps.Get(t.Context(), restoreName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if confirmed := said.Annotations[restoreConfirmedAt] != ""; confirmed != (said.Data[restoreState] == restoreConfirmed) {
			t.Errorf("state %s with the annotation %q", said.Data[restoreState], said.Annotations[restoreConfirmedAt])
		}
		return said.Data
	}
	if diff := gocmp.Diff(data, state()); diff != "" {
		t.Errorf("changed without a yes:\n%s", diff)
	}
	if code, _, errOut := run("server", "confirm-restore", "--yes"); code != 0 {
		t.Fatalf("confirm: %d %q", code, errOut)
	}
	data[restoreState] = restoreConfirmed
	if diff := gocmp.Diff(data, state()); diff != "" {
		t.Errorf("after the yes (-want +got):\n%s", diff)
	}
	if code, out, _ := run("server", "confirm-restore", "--yes"); code != 0 || !strings.Contains(out, "nothing to confirm: that was done") {
		t.Errorf("again: %d %q", code, out)
	}
}
