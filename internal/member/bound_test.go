package member

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// hostile is a server that is not trusted. It counts connections and records requests.
type hostile struct {
	*httptest.Server

	mu       sync.Mutex
	dialled  int
	requests []string
}

func newHostile(t *testing.T, handle http.HandlerFunc) *hostile {
	t.Helper()
	h := &hostile{}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.requests = append(h.requests, fmt.Sprintf("%s %s %q", r.Method, r.URL, r.Header.Get("Authorization")))
		h.mu.Unlock()
		handle(w, r)
	}))
	h.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			h.mu.Lock()
			h.dialled++
			h.mu.Unlock()
		}
	}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hostile) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
}

// untouched fails the test if any connection was opened.
func (h *hostile) untouched(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dialled > 0 {
		t.Errorf("it was dialled %d times and got %v", h.dialled, h.requests)
	}
}

func secretNamed(namespace, name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data}
}

// TestSecretsOfOthersAreNotSent: a user who may write Clusters, but not Secrets, cannot have
// credentials sent to an address of their choice.
func TestSecretsOfOthersAreNotSent(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	server := newHostile(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "thanks", http.StatusTeapot) })
	const kept = clusterv1alpha1.SecretNamespace
	credentials := map[string]string{keyToken: "hunter2", keyCA: string(server.ca())}
	bound := secretNamed(kept, "skips", map[string]string{keyToken: "hunter2"})
	bound.Annotations = map[string]string{
		clusterv1alpha1.AnnotationForCluster: "skips",
		clusterv1alpha1.AnnotationForAddress: server.URL + " tlsVerification=Skip",
	}
	elsewhere := testenv.Namespace(t, testenv.Config(0))
	for _, s := range []*corev1.Secret{
		secretNamed(elsewhere, "victim", credentials),
		secretNamed(kept, "unbound", credentials),
		secretNamed(kept, "ssh", map[string]string{"password": "hunter2", keyCA: string(server.ca())}),
		bound,
	} {
		if err := f.hub.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	ref := func(namespace, name string) clusterv1alpha1.SecretReference {
		return clusterv1alpha1.SecretReference{Namespace: namespace, Name: name}
	}
	for name, c := range map[string]struct {
		spec   clusterv1alpha1.ClusterSpec
		reason string
	}{
		"namespace": {clusterv1alpha1.ClusterSpec{SecretRef: ref(elsewhere, "victim")}, clusterv1alpha1.ReasonSecretNotBound},
		"anothers":  {clusterv1alpha1.ClusterSpec{SecretRef: ref(kept, "one"), TLSVerification: clusterv1alpha1.TLSSkip}, clusterv1alpha1.ReasonSecretNotBound},
		"unbound":   {clusterv1alpha1.ClusterSpec{SecretRef: ref(kept, "unbound")}, clusterv1alpha1.ReasonSecretNotBound},
		"hosts":     {clusterv1alpha1.ClusterSpec{SecretRef: ref(kept, "ssh")}, clusterv1alpha1.ReasonSecretNotBound},
		"skips":     {clusterv1alpha1.ClusterSpec{SecretRef: ref(kept, "skips"), TLSVerification: clusterv1alpha1.TLSSkip}, clusterv1alpha1.ReasonUnverifiedTLS},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: c.spec}
			cluster.Spec.SyncMode, cluster.Spec.APIEndpoint = clusterv1alpha1.Push, server.URL
			if err := f.hub.Create(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
			got := f.until(t, name, reachable, metav1.ConditionUnknown, c.reason)
			message := meta.FindStatusCondition(got.Status.Conditions, reachable).Message
			if !strings.Contains(message, "join") || strings.Contains(message, "hunter2") {
				t.Errorf("message %q, want a way out and no secret", message)
			}
			server.untouched(t)
		})
	}

	// The same with changes of a valid Cluster.
	for name, change := range map[string]func(*clusterv1alpha1.ClusterSpec){
		"Endpoint":     func(s *clusterv1alpha1.ClusterSpec) { s.APIEndpoint = server.URL },
		"Verification": func(s *clusterv1alpha1.ClusterSpec) { s.TLSVerification = clusterv1alpha1.TLSSkip },
		"ServerName":   func(s *clusterv1alpha1.ClusterSpec) { s.TLSServerName = "evil.example" },
		"Proxy":        func(s *clusterv1alpha1.ClusterSpec) { s.ProxyURL = server.URL },
		"Secret": func(s *clusterv1alpha1.ClusterSpec) {
			s.APIEndpoint, s.SecretRef = server.URL, ref(elsewhere, "victim")
		},
		"Impersonator": func(s *clusterv1alpha1.ClusterSpec) {
			s.ImpersonatorSecretRef = &clusterv1alpha1.SecretReference{Namespace: kept, Name: "unbound"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			good := f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			changed := good.DeepCopy()
			change(&changed.Spec)
			if err := f.hub.Patch(t.Context(), changed, client.MergeFrom(good)); err != nil {
				t.Fatal(err)
			}
			f.until(t, "one", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretNotBound)
			server.untouched(t)
			back := changed.DeepCopy()
			back.Spec = good.Spec
			if err := f.hub.Patch(t.Context(), back, client.MergeFrom(changed)); err != nil {
				t.Fatal(err)
			}
			f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		})
	}
}

