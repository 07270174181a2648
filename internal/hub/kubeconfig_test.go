package hub

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
			// The base has a trailing slash, which the hub's own context loses too.
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
