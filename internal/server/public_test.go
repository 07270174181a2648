package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/enrollment"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
)

// TestPublicListener: a server publishes its address for agents. It answers there with a
// certificate of the published authority, also after a restart.
func TestPublicListener(t *testing.T) {
	api := testenv.StartServer(t)
	c, err := client.New(api.Config(), client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	r := startReplica(t, api.Config())
	r.ready(t)
	var published string
	testenv.Eventually(t, "the server says where agents find it", testenv.Patience, func() error {
		url, ca, _, err := enrollment.Published(t.Context(), c)
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		outside := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
		for path, want := range map[string]int{
			"/healthz": http.StatusOK, tunnel.Path: http.StatusBadRequest, tunnel.ReportPath: http.StatusBadRequest,
			tunnel.RedeemPath: http.StatusMethodNotAllowed, "/api/v1/namespaces": http.StatusNotFound,
		} {
			response, err := outside.Get(url + path)
			if err != nil {
				return err
			}
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK && want != http.StatusOK {
				t.Fatalf("%s answers %s, want %d", path, response.Status, want)
			}
			if response.StatusCode != want {
				return fmt.Errorf("%s answers %s, want %d", path, response.Status, want)
			}
		}
		published = url
		return nil
	})
	if !enrollment.OnlyLocal(published) {
		t.Errorf("without flags it is reached at %s", published)
	}
}