// TestJoinAgainBinds: another join repairs a Cluster for any wrong reference or address.
func TestJoinAgainBinds(t *testing.T) {
	f := startFleet(t, Options{})
	elsewhere := testenv.Namespace(t, testenv.Config(0))
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	good := f.secret(t, "one")
	for name, spoil := range map[string]func(*clusterv1alpha1.Cluster, *corev1.Secret){
		"Unbound":   func(_ *clusterv1alpha1.Cluster, s *corev1.Secret) { s.Annotations = nil },
		"Namespace": func(c *clusterv1alpha1.Cluster, _ *corev1.Secret) { c.Spec.SecretRef.Namespace = elsewhere },
		"Address":   func(c *clusterv1alpha1.Cluster, _ *corev1.Secret) { c.Spec.APIEndpoint = "https://192.0.2.1" },
	} {
		t.Run(name, func(t *testing.T) {
			cluster, secret := f.cluster(t, "one"), f.secret(t, "one")
			changed := cluster.DeepCopy()
			spoil(changed, secret)
			if err := errors.Join(f.hub.Patch(t.Context(), changed, client.MergeFrom(cluster)), f.hub.Update(t.Context(), secret)); err != nil {
				t.Fatal(err)
			}
			f.until(t, "one", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretNotBound)
			f.join(t, "one", testenv.Kubeconfig(1))
			f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			if diff := cmp.Diff(good.Data, f.secret(t, "one").Data); diff != "" {
				t.Error("the credentials are others than before")
			}
		})
	}
	t.Run("NeverIntoAnothersSecret", func(t *testing.T) {
		if err := f.hub.Create(t.Context(), secretNamed(clusterv1alpha1.SecretNamespace, "two", map[string]string{"ssh-privatekey": "k"})); err != nil {
			t.Fatal(err)
		}
		_, err := Join(t.Context(), f.hub, JoinOptions{Name: "two", Kubeconfig: testenv.Kubeconfig(2)})
		if refused, ok := errors.AsType[*JoinError](err); !ok || refused.Reason != clusterv1alpha1.ReasonSecretNotBound {
			t.Errorf("join: %v, want it refused", err)
		}
		if s := f.secret(t, "two"); string(s.Data["ssh-privatekey"]) != "k" {
			t.Error("the Secret was overwritten")
		}
	})
}

// TestSkippedVerification: a server certificate is not verified if the user requests that. Then
// only a client certificate is accepted as credentials, since its key is not sent.
func TestSkippedVerification(t *testing.T) {
	f := startFleet(t, Options{})
	skipping := func(kubeconfig []byte) []byte {
		return edit(t, kubeconfig, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, nil
		})
	}
	cert, key := certificate(t, time.Now().Add(time.Hour))
	f.joinReady(t, "one", edit(t, skipping(newFront(t).kubeconfig(t)), func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		*u = clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	}))

	server := newHostile(t, func(http.ResponseWriter, *http.Request) {})
	kubeconfig := edit(t, skipping(withToken(t, testenv.Kubeconfig(1), "hunter2")), func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		c.Server = server.URL
	})
	_, err := Join(t.Context(), f.hub, JoinOptions{Name: "two", Kubeconfig: kubeconfig})
	if refused, ok := errors.AsType[*JoinError](err); !ok || refused.Reason != ReasonKubeconfigInvalid || !strings.Contains(err.Error(), "certificate-authority-data") {
		t.Errorf("join: %v, want it refused with a way out", err)
	}
	server.untouched(t)
}

// TestStoredSecretsAreBoundOnce: Secrets of a version that did not bind them are bound at the
// first start, unless they are ambiguous, and never later.
func TestStoredSecretsAreBoundOnce(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	f.joinReady(t, "two", testenv.Kubeconfig(2))
	f.stop()

	unbind := func(name string) {
		secret := f.secret(t, name)
		secret.Annotations = nil
		if err := f.hub.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	unbind("one")
	unbind("two")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	if err := f.hub.Patch(t.Context(), namespace, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":null}}`))); err != nil {
		t.Fatal(err)
	}
	server := newHostile(t, func(http.ResponseWriter, *http.Request) {})
	second := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: clusterv1alpha1.ClusterSpec{
		SyncMode: clusterv1alpha1.Push, APIEndpoint: server.URL, TLSVerification: clusterv1alpha1.TLSSkip,
		SecretRef: clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: "two"},
	}}
	if err := f.hub.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}

	g := runFleet(t, Options{})
	g.until(t, "two", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretNotBound)
	g.until(t, "second", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretNotBound)
	g.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	server.untouched(t)
	if got := g.secret(t, "one").Annotations; got[clusterv1alpha1.AnnotationForCluster] != "one" || got[clusterv1alpha1.AnnotationForAddress] != testenv.Config(1).Host {
		t.Errorf("annotations %v, want the Secret bound to one", got)
	}
	g.stop()

	unbind("one")
	h := runFleet(t, Options{})
	defer h.stop()
	h.until(t, "one", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretNotBound)
}
