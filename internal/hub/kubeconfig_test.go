package hub

import (
	"bytes"
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestUserKubeconfig(t *testing.T) {
	const (
		base  = "https://127.0.0.1:6443"
		group = base + "/apis/fleet.orrery.dev/v1alpha1"
	)
	for name, c := range map[string]struct {
		members []string
		old     func(*clientcmdapi.Config)
		servers map[string]string
		current string
		spaces  map[string]string
	}{
		"New": {
			servers: map[string]string{"hub": base, "fleet": group + "/resources/fleet/proxy", "fleet-qualified": group + "/resources/qualified/proxy"},
			current: "hub",
		},
		"Members": {
			members: []string{"oak", "fleet"},
			servers: map[string]string{
				"hub": base, "fleet": group + "/resources/fleet/proxy", "fleet-qualified": group + "/resources/qualified/proxy",
				"oak": group + "/clusters/oak/proxy", "member/fleet": group + "/clusters/fleet/proxy",
			},
			current: "hub",
		},
		"UsersChoiceIsKept": {
			members: []string{"oak"},
			old: func(old *clientcmdapi.Config) {
				old.CurrentContext = "oak"
				old.Contexts["fleet"] = &clientcmdapi.Context{Namespace: "shop"}
				old.Contexts["oak"] = &clientcmdapi.Context{}
			},
			servers: map[string]string{"hub": base, "fleet": group + "/resources/fleet/proxy", "fleet-qualified": group + "/resources/qualified/proxy", "oak": group + "/clusters/oak/proxy"},
			current: "oak",
			spaces:  map[string]string{"fleet": "shop"},
		},
		"MemberLeft": {
			old: func(old *clientcmdapi.Config) {
				old.CurrentContext = "oak"
				old.Contexts["oak"] = &clientcmdapi.Context{}
			},
			servers: map[string]string{"hub": base, "fleet": group + "/resources/fleet/proxy", "fleet-qualified": group + "/resources/qualified/proxy"},
			current: "hub",
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := clientcmdapi.NewConfig()
			if c.old != nil {
				c.old(old)
			}
			got := userKubeconfig(&clientcmdapi.Cluster{Server: base + "/"}, &clientcmdapi.AuthInfo{}, c.members, old)
			servers, spaces := map[string]string{}, map[string]string(nil)
			for name, context := range got.Contexts {
				servers[name] = got.Clusters[context.Cluster].Server
				if context.Namespace != "" {
					spaces = map[string]string{name: context.Namespace}
				}
			}
			// The server URL of the base has a trailing slash, which the hub's own context
			// loses too.
			if diff := cmp.Diff(c.servers, servers); diff != "" {
				t.Errorf("servers: %s", diff)
			}
			if diff := cmp.Diff(c.current, got.CurrentContext); diff != "" {
				t.Errorf("current context: %s", diff)
			}
			if diff := cmp.Diff(c.spaces, spaces); diff != "" {
				t.Errorf("namespaces: %s", diff)
			}
		})
	}
}

func TestKnownMembers(t *testing.T) {
	config := userKubeconfig(&clientcmdapi.Cluster{Server: "https://hub"}, &clientcmdapi.AuthInfo{}, []string{"oak", "hub", "elm"}, clientcmdapi.NewConfig())
	if diff := cmp.Diff([]string{"elm", "hub", "oak"}, knownMembers(config)); diff != "" {
		t.Error(diff)
	}
}

// TestKubeconfigGetsTheRenewedCertificate: a kubeconfig that could not be written after a renewal
// is written later, although nothing is renewed then.
func TestKubeconfigGetsTheRenewedCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{BindAddress: loopbackAddress, PublicAddress: loopbackAddress, renewalInterval: time.Hour}
		h := &Hub{options: o, dir: dataDir(t.TempDir())}
		h.keys = keyring{dir: h.dir, leaves: leaves(o), now: time.Now}
		if err := os.MkdirAll(h.dir.pki(""), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := h.keys.ensure(); err != nil {
			t.Fatal(err)
		}
		h.keys.now = later(300 * 24 * time.Hour)
		// A directory prevents that a file is written there.
		if err := os.Mkdir(h.dir.kubeconfig(), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go h.renewCertificates(ctx, logr.Discard())
		time.Sleep(o.renewalInterval)
		synctest.Wait()
		if err := os.Remove(h.dir.kubeconfig()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(o.renewalInterval)
		synctest.Wait()
		config, err := clientcmd.LoadFromFile(h.dir.kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		admin, err := os.ReadFile(h.dir.leaf(adminCert))
		if err != nil {
			t.Fatal(err)
		}
		if got := config.AuthInfos["hub-admin"].ClientCertificateData; len(got) == 0 || !bytes.HasPrefix(admin, got) {
			t.Error("the kubeconfig has not the renewed certificate of the administrator")
		}
	})
}
