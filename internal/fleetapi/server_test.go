package fleetapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/explanation"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

// world is a hub with the fleet API behind its kube-apiserver, and one cluster, oak.
type world struct {
	hub     *hub.Hub
	client  client.Client
	records *losable
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	h, err := hub.Start(ctx, hub.Options{DataDir: filepath.Join(t.TempDir(), "hub"), KubeBinary: testenv.KubeBinary(), UnsafeNoFsync: true}, logr.Discard())
	if err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := h.Wait(); err != nil {
			t.Error(err)
		}
	})
	scheme := hub.Scheme()
	mgr, err := ctrl.NewManager(h.Config(), ctrl.Options{
		Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		// Several worlds are in one process.
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},

		GracefulShutdownTimeout: new(testenv.Patience),
	})
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var m *mirror.Mirror
	registry, err := member.Add(mgr, member.Options{
		HubID: h.ID(), Observe: func(cluster string) member.Observation { return m.Observation(cluster) },
	})
	if err != nil {
		t.Fatal(err)
	}
	m = mirror.New(db, registry, nil, logr.Discard())
	if err := mgr.Add(manager.RunnableFunc(m.Start)); err != nil {
		t.Fatal(err)
	}
	clusters, err := fleet.NewCache(ctx, mgr.GetCache(), fleet.Members{Registry: registry, Mirror: m}, "all")
	if err != nil {
		t.Fatal(err)
	}
	explainer, kept := newExplainer(t, mgr, explanation.Options{Fleet: clusters, Registry: registry, Mirror: m, Store: db}, h.ID())
	serving := h.FleetServing()
	server, err := New(Options{
		Hub: h.Config(), Address: serving.Address, CertFile: serving.CertFile, KeyFile: serving.KeyFile,
		Registry: registry, Mirror: m, Store: db, Fleet: clusters, Informers: mgr.GetCache(), RBACOnly: true, Explainer: explainer,
	})
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() { done <- mgr.Start(running) }()
	go func() { done <- server.Run(running) }()
	t.Cleanup(func() {
		end()
		if err := errors.Join(<-done, <-done, db.Close()); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(h.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "oak joins", testenv.Patience, func() error {
		_, err := member.Join(ctx, c, member.JoinOptions{Name: "oak", Kubeconfig: testenv.Kubeconfig(0)})
		refused, ok := errors.AsType[*member.JoinError](err)
		if err != nil && (!ok || refused.Reason != clusterv1alpha1.ReasonUnreachable && refused.Reason != member.ReasonNotConfirmed) {
			t.Fatal(err)
		}
		return err // it did not answer in time
	})
	if err := h.WriteKubeconfig([]string{"oak"}); err != nil {
		t.Fatal(err)
	}
	return &world{hub: h, client: c, records: kept}
}

// kubectl runs with the hub's kubeconfig. Its output includes standard error.
func (w *world) kubectl(t *testing.T, args string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", w.hub.KubeconfigPath()}, strings.Fields(args)...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// eventually runs a command until its output has a text.
func (w *world) eventually(t *testing.T, args, want string) {
	t.Helper()
	testenv.Eventually(t, "kubectl "+args, testenv.Patience, func() error {
		out, _ := w.kubectl(t, args)
		if !strings.Contains(out, want) {
			return fmt.Errorf("it does not say %q: %s", want, out)
		}
		return nil
	})
}

// says runs a command until it works, or fails if works is false, and its output has a text;
// white space does not count. The hub or a cluster can fail to answer for a moment, or the hub
// does not know a role yet. The test fails at once if a command works that must not.
func (w *world) says(t *testing.T, args string, works bool, want string, check func(out string)) {
	t.Helper()
	testenv.Eventually(t, "kubectl "+args, testenv.Patience, func() error {
		out, err := w.kubectl(t, args)
		check(out)
		if err == nil && !works {
			t.Fatalf("kubectl %s works: %s", args, out)
		}
		if (err == nil) != works || !strings.Contains(out, want) && !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			return fmt.Errorf("%w: %s; want %q", err, out, want)
		}
		return nil
	})
}

func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	create(t, w.client, objects...)
}

