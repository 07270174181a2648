package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/testenv"
)

// TestUnreachableClusterIsReportedAtOnce: kubectl prints why a cluster is unreachable for every
// command, with and without a cache of discovery. No answer asks for a retry: client-go would
// repeat such requests for a minute.
func TestUnreachableClusterIsReportedAtOnce(t *testing.T) {
	const want = `cluster "oak" is unreachable since 2026-01-02T03:04:05Z: no route to host`
	away := &metav1.Condition{
		Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionUnknown, Message: "no route to host",
		LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}
	home := t.TempDir()
	m := &fakeMember{config: testenv.Config(0)}
	p := New(func(name string) (Member, bool) { return m, name == "oak" })
	var mu sync.Mutex
	var repeat []string // requests whose answers have Retry-After
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer.Func(func(w http.ResponseWriter, r *http.Request) error {
			return p.Serve(w, r.WithContext(request.WithUser(r.Context(), admin)), "oak", r.URL.EscapedPath())
		}).ServeHTTP(w, r)
		mu.Lock()
		defer mu.Unlock()
		asked++
		if after := w.Header().Get("Retry-After"); after != "" {
			repeat = append(repeat, r.Method+" "+r.URL.Path+" after "+after)
		}
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(home, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "oak", Contexts: map[string]*clientcmdapi.Context{"oak": {Cluster: "oak", AuthInfo: "me"}},
		Clusters: map[string]*clientcmdapi.Cluster{"oak": {Server: server.URL}}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {}},
	}, config); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(home, "manifest.yaml")
	if err := os.WriteFile(manifest, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: unreachable-test, namespace: default}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := func(cache string, args ...string) (string, error) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		cmd := exec.CommandContext(ctx, testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", config, "--cache-dir", cache}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		err := cmd.Run()
		return said.String(), err
	}
	warm := t.TempDir()
	for _, args := range [][]string{{"api-resources"}, {"explain", "pods"}} {
		testenv.Eventually(t, "a command of a cluster that is reached", testenv.Patience, func() error {
			said, err := kubectl(warm, args...)
			if err != nil {
				return fmt.Errorf("kubectl %v: %w: %s", args, err, said)
			}
			return nil
		})
	}
	m.unreachable = away
	for _, command := range []string{
		"get pods", "get pods -w", "get all -A", "describe pod web", "logs web", "logs deploy/web", "exec web -- date", "attach web", "port-forward web 8080", "delete pod web",
		"apply -f " + manifest, "create -f " + manifest, "diff -f " + manifest, "api-resources", "version", "top pods", "explain pods", "auth can-i get pods",
		"get --raw /healthz", "get --raw /api", "rollout status deploy/web", "wait --for=delete pod/web", "cordon n1", "edit pod web", "cluster-info",
	} {
		for cache, dir := range map[string]string{"Cold": filepath.Join(t.TempDir(), "cache"), "Warm": warm} {
			t.Run(cache+"/"+command, func(t *testing.T) {
				mu.Lock()
				asked, repeat = 0, nil
				mu.Unlock()
				said, err := kubectl(dir, strings.Fields(command)...)
				if err == nil || !strings.Contains(said, want) {
					t.Errorf("err %v, said:\n%swant %s", err, said, want)
				}
				mu.Lock()
				defer mu.Unlock()
				if asked == 0 || len(repeat) > 0 {
					t.Errorf("%d requests, of which these are to be repeated: %q", asked, slices.Compact(repeat))
				}
			})
		}
	}
}
