package hub

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

// clock is a clock that the test sets while the hub reads it.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// run starts a hub. The returned function stops it.
func run(t *testing.T, o Options) (*Hub, func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	h, err := Start(ctx, o, testr.New(t))
	if err != nil {
		stop()
		t.Fatal(err)
	}
	stopped := false
	end := func() {
		if stopped {
			return
		}
		stopped = true
		stop()
		if err := h.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
	}
	t.Cleanup(end)
	return h, end
}

func embedded(dir string) Options {
	return Options{DataDir: dir, KubeBinary: testenv.KubeBinary(), UnsafeNoFsync: true}
}

// eventually waits until check returns nil, and fails the test after three minutes.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEmbedded takes one hub through all stages of its life, because each start takes seconds.
func TestEmbedded(t *testing.T) {
	t.Parallel() // the test waits for long
	dir := filepath.Join(t.TempDir(), "hub")
	// Certificates from nine months ago are valid for three more months. They are due for
	// renewal.
	var c clock
	c.set(-9 * 30 * 24 * time.Hour)
	o := embedded(dir)
	o.now, o.renewalInterval = c.now, 100*time.Millisecond
	h, stop := run(t, o)
	hub := client(t, h.Config())

	t.Run("InstallsItsKinds", func(t *testing.T) { checkInstalled(t, h.Config()) })
	t.Run("IDIsTheUIDOfKubeSystem", func(t *testing.T) {
		ns, err := hub.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(ns.UID), h.ID()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("AggregatesRoles", func(t *testing.T) {
		eventually(t, "view lets people see placements", func() error {
			view, err := hub.RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, r := range view.Rules {
				if len(r.APIGroups) > 0 && r.APIGroups[0] == "policy.orrery.dev" {
					return nil
				}
			}
			return errors.New("no rule for policy.orrery.dev")
		})
	})
	t.Run("KeepsTemplatesAsTheyAre", func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "template"},
			Spec: corev1.PodSpec{
				PriorityClassName: "of-the-member", ServiceAccountName: "of-the-member", RuntimeClassName: new("of-the-member"),
				Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}},
			},
		}
		created, err := hub.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(created.Spec.Volumes) > 0 || len(created.Spec.Tolerations) > 0 {
			t.Errorf("the hub added volumes %v, tolerations %v", created.Spec.Volumes, created.Spec.Tolerations)
		}
	})
	t.Run("CallsNoWebhooksOfTemplates", func(t *testing.T) { checkWebhooks(t, h) })
	t.Run("PassesRequestsToTheFleetAPI", func(t *testing.T) { checkFleet(t, h) })
	t.Run("RefusesStrangers", func(t *testing.T) {
		_, err := client(t, rest.AnonymousClientConfig(h.Config())).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("anonymous request: %v", err)
		}
	})
	t.Run("RefusesASecondHubInTheDirectory", func(t *testing.T) {
		_, err := Start(t.Context(), embedded(dir), logr.Discard())
		if err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), dir) {
			t.Errorf("want a refusal that names process and directory, got: %v", err)
		}
	})
	t.Run("RefusesATakenPort", func(t *testing.T) {
		o := embedded(filepath.Join(t.TempDir(), "hub"))
		o.SecurePort = h.options.SecurePort
		_, err := Start(t.Context(), o, logr.Discard())
		if err == nil || !strings.Contains(err.Error(), "--secure-port") || !strings.Contains(err.Error(), strconv.Itoa(o.SecurePort)) {
			t.Errorf("want a refusal that names port and flag, got: %v", err)
		}
	})
	t.Run("WritesAKubeconfig", func(t *testing.T) { checkKubeconfig(t, h) })
	t.Run("RenewsCertificatesWhileRunning", func(t *testing.T) { checkRenewal(t, h, &c) })
	t.Run("SurvivesKillingEtcd", func(t *testing.T) { checkKill(t, h, etcdProcess) })
	t.Run("SurvivesKillingTheAPIServer", func(t *testing.T) { checkKill(t, h, apiserverProcess) })
	t.Run("SurvivesKillingTheControllerManager", func(t *testing.T) { checkKill(t, h, controllerManagerProcess) })

	id, before, kubeconfig := h.ID(), installedVersions(t, h.Config()), read(t, h.KubeconfigPath())
	if _, err := hub.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	etcd := pid(t, dir, etcdProcess)
	stop()
	if err := syscall.Kill(etcd, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("etcd after Wait: %v", err)
	}

	h, _ = run(t, embedded(dir))
	if _, err := client(t, h.Config()).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(id, h.ID()); diff != "" {
		t.Errorf("ID after a restart: %s", diff)
	}
	if diff := cmp.Diff(before, installedVersions(t, h.Config())); diff != "" {
		t.Errorf("the restart wrote: %s", diff)
	}
	if !bytes.Equal(kubeconfig, read(t, h.KubeconfigPath())) {
		t.Error("the restart changed the kubeconfig")
	}
}