// create creates objects. It tries again when the API server does not answer for a moment.
func create(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		tried := false
		testenv.Eventually(t, "create "+o.GetName(), testenv.Patience, func() error {
			err := c.Create(t.Context(), o)
			switch {
			case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
				t.Fatal(err)
			case apierrors.IsAlreadyExists(err) && tried: // by the attempt before
				return c.Get(t.Context(), client.ObjectKeyFromObject(o), o)
			}
			tried = true
			return err
		})
	}
}

// update updates an object, even if it was written meanwhile.
func update(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	testenv.Eventually(t, "update "+o.GetName(), testenv.Patience, func() error {
		err := c.Update(t.Context(), o)
		if !apierrors.IsConflict(err) {
			return err
		}
		found, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			t.Fatalf("%T is no object", o)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), found); err != nil {
			return err
		}
		o.SetResourceVersion(found.GetResourceVersion())
		return err
	})
}

// remove deletes an object; absent is fine.
func remove(ctx context.Context, t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	testenv.Eventually(t, "delete "+o.GetName(), testenv.Patience, func() error {
		return client.IgnoreNotFound(c.Delete(ctx, o))
	})
}

// grant gives users a rule, cluster-wide or in a namespace.
func (w *world) grant(t *testing.T, name, namespace string, rule rbacv1.PolicyRule, users ...string) {
	t.Helper()
	var subjects []rbacv1.Subject
	for _, user := range users {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user})
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	meta := metav1.ObjectMeta{Name: name}
	w.create(t, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}})
	if namespace == "" {
		w.create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref})
		return
	}
	meta.Namespace = namespace
	w.create(t, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref})
}

