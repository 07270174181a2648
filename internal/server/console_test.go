package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/enrollment"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/server"
	"orrery.dev/orrery/internal/testenv"
)

// TestConsole: through the public listener of a server, a session acts as its user on the hub's
// API server and in the fleet API. It cannot create a link that is valid longer than itself.
func TestConsole(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	ended, started := make(chan error, 1), make(chan *hub.Hub, 1)
	go func() {
		ended <- server.Run(ctx, server.Options{
			Hub: hub.Options{DataDir: filepath.Join(t.TempDir(), "hub"), KubeBinary: testenv.KubeBinary(), UnsafeNoFsync: true},
		}, logr.Discard(), func(h *hub.Hub) error { started <- h; return nil })
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	var h *hub.Hub
	select {
	case h = <-started:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	c, err := client.New(h.Config(), client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(h.Config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "robot"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var url string
	var ca []byte
	testenv.Eventually(t, "the server says where it is reached", testenv.Patience, func() error {
		url, ca, _, err = enrollment.Published(t.Context(), c)
		return err
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	// ask repeats a request while the answer is a temporary error.
	ask := func(method, path, body string) (code int, answer string) {
		t.Helper()
		testenv.Eventually(t, method+" "+path, testenv.Patience, func() error {
			r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Origin", url)
			r.Header.Set("Content-Type", "application/json")
			response, err := browser.Do(r)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				return err
			}
			code, answer = response.StatusCode, string(text)
			switch code {
			case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
				return fmt.Errorf("%s: %s", response.Status, answer)
			}
			return nil
		})
		return code, answer
	}
	// The page or, in a build without Node, how to get it.
	if code, text := ask(http.MethodGet, "/", ""); code != http.StatusOK && code != http.StatusNotImplemented {
		t.Errorf("%d %s", code, text)
	}
	if code, text := ask(http.MethodPost, "/console/api/session", `{"token": "`+token.Status.Token+`"}`); code != http.StatusCreated || !strings.Contains(text, `"user":"system:serviceaccount:default:robot"`) {
		t.Fatalf("%d %s", code, text)
	}
	const fleet = "/console/api/hub" + fleetv1alpha1.FleetPath
	testenv.Eventually(t, "the fleet API answers a session", testenv.Patience, func() error {
		if code, text := ask(http.MethodGet, fleet+"/api", ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	if code, text := ask(http.MethodPost, fleet+"/apis/authentication.k8s.io/v1/selfsubjectreviews",
		`{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`); code != http.StatusCreated || !strings.Contains(text, `"username":"system:serviceaccount:default:robot"`) {
		t.Errorf("%d %s", code, text)
	}
	// A user creates a link for themselves, with their name and groups.
	config := h.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "alice", UID: "7", Groups: []string{"readers", "system:authenticated"}}
	alice, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	made, err := alice.RESTClient().Post().AbsPath(fleetv1alpha1.ConsoleLinksPath).Do(t.Context()).Raw()
	if err == nil {
		var link fleetv1alpha1.ConsoleLink
		if err := json.Unmarshal(made, &link); err != nil {
			t.Fatal(err)
		}
		_, secret, _ := strings.Cut(link.Status.URL, url+"/console/#link=")
		robot := browser.Jar
		browser.Jar, _ = cookiejar.New(nil)
		if code, text := ask(http.MethodPost, "/console/api/session", `{"link": "`+secret+`"}`); code != http.StatusCreated || !strings.Contains(text, `"user":"alice","groups":["readers","system:authenticated"]`) {
			t.Errorf("%d %s", code, text)
		}
		browser.Jar = robot
	} else if !strings.Contains(string(made), string(fleetv1alpha1.ReasonNoConsole)) {
		// A build without Node.
		t.Errorf("%v %s", err, made)
	}
	for _, path := range []string{"consolelinks", "consolelink%73", "consolelinks?x=y"} {
		if code, text := ask(http.MethodPost, "/console/api/hub/apis/fleet.orrery.dev/v1alpha1/"+path, ""); code != http.StatusForbidden || !strings.Contains(text, "outlast") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}
