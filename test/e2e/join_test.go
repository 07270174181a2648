package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

// TestJoinAndUnjoin joins an API server that is not part of the demo.
func TestJoinAndUnjoin(t *testing.T) {
	t.Parallel()
	server := testenv.StartServer(t)
	file := filepath.Join(t.TempDir(), "mine.kubeconfig")
	if err := os.WriteFile(file, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	join(t, "mine", "--cluster-kubeconfig", file, "--region", "eu-west-1", "--labels", "env=dev")
	t.Cleanup(func() { demo.Run(t, "cluster", "unjoin", "mine") })

	// The hub uses an account of its own there, not the credentials of the kubeconfig.
	if text := demo.Kubectl(t, "hub", "get", "secret", "-n", "orrery-cluster", "mine", "-o", "jsonpath={.data.grant}"); text == "" {
		t.Error("the Secret of the cluster has no token of an account that the hub renews")
	}
	// The kubeconfig has a context for the cluster at once.
	demo.Kubectl(t, "mine", "get", "namespaces")

	// A join of the same cluster under another name, or of the hub itself, is refused. A busy
	// hub may not answer the join in time. The error then says so, and nothing about the
	// cluster.
	refused := func(says string, args ...string) {
		t.Helper()
		eventually(t, deadline, func() string {
			out, code := demo.Run(t, append([]string{"cluster", "join"}, args...)...)
			if code == 0 {
				t.Fatalf("join %v: want a refusal:\n%s", args, out)
			}
			if !strings.Contains(out, says) {
				return fmt.Sprintf("join %v: want a refusal that says %q:\n%s", args, says, out)
			}
			return ""
		})
	}
	refused("joined as mine", "other", "--cluster-kubeconfig", file)
	refused("hub itself", "hub", "--cluster-kubeconfig", demo.Kubeconfig(), "--cluster-context", "hub")

	ns := namespace(t, "join")
	apply(t, "hub", strings.ReplaceAll(configMapPolicy(ns), "spec:", "spec:\n  placement: {clusterAffinity: {clusterNames: [mine]}}"))
	apply(t, "hub", configMaps(0, 3, ns))
	eventually(t, deadline, func() string {
		if n, err := countPlaced(t, "mine", ns); err != nil || n != 3 {
			return "waiting for the objects in the new cluster"
		}
		return ""
	})
	demo.Unjoin(t, "mine")
	// The copies stay, without our labels.
	text := kubectlIn(t, file, "get", "configmaps", "-n", ns, "-o", "yaml")
	if n := strings.Count(text, "name: c00"); n != 3 {
		t.Errorf("%d of 3 objects are left after unjoin:\n%s", n, text)
	}
	if strings.Contains(text, "work.orrery.dev/binding") {
		t.Errorf("marks are left after unjoin:\n%s", text)
	}
	// No object of the hub stays, such as the binding that gave its account rights.
	if text := kubectlIn(t, file, "get", "clusterrolebindings", "-o", "name"); strings.Contains(text, "orrery:") {
		t.Errorf("bindings of the hub are left after unjoin:\n%s", text)
	}

	// With --delete-workloads the copies are deleted, and nothing else.
	join(t, "mine", "--cluster-kubeconfig", file)
	// The hub has taken over the orphaned copies.
	hasCondition(t, "FullyApplied=True/FullyApplied", nil, "resourcebinding", "c000-configmap", "-n", ns)
	other := namespace(t, "join-again")
	apply(t, "hub", strings.ReplaceAll(configMapPolicy(other), "spec:", "spec:\n  placement: {clusterAffinity: {clusterNames: [mine]}}"))
	apply(t, "hub", configMaps(0, 3, other))
	// The hub may just be writing a kubeconfig without the context, which the join then did not see.
	eventually(t, deadline, func() string {
		if out, err := demo.TryKubectl("mine", "", "version"); err != nil {
			return out
		}
		return ""
	})
	eventually(t, deadline, func() string {
		if n, err := countPlaced(t, "mine", other); err != nil || n != 3 {
			return fmt.Sprintf("%d of 3 objects are in the cluster that joined again: %v", n, err)
		}
		return ""
	})
	for _, args := range [][]string{{"create", "namespace", "theirs"}, {"create", "configmap", "c00-theirs", "-n", "theirs"}} {
		kubectlIn(t, file, args...)
	}
	demo.Unjoin(t, "mine", "--delete-workloads")
	for namespace, want := range map[string]int{ns: 0, other: 0, "theirs": 1} {
		text := kubectlIn(t, file, "get", "configmaps", "-n", namespace, "-o", "name")
		if n := strings.Count(text, "configmap/c00"); n != want {
			t.Errorf("%d objects are left in namespace %s, want %d:\n%s", n, namespace, want, text)
		}
	}
	// The member's context is gone as well.
	eventually(t, deadline, func() string {
		if out, err := demo.TryKubectl("mine", "", "version"); err == nil || !strings.Contains(out, `"mine" does not exist`) {
			return out
		}
		return ""
	})
}

// TestJoinIsRefused joins with kubeconfigs that cannot work. Each error gives the reason, and
// nothing is stored.
func TestJoinIsRefused(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(filepath.Join(demo.Dir(), "members", "oak", "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	edit := func(change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
		t.Helper()
		c, err := clientcmd.Load(good)
		if err != nil {
			t.Fatal(err)
		}
		context := c.Contexts[c.CurrentContext]
		change(c.Clusters[context.Cluster], c.AuthInfos[context.AuthInfo])
		text, err := clientcmd.Write(*c)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	certificate, key := expiredCertificate(t)
	for name, tc := range map[string]struct {
		kubeconfig []byte
		args, says []string
	}{
		"PointsNowhere": {edit(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://127.0.0.1:1" }), nil, []string{"127.0.0.1:1", "connection refused"}},
		"ExpiredCertificate": {edit(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			*u = clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
		}), nil, []string{"expired at"}},
		"RevokedToken":  {edit(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Token = "hunter2" }), nil, []string{"refuses the credentials"}},
		"JoinedAsOak":   {good, nil, []string{"oak"}},
		"NoSuchContext": {good, []string{"--cluster-context", "moon"}, []string{"moon"}},
		"NoKubeconfig":  {[]byte("apples: and oranges\n"), nil, []string{"refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(file, tc.kubeconfig, 0o600); err != nil {
				t.Fatal(err)
			}
			eventually(t, deadline, func() string { // a busy hub may give another reason
				out, code := demo.Run(t, append([]string{"cluster", "join", "refused", "--cluster-kubeconfig", file}, tc.args...)...)
				if code != 1 || strings.Contains(out, "hunter2") {
					t.Fatalf("exit code %d, want 1 and no secret:\n%s", code, out)
				}
				for _, want := range append([]string{"error: join cluster refused: "}, tc.says...) {
					if !strings.Contains(out, want) {
						return fmt.Sprintf("it does not say %q:\n%s", want, out)
					}
				}
				return ""
			})
			absent(t, "hub", "cluster", "refused")
			absent(t, "hub", "secret", "refused", "-n", "orrery-cluster")
		})
	}
}

func expiredCertificate(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	certificateDER, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificateDER}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}