// The URLs, identities and roles of the fleet API work through a real kube-apiserver.
func TestBehindTheKubeAPIServer(t *testing.T) {
	w := newWorld(t)
	shop := testenv.Namespace(t, testenv.Config(0))
	inMember, err := client.New(testenv.Config(0), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	create(t, inMember,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "settings"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "token"}, StringData: map[string]string{"a": "hidden"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
		},
	)
	w.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
	w.grant(t, "search", "", rbacv1.PolicyRule{
		APIGroups: []string{"fleet.orrery.dev"}, Resources: []string{"resources/proxy"}, Verbs: []string{"get", "create"},
	}, "alice")
	w.grant(t, "see-configmaps", shop, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list"}}, "alice")
	w.grant(t, "use-oak", "", rbacv1.PolicyRule{
		APIGroups: []string{"fleet.orrery.dev"}, Resources: []string{"clusters/proxy"}, Verbs: []string{"*"}, ResourceNames: []string{"oak"},
	}, "bob", "system:serviceaccount:"+shop+":deployer", "system:kube-scheduler")
	w.grant(t, "see-oak", "", rbacv1.PolicyRule{
		APIGroups: []string{"cluster.orrery.dev"}, Resources: []string{"clusters"}, Verbs: []string{"get"}, ResourceNames: []string{"oak"},
	}, "carol")
	w.grant(t, "search-too", "", rbacv1.PolicyRule{
		APIGroups: []string{"fleet.orrery.dev"}, Resources: []string{"resources/proxy"}, Verbs: []string{"get", "create"},
	}, "carol")
	w.create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scrape"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "orrery:metrics"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "prometheus"}},
	})
	w.grant(t, "see-mirror", "", rbacv1.PolicyRule{
		APIGroups: []string{"fleet.orrery.dev"}, Resources: []string{"clusters/mirror"}, Verbs: []string{"get"},
	}, "carol", "dave")
	const mirrorOfOak = "/apis/fleet.orrery.dev/v1alpha1/clusters/oak/mirror"
	w.eventually(t, "--context fleet get configmaps,secrets,pods -A", "pod/web")
	w.eventually(t, "--context oak get namespace "+shop+" -o name", "namespace/"+shop)

	for name, c := range map[string]struct {
		args  string
		works bool
		says  string
	}{
		"AdminSearches":          {"--context fleet get pods -n " + shop, true, "oak       web"},
		"AdminGets":              {"--context fleet get pod web -o name -n " + shop, true, "pod/web"},
		"SecretsAreMetadata":     {"--context fleet get secret token -o yaml -n " + shop, true, "only the metadata is mirrored"},
		"AdminUsesOak":           {"--context oak get pods -o name -n " + shop, true, "pod/web"},
		"MetricsThroughTheHub":   {"--context hub get --raw /apis/fleet.orrery.dev/v1alpha1/metrics --as prometheus", true, "orrery_fleet_request_duration_seconds"},
		"MetricsForNobodyElse":   {"--context hub get --raw /apis/fleet.orrery.dev/v1alpha1/metrics --as alice", false, "Forbidden"},
		"UnknownCluster":         {"--context oak get --raw /apis/fleet.orrery.dev/v1alpha1/clusters/oka/proxy/version", false, "NotFound"},
		"ExecReachesOak":         {"--context oak exec web -n " + shop + " -- ls", false, "pod web does not have a host assigned"},
		"Discovery":              {"--context hub get --raw /apis/fleet.orrery.dev/v1alpha1", true, "resources/proxy"},
		"OpenAPI":                {"--context hub get --raw /openapi/v3/apis/fleet.orrery.dev/v1alpha1", true, "/apis/fleet.orrery.dev/v1alpha1/clusters/{name}/mirror"},
		"OpenAPIHasNoSchema":     {"--context hub explain placementreviews", false, "not found"},
		"AliceSearches":          {"--as alice --context fleet get configmaps -o name -n " + shop, true, "configmap/settings"},
		"AliceSearchesOak":       {"--as alice --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/clusters/oak/api/v1/namespaces/" + shop + "/configmaps", true, "settings"},
		"AliceNotWhatOakServes":  {"--as alice --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/clusters/oak/api/v1", false, `cannot get resource "clusters"`},
		"AliceNotWhetherOkaIs":   {"--as alice --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/clusters/oka/api/v1", false, `cannot get resource "clusters"`},
		"CarolWhatOakServes":     {"--as carol --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/clusters/oak/api/v1", true, "configmaps"},
		"AliceWhereSheMay":       {"--as alice --context fleet get configmaps -A", true, "settings"},
		"AliceIsTold":            {"--as alice --context fleet get configmaps -A", true, "only configmaps in the namespaces in which you may list them on the hub are shown: " + shop},
		"AliceNotSecretsOfAll":   {"--as alice --context fleet get secrets -A", false, `User "alice" cannot list`},
		"AliceNotSecrets":        {"--as alice --context fleet get secrets -n " + shop, false, "Forbidden"},
		"AliceNotByParameter":    {"--as alice --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/api/v1/configmaps?namespaces=" + shop + ",default", false, "Forbidden"},
		"AliceNotThroughProxy":   {"--as alice --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/clusters/oak/proxy/version", false, "Forbidden"},
		"CarolWhatIsMirrored":    {"--as carol --context hub get --raw " + mirrorOfOak, true, `"resource":"configmaps"`},
		"AdminWhatIsMirrored":    {"--context hub get --raw " + mirrorOfOak, true, `"state":"Current"`},
		"AdminNotOfOka":          {"--context hub get --raw /apis/fleet.orrery.dev/v1alpha1/clusters/oka/mirror", false, `"oka" not found`},
		"DaveMayNotGetOak":       {"--as dave --context hub get --raw " + mirrorOfOak, false, `cannot get resource "clusters"`},
		"AliceNotWhatIsMirrored": {"--as alice --context hub get --raw " + mirrorOfOak, false, "Forbidden"},
		"BobUsesOakAsBob":        {"--as bob --as-group devs --as-uid b1 --context oak auth whoami -o json", true, `"username": "bob"`},
		"BobsGroups":             {"--as bob --as-group devs --as-uid b1 --context oak auth whoami -o json", true, `"devs"`},
		"BobsUID":                {"--as bob --as-group devs --as-uid b1 --context oak auth whoami -o json", true, `"uid": "b1"`},
		"AccountOfTheHub":        {"--as system:serviceaccount:" + shop + ":deployer --context oak auth whoami -o json", true, `"username": "orrery:sa:` + shop + `:deployer"`},
		"KubernetesOwnIsNobody":  {"--as system:kube-scheduler --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/clusters/oak/proxy/version", false, "nobody in a member"},
		"OakSaysWhatBobMay":      {"--as bob --context oak get pods -n " + shop, false, `User "bob" cannot list resource "pods"`},
		"BobNotOtherClusters":    {"--as bob --context hub get --raw /apis/fleet.orrery.dev/v1alpha1/clusters/elm/proxy/version", false, "Forbidden"},
		"BobDoesNotSearch":       {"--as bob --context fleet get pods -A", false, "Forbidden"},
		"WritesAreRefused":       {"--context fleet delete pod web --wait=false -n " + shop, false, "read-only"},
		"TheHubIsStillTheHub":    {"--context hub get namespace orrery-system -o name", true, "namespace/orrery-system"},
		"AdminWaits":             {"--context fleet wait --for=jsonpath={.metadata.name}=web pod/web --timeout=20s -n " + shop, true, "condition met"},
		"QualifiedNames":         {"--context fleet-qualified get pods -o name -n " + shop + "@oak", true, "pod/web"},
		"QualifiedNamespaces":    {"--context fleet-qualified get pods -A", true, shop + "@oak"},
		"AliceWhoAmI":            {"--as alice --as-group devs --context fleet auth whoami -o json", true, `"username": "alice"`},
		"AliceCanList":           {"--as alice --context fleet auth can-i list configmaps -n " + shop, true, "yes"},
		"AliceCanNotList":        {"--as alice --context fleet auth can-i list secrets -n " + shop, false, "no"},
		"AliceCanListQualified":  {"--as alice --context fleet-qualified auth can-i list configmaps -n " + shop + "@oak", true, "yes"},
		"NobodyCanWrite":         {"--context fleet auth can-i delete pods -n " + shop, false, "the fleet is read-only"},
		"AliceCanDoWhat":         {"--as alice --context fleet auth can-i --list -n " + shop, true, "configmaps"},
		"AdminWritesNothing":     {"--context fleet auth can-i --list", true, "[get list watch]"},
		"Explain":                {"--context fleet explain deployments.spec.replicas", true, "Number of desired pods"},
		"ExplainOlder":           {"--context hub get --raw /apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/openapi/v2", true, "io.k8s.api.core.v1.Pod"},
		"DescribeOfOne":          {"--context fleet describe pod web -n " + shop, true, "fleet.orrery.dev/cluster: oak"},
		"TheFleetSaysItsVersion": {"--context fleet version", true, "Server Version: v1."},
	} {
		if !t.Run(name, func(t *testing.T) {
			w.says(t, c.args, c.works, c.says, func(out string) {
				if strings.Contains(out, "hidden") || strings.Contains(out, "aGlkZGVu") {
					t.Errorf("a secret is shown: %s", out)
				}
			})
		}) {
			t.FailNow() // each case waits long for its answer
		}
	}
	t.Run("Direct", w.direct)
}

