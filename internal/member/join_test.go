package member

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/testenv"
)

// edit changes the only cluster and the only user of a kubeconfig.
func edit(t *testing.T, kubeconfig []byte, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Contexts[config.CurrentContext]
	change(config.Clusters[c.Cluster], config.AuthInfos[c.AuthInfo])
	out, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func withToken(t *testing.T, kubeconfig []byte, token string) []byte {
	t.Helper()
	return edit(t, kubeconfig, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		*u = clientcmdapi.AuthInfo{Token: token}
	})
}

// certificate returns a self-signed certificate that is valid until notAfter.
func certificate(t *testing.T, notAfter time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "someone"},
		NotBefore: notAfter.Add(-time.Hour), NotAfter: notAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func TestJoinRefused(t *testing.T) {
	hub := newHub(t)
	good := testenv.Kubeconfig(1)
	expired, expiredKey := certificate(t, time.Now().Add(-time.Minute))
	foreign, foreignKey := certificate(t, time.Now().Add(time.Hour))
	viewer, _ := serviceAccount(t, kubernetes.NewForConfigOrDie(testenv.Config(1)), "view")

	nobody, err := process.ReservePort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nobody.Release(); err != nil {
			t.Error(err)
		}
	})
	nowhere := net.JoinHostPort("127.0.0.1", strconv.Itoa(nobody.Number))
	type (
		server = clientcmdapi.Cluster
		user   = clientcmdapi.AuthInfo
	)
	cases := map[string]struct {
		kubeconfig []byte
		context    string
		reason     string
		says       []string
	}{
		"NoKubeconfig": {
			kubeconfig: []byte("apples: and oranges\n"), reason: ReasonKubeconfigInvalid, says: []string{"current-context"},
		},
		"NoSuchContext": {
			kubeconfig: good, context: "nonsense", reason: ReasonKubeconfigInvalid, says: []string{`"nonsense"`},
		},
		"ExecPlugin": {
			kubeconfig: edit(t, good, func(_ *server, u *user) {
				*u = user{Exec: &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "aws", InteractiveMode: "Never"}}
			}),
			reason: ReasonKubeconfigInvalid, says: []string{`"aws"`, "kubectl create token"},
		},
		"NoCredentials": {
			kubeconfig: edit(t, good, func(_ *server, u *user) { *u = user{} }),
			reason:     ReasonKubeconfigInvalid, says: []string{`"token"`},
		},
		"MissingFile": {
			kubeconfig: edit(t, good, func(_ *server, u *user) { *u = user{ClientCertificate: "no.crt", ClientKey: "no.key"} }),
			reason:     ReasonKubeconfigInvalid, says: []string{"client-certificate", "no.crt"},
		},
		"PasswordInAddress": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.Server = "https://admin:hunter2@" + nowhere }),
			reason:     ReasonKubeconfigInvalid, says: []string{"a user or a password"},
		},
		"NotHTTPS": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.Server = "http://admin:hunter2@" + nowhere }),
			reason:     ReasonKubeconfigInvalid, says: []string{"https://"},
		},
		"ProxyIsNoURL": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.ProxyURL = "http://admin:hunter2@[::1" }),
			reason:     ReasonKubeconfigInvalid, says: []string{"proxy-url"},
		},
		"ProxyOfAnotherKind": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.ProxyURL = "ftp://admin:hunter2@" + nowhere }),
			reason:     ReasonKubeconfigInvalid, says: []string{"proxy-url", "socks5://"},
		},
		"NobodyAtTheProxy": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.ProxyURL = "http://admin:hunter2@" + nowhere }),
			reason:     clusterv1alpha1.ReasonUnreachable, says: []string{"connection refused"},
		},
		"PointsNowhere": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.Server = "https://" + nowhere }),
			reason:     clusterv1alpha1.ReasonUnreachable, says: []string{nowhere, "connection refused"},
		},
		"OtherAuthority": {
			kubeconfig: edit(t, good, func(c *server, _ *user) { c.CertificateAuthorityData = foreign }),
			reason:     ReasonUntrusted, says: []string{"certificate-authority-data"},
		},
		"ExpiredCertificate": {
			kubeconfig: edit(t, good, func(_ *server, u *user) {
				*u = user{ClientCertificateData: expired, ClientKeyData: expiredKey}
			}),
			reason: clusterv1alpha1.ReasonUnauthorized, says: []string{"expired at"},
		},
		"ForeignCertificate": {
			kubeconfig: edit(t, good, func(_ *server, u *user) {
				*u = user{ClientCertificateData: foreign, ClientKeyData: foreignKey}
			}),
			reason: clusterv1alpha1.ReasonUnauthorized, says: []string{"refuses the credentials"},
		},
		"BadToken": {
			kubeconfig: withToken(t, good, "hunter2"),
			reason:     clusterv1alpha1.ReasonUnauthorized, says: []string{"refuses the credentials"},
		},
		"ReadOnly": {
			kubeconfig: withToken(t, good, viewer),
			reason:     clusterv1alpha1.ReasonForbidden, says: []string{"impersonate users", "cluster-admin"},
		},
		"TheHubItself": {
			kubeconfig: testenv.Kubeconfig(0), reason: clusterv1alpha1.ReasonIsHub, says: []string{"hub itself"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Join(t.Context(), hub, JoinOptions{Name: "refused", Kubeconfig: tc.kubeconfig, Context: tc.context})
			var refused *JoinError
			if !errors.As(err, &refused) || refused.Reason != tc.reason {
				t.Fatalf("join: %v, want it refused with %s", err, tc.reason)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %q has a secret in it", err)
			}
			clusters := &clusterv1alpha1.ClusterList{}
			secrets := &corev1.SecretList{}
			err = errors.Join(hub.List(t.Context(), clusters), hub.List(t.Context(), secrets, client.InNamespace(clusterv1alpha1.SecretNamespace)))
			if err != nil {
				t.Fatal(err)
			}
			if len(clusters.Items) > 0 || len(secrets.Items) > 0 {
				t.Errorf("%d clusters and %d secrets were stored", len(clusters.Items), len(secrets.Items))
			}
		})
	}
}

