package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/proxy"
)

// awayMember is a cluster that is unreachable for the hub.
type awayMember struct{}

func (awayMember) Passage() *member.Passage { panic("the cluster is asked") }
func (awayMember) Reachable() bool          { return false }
func (awayMember) Cluster() *clusterv1alpha1.Cluster {
	return &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak"}, Status: clusterv1alpha1.ClusterStatus{Conditions: []metav1.Condition{{
		Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionUnknown, Message: "no route to host",
		LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}}}}
}

// TestUnreachableClusterPrintsHubMessage: commands that send requests to a cluster print
// the hub's sentence when the cluster is unreachable, and nothing else.
func TestUnreachableClusterPrintsHubMessage(t *testing.T) {
	const sentence = `cluster "oak" is unreachable since 2026-01-02T03:04:05Z: no route to host`
	p := proxy.New(func(name string) (proxy.Member, bool) { return awayMember{}, name == "oak" })
	hub := httptest.NewServer(answer.Func(func(w http.ResponseWriter, r *http.Request) error {
		r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "alice"}))
		return p.Serve(w, r, "oak", strings.TrimPrefix(r.URL.EscapedPath(), fleetv1alpha1.ClustersPath+"/oak/proxy"))
	}))
	t.Cleanup(hub.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "hub", Contexts: map[string]*clientcmdapi.Context{"hub": {Cluster: "hub", AuthInfo: "me"}},
		Clusters: map[string]*clientcmdapi.Cluster{"hub": {Server: hub.URL}}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {}},
	}, config); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"get --live -C oak pods":            "Error from server (ServiceUnavailable): " + sentence + "\n",
		"get --live -C oak pod web -w":      "Error from server (ServiceUnavailable): " + sentence + "\n",
		"exec -C oak web -- date":           "Error from server (ServiceUnavailable): " + sentence + "\n",
		"exec -C oak deploy/web -- date":    "Error from server (ServiceUnavailable): " + sentence + "\n",
		"attach -C oak web":                 "Error from server (ServiceUnavailable): " + sentence + "\n",
		"logs -C oak web":                   "error: cluster oak: Error from server (ServiceUnavailable): " + sentence + "\nerror: 1 of 1 logs failed (errors above)\n",
		"logs -C oak deploy/web":            "error: cluster oak: Error from server (ServiceUnavailable): " + sentence + "\nerror: 1 of 1 logs failed (errors above)\n",
		"promote -C oak deploy/web -n shop": "Error from server (ServiceUnavailable): " + sentence + "\n",
	} {
		t.Run(command, func(t *testing.T) {
			var out, errOut bytes.Buffer
			words := strings.Fields(command)
			code := Main(append([]string{words[0], "--kubeconfig=" + config}, words[1:]...), strings.NewReader(""), &out, &errOut)
			if diff := cmp.Diff(want, errOut.String()); code != 1 || diff != "" {
				t.Errorf("code %d, output %q, errors (-want, +got):\n%s", code, out.String(), diff)
			}
		})
	}
}