// TestWatchesAreNotCutOff: the hub's API server cannot see that a request to the fleet is a
// watch. It does not limit the time of requests for the subresource proxy, as for attach, exec,
// log and portforward. Others end after a minute.
func TestWatchesAreNotCutOff(t *testing.T) {
	infos := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, root := range []string{fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath} {
		r := httptest.NewRequest(http.MethodGet, root+"/api/v1/pods?watch=true", nil)
		info, err := infos.NewRequestInfo(r)
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsResourceRequest || info.Subresource != "proxy" {
			t.Errorf("%s is cut off after a minute: %+v", r.URL, info)
		}
	}
}

// Clients that do not come through the kube-apiserver must authenticate.
func (w *world) direct(t *testing.T) {
	base := "https://" + w.hub.FleetServing().Address
	certified, err := rest.HTTPClientFor(w.hub.Config())
	if err != nil {
		t.Fatal(err)
	}
	nobody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for name, c := range map[string]struct {
		client *http.Client
		path   string
		header http.Header
		code   int
		says   string
	}{
		"Live":          {nobody, "/livez", nil, 200, "ok"},
		"Ready":         {nobody, "/readyz", nil, 200, "ok"},
		"Nobody":        {nobody, "/apis/fleet.orrery.dev/v1alpha1", nil, 401, "Unauthorized"},
		"NobodyMetrics": {nobody, "/metrics", nil, 401, "Unauthorized"},
		"Pretender": {
			nobody, "/apis/fleet.orrery.dev/v1alpha1", http.Header{"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}, 401, "Unauthorized",
		},
		"TokenBearer": {nobody, "/apis/fleet.orrery.dev/v1alpha1", http.Header{"Authorization": {"Bearer x"}}, 401, "Unauthorized"},
		"Certified":   {certified, "/apis/fleet.orrery.dev/v1alpha1", nil, 200, "clusters/proxy"},
		"Metrics":     {certified, "/metrics", nil, 200, `orrery_fleet_request_duration_seconds_count{code="200",method="GET",part="search"}`},
		"Nowhere":     {certified, "/apis/fleet.orrery.dev/v1alpha1/clusters/oak", nil, 404, "NotFound"},
		"CertifiedAndImpersonating": {
			certified, "/apis/fleet.orrery.dev/v1alpha1/clusters/oak/proxy/api/v1/namespaces/default", http.Header{"Impersonate-User": {"eve"}}, 200, `"default"`,
		},
	} {
		if !t.Run(name, func(t *testing.T) {
			testenv.Eventually(t, "an answer", testenv.Patience, func() error {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+c.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header = c.header
				resp, err := c.client.Do(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					return err
				}
				// The hub or oak can fail to answer for a moment.
				if resp.StatusCode >= http.StatusInternalServerError {
					return fmt.Errorf("%s: %s", resp.Status, body)
				}
				if resp.StatusCode != c.code || !strings.Contains(string(body), c.says) {
					t.Errorf("%s: %s; want %d %q", resp.Status, body, c.code, c.says)
				}
				return nil
			})
		}) {
			t.FailNow() // each case waits long for its answer
		}
	}
}

// A request that panics gets an error or is aborted, and does not affect others.
func TestPanics(t *testing.T) {
	server := httptest.NewServer(withMetrics(withRecovery(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			fmt.Fprint(w, "half an ans")
		}
		if r.URL.Path != "/fine" {
			panic("boom")
		}
	}))))
	t.Cleanup(server.Close)
	get := func(path string) (int, string, error) {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	code, body, err := get("/early")
	var status metav1.Status
	if err != nil || code != http.StatusInternalServerError || json.Unmarshal([]byte(body), &status) != nil || status.Reason != metav1.StatusReasonInternalError {
		t.Errorf("%d %s %v", code, body, err)
	}
	if _, body, err := get("/late"); err == nil {
		t.Errorf("half an answer passes for a whole: %q", body)
	}
	if code, _, err := get("/fine"); code != http.StatusOK || err != nil {
		t.Errorf("%d %v", code, err)
	}
}

func TestBelow(t *testing.T) {
	for name, c := range map[string]struct {
		path, root, want string
		ok               bool
	}{
		"Root":    {"/a/b", "/a/b", "", true},
		"Below":   {"/a/b/c%2Fd", "/a/b", "/c%2Fd", true},
		"Slash":   {"/a/b/", "/a/b", "/", true},
		"Sibling": {"/a/bc", "/a/b", "c", false},
		"Other":   {"/x", "/a/b", "/x", false},
	} {
		t.Run(name, func(t *testing.T) {
			rest, ok := below(c.path, c.root)
			if diff := cmp.Diff([]any{c.want, c.ok}, []any{rest, ok}); diff != "" {
				t.Error(diff)
			}
		})
	}
}