func TestExternal(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig}
	h, _ := run(t, o)
	checkInstalled(t, h.Config())
	if _, err := os.Stat(h.dir.processes()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("processes: %v", err)
	}
	if err := h.WriteKubeconfig([]string{"oak"}); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", h.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	ns, err := client(t, config).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(ns.UID), h.ID()); diff != "" {
		t.Error(diff)
	}
	written, err := clientcmd.LoadFromFile(h.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSuffix(testenv.Config(0).Host, "/")+fleetv1alpha1.ClustersPath+"/oak/proxy", written.Clusters["oak"].Server); diff != "" {
		t.Error(diff)
	}
}

func TestExternalRefusals(t *testing.T) {
	valid, err := clientcmd.Load(testenv.Kubeconfig(0))
	if err != nil {
		t.Fatal(err)
	}
	valid.Clusters[valid.Contexts[valid.CurrentContext].Cluster].Server = "https://127.0.0.1:1"
	nowhere, err := clientcmd.Write(*valid)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"PointsNowhere": string(nowhere),
		"Empty":         "",
		"NotYAML":       "{",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "external")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Start(t.Context(), Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: path}, logr.Discard())
			if err == nil || !strings.Contains(err.Error(), "--kubeconfig "+path) {
				t.Errorf("want an error that names the flag and the file, got: %v", err)
			}
		})
	}
}