func TestRedacted(t *testing.T) {
	for address, want := range map[string]string{
		"":                         "",
		"https://oak:6443":         "https://oak:6443",
		"https://oak:6443/%2Fa b":  "https://oak:6443/%2Fa b",
		"https://a:hunter2@oak":    "https://a:xxxxx@oak",
		"https://a:hunter2@oak:no": "(no URL)",
	} {
		if got := Redacted(address); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// A Cluster may have been written by hand.
	for _, spec := range []clusterv1alpha1.ClusterSpec{{APIEndpoint: "https://a:hunter2@oak:no"}, {APIEndpoint: "https://oak", ProxyURL: "http://a:hunter2@oak:no"}} {
		_, err := newConnection(dialDirectly, &clusterv1alpha1.Cluster{Spec: spec}, &corev1.Secret{Data: map[string][]byte{keyToken: []byte("t")}}, nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
		if c := brokenConnection(&clusterv1alpha1.Cluster{Spec: spec}, err); strings.Contains(c.problem.Error(), "hunter2") {
			t.Error(c.problem)
		}
	}
}

func TestJoinTwice(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	for name, tc := range map[string]struct {
		as     string
		server int
		reason string
	}{
		"SameClusterOtherName": {as: "two", server: 1, reason: clusterv1alpha1.ReasonAlreadyJoined},
		"OtherClusterSameName": {as: "one", server: 2, reason: clusterv1alpha1.ReasonIdentityChanged},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(t.Context(), f.hub, JoinOptions{Name: tc.as, Kubeconfig: testenv.Kubeconfig(tc.server)})
			var refused *JoinError
			if !errors.As(err, &refused) || refused.Reason != tc.reason {
				t.Errorf("join: %v, want it refused with %s", err, tc.reason)
			}
		})
	}
}

func TestEqualListsAreShared(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	f.joinReady(t, "two", testenv.Kubeconfig(2))
	eventually(t, "both hold the same list", func() (bool, string) {
		one, two := f.member(t, "one").APIs(), f.member(t, "two").APIs()
		return one == two, one.Hash() + " " + two.Hash()
	})
}

// TestJoinResumes joins a cluster after a join that was killed between its two writes.
func TestJoinResumes(t *testing.T) {
	f := startFleet(t, Options{})
	cluster, _, err := fromKubeconfig(JoinOptions{Name: "one", Kubeconfig: testenv.Kubeconfig(1)})
	if err == nil {
		err = f.hub.Create(t.Context(), cluster)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.until(t, "one", reachable, "Unknown", clusterv1alpha1.ReasonSecretInvalid)
	f.joinReady(t, "one", testenv.Kubeconfig(1))
}

func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	certPEM, keyPEM := certificate(t, time.Now().Add(time.Hour))
	for name, content := range map[string][]byte{"client.crt": certPEM, "client.key": keyPEM, "ca.crt": certPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := edit(t, testenv.Kubeconfig(1), func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		c.CertificateAuthorityData, c.CertificateAuthority = nil, "ca.crt"
		*u = clientcmdapi.AuthInfo{ClientCertificate: "client.crt", ClientKey: "client.key"}
	})
	_, secret, err := fromKubeconfig(JoinOptions{Name: "one", Kubeconfig: kubeconfig, KubeconfigDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][]byte{"tls.crt": certPEM, "tls.key": keyPEM, "ca.crt": certPEM} {
		if string(secret.Data[key]) != string(want) {
			t.Errorf("key %s of the Secret is not the file's content", key)
		}
	}
}
