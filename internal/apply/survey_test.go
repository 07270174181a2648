package apply

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// ill is the kubeconfig of an API server whose lists and watches of ConfigMaps go to answer first; answer returns false for what
// the API server is to answer.
func (f *fleet) ill(server int, answer func(http.ResponseWriter, *http.Request) bool) []byte {
	f.t.Helper()
	target, err := url.Parse(testenv.Config(server).Host)
	f.must(err)
	through, err := rest.TransportFor(testenv.Config(server))
	f.must(err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Header.Del("Authorization") },
		Transport: through, FlushInterval: -1,
	}
	door := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") && answer(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	f.t.Cleanup(door.Close)
	kubeconfig, err := clientcmd.Load(testenv.Kubeconfig(server))
	f.must(err)
	for _, c := range kubeconfig.Clusters {
		c.Server, c.CertificateAuthorityData = door.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: door.Certificate().Raw})
	}
	raw, err := clientcmd.Write(*kubeconfig)
	f.must(err)
	return raw
}

// TestAClusterThatCannotListATypeHoldsUpItsOwnRemovalsAlone: whatever a cluster answers to a list of a type, or if it answers nothing,
// what is to go from another cluster goes; what the ill cluster may have is waited for, with the reason, until the list succeeds.
func TestAClusterThatCannotListATypeHoldsUpItsOwnRemovalsAlone(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, healed <-chan struct{}){
		"Fails": func(w http.ResponseWriter, _ <-chan struct{}) {
			http.Error(w, "conversion webhook failed", http.StatusInternalServerError)
		},
		"Forbids": func(w http.ResponseWriter, _ <-chan struct{}) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"configmaps is forbidden"}`)
		},
		"IsSilent": func(_ http.ResponseWriter, healed <-chan struct{}) { <-healed },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.start()
			f.join("ash", testenv.Kubeconfig(oakServer))
			ash := f.client(testenv.Config(oakServer))
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			one := f.bind(configMap(ns, "one", "1"), nil, "ash")
			f.result(one, "ash", workv1alpha2.ReasonFullyApplied)

			healed := make(chan struct{})
			heal := sync.OnceFunc(func() { close(healed) })
			asked, ask := make(chan struct{}), sync.Once{}
			f.join("sick", f.ill(elmServer, func(w http.ResponseWriter, r *http.Request) bool {
				select {
				case <-healed:
					return false
				default:
				}
				ask.Do(func() { close(asked) })
				answer(w, healed)
				return true
			}))
			t.Cleanup(heal) // before the server closes, which waits for its requests
			<-asked
			both := f.bind(configMap(ns, "both", "1"), nil, "ash", "sick")
			f.result(both, "ash", workv1alpha2.ReasonFullyApplied)
			f.result(both, "sick", workv1alpha2.ReasonListFails)
			if r, _ := f.applier.Result(both.UID, "sick"); !strings.Contains(r.Message, "cannot list configmaps") {
				t.Errorf("of the copy in the cluster that cannot list its type it is said %q", r.Message)
			}

			f.must(f.hub.Delete(t.Context(), one))
			f.gone(f.hub, one)
			f.gone(ash, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"}})
			f.must(f.hub.Delete(t.Context(), both))
			f.gone(ash, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "both"}})
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(both), both)) // the ill cluster may have a copy

			heal()
			f.gone(f.hub, both)
			f.unjoin("ash")
			f.unjoin("sick")
		})
	}
}