func checkInstalled(t *testing.T, config *rest.Config) {
	t.Helper()
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	want, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range want {
		if _, err := d.Resource(crds).Get(t.Context(), o.GetName(), metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	// There is no need to wait here, since Start has waited for discovery.
	list, err := client(t, config).Discovery().ServerResourcesForGroupVersion("cluster.orrery.dev/v1alpha1")
	if err != nil || len(list.APIResources) == 0 {
		t.Errorf("discover clusters: %v %v", list, err)
	}
}

var (
	crds        = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	apiservices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	roles       = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	protections = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
)

// installedVersions returns the resource versions of all objects that the hub installs. For an
// APIService it returns the time of the hub's write and the spec, since the API server writes
// the availability into the object.
func installedVersions(t *testing.T, config *rest.Config) map[string]string {
	t.Helper()
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, gvr := range []schema.GroupVersionResource{crds, apiservices, namespaces, services, roles, protections} {
		list, err := d.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			key := gvr.Resource + "/" + o.GetName()
			for _, m := range o.GetManagedFields() {
				if m.Manager != fieldManager {
					continue
				}
				versions[key] = o.GetResourceVersion()
				if gvr == apiservices {
					spec, err := json.Marshal(o.Object["spec"])
					if err != nil {
						t.Fatal(err)
					}
					versions[key] = m.Time.String() + string(spec)
				}
			}
		}
	}
	// Kinds, APIService, namespaces, Service, roles, deletion protection.
	const least = 8 + 1 + 2 + 1 + 2 + 1
	if len(versions) < least {
		t.Fatalf("installed objects: %v", versions)
	}
	return versions
}

// checkFleet serves the fleet API as package fleetapi does, and requests it through the hub.
func checkFleet(t *testing.T, h *Hub) {
	t.Helper()
	hub := client(t, h.Config())
	authentication, err := hub.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	frontProxy := x509.NewCertPool()
	frontProxy.AppendCertsFromPEM([]byte(authentication.Data["requestheader-client-ca-file"]))
	serving := h.FleetServing()
	server := &http.Server{
		Addr:              serving.Address,
		ReadHeaderTimeout: time.Second,
		TLSConfig:         &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: frontProxy, MinVersion: tls.VersionTLS13},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(r.Header.Get("X-Remote-User")))
		}),
	}
	done := make(chan error, 1)
	go func() { done <- server.ListenAndServeTLS(serving.CertFile, serving.KeyFile) }()
	defer func() {
		if err := errors.Join(server.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	eventually(t, "the fleet API answers through the hub", func() error {
		user, err := hub.Discovery().RESTClient().Get().AbsPath(fleetv1alpha1.FleetPath, "api").DoRaw(t.Context())
		if err == nil && string(user) != "orrery" {
			err = errors.New("user is " + string(user))
		}
		return err
	})
}

func checkKubeconfig(t *testing.T, h *Hub) {
	t.Helper()
	if err := h.WriteKubeconfig([]string{"oak", "elm"}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(h.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := h.WriteKubeconfig([]string{"elm", "oak"}); err != nil {
		t.Fatal(err)
	}
	again, err := os.Stat(h.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(info, again) {
		t.Error("an unchanged kubeconfig was replaced")
	}
	config, err := clientcmd.BuildConfigFromFlags("", h.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	mine, err := client(t, config).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.ID(), string(mine.UID)); diff != "" {
		t.Error(diff)
	}
}

func checkRenewal(t *testing.T, h *Hub, c *clock) {
	t.Helper()
	old := map[string]*x509.Certificate{}
	for _, l := range h.keys.leaves {
		old[l.Name] = leafOf(t, h, l.Name)
	}
	kubeconfig := read(t, h.KubeconfigPath())
	c.set(0)
	eventually(t, "every certificate is renewed", func() error {
		for name, cert := range old {
			if leafOf(t, h, name).NotAfter.Equal(cert.NotAfter) {
				return errors.New(name + " is not")
			}
		}
		if bytes.Equal(kubeconfig, read(t, h.KubeconfigPath())) {
			return errors.New("the kubeconfig's is not")
		}
		return nil
	})
	eventually(t, "the API server serves with its new certificate", func() error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(read(t, h.dir.authority(serverCA)))
		conn, err := tls.Dial("tcp", strings.TrimPrefix(h.Config().Host, "https://"), &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
		if err != nil {
			return err
		}
		defer conn.Close()
		if served := conn.ConnectionState().PeerCertificates[0]; !served.Equal(leafOf(t, h, apiserverCert)) {
			return errors.New("it is still the old one")
		}
		return nil
	})
	eventually(t, "a new client presents a new certificate", func() error {
		_, err := client(t, h.Config()).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// checkKill kills a process and waits until a new one does its work.
func checkKill(t *testing.T, h *Hub, name string) {
	t.Helper()
	hub := client(t, h.Config())
	old := pid(t, string(h.dir), name)
	if old == 0 {
		t.Fatalf("%s does not run", name)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another "+name+" runs", func() error {
		if p := pid(t, string(h.dir), name); p == 0 || p == old {
			return errors.New("it does not")
		}
		return nil
	})
	orphan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "after-" + name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "absent", UID: "absent"}},
	}}
	configMaps := hub.CoreV1().ConfigMaps("default")
	eventually(t, "an object can be created", func() error {
		_, err := configMaps.Create(t.Context(), orphan, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt was not answered
		}
		return err
	})
	eventually(t, "the controller manager deletes it, for its owner is gone", func() error {
		_, err := configMaps.Get(t.Context(), orphan.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		default:
			return errors.New("it is still there")
		}
	})
}

func pid(t *testing.T, dir, name string) int {
	t.Helper()
	text, err := os.ReadFile(dataDir(dir).path("processes", name+".pid"))
	if err != nil {
		return 0
	}
	var p int
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&p); err != nil {
		return 0 // the file is being written
	}
	return p
}

func leafOf(t *testing.T, h *Hub, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(h.dir.leaf(name), h.dir.leaf(name))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
