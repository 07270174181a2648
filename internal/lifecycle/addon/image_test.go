package addon

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

func TestRewrite(t *testing.T) {
	private := clusterv1alpha1.Registry{PrivateRegistry: "hub.example:5000"}
	override := clusterv1alpha1.Registry{PrivateRegistry: "hub.example:5000", NamespaceOverride: "team/k8s"}
	cases := map[string]struct {
		registry clusterv1alpha1.Registry
		ref      string
		want     string
	}{
		"None":             {clusterv1alpha1.Registry{NamespaceOverride: "x"}, "registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.1"},
		"Host":             {private, "registry.k8s.io/coredns/coredns:v1", "hub.example:5000/coredns/coredns:v1"},
		"NoPath":           {private, "registry.k8s.io/pause:3.10.1", "hub.example:5000/pause:3.10.1"},
		"HubName":          {private, "busybox", "hub.example:5000/library/busybox"},
		"HubNameWithTag":   {private, "busybox:1.36", "hub.example:5000/library/busybox:1.36"},
		"HubPath":          {private, "kubeovn/kube-ovn:v1", "hub.example:5000/kubeovn/kube-ovn:v1"},
		"Localhost":        {private, "localhost/a/b", "hub.example:5000/a/b"},
		"Digest":           {private, "ghcr.io/a/b@sha256:0f", "hub.example:5000/a/b@sha256:0f"},
		"AlreadyPrivate":   {override, "hub.example:5000/a/b:1", "hub.example:5000/a/b:1"},
		"Override":         {override, "ghcr.io/flannel-io/flannel:v1", "hub.example:5000/team/k8s/flannel:v1"},
		"OverrideNoPath":   {override, "registry.k8s.io/pause:3.10.1", "hub.example:5000/team/k8s/pause:3.10.1"},
		"OverrideDeepPath": {override, "ghcr.io/a/b/c:v1", "hub.example:5000/team/k8s/b/c:v1"},
		"Empty":            {private, "", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Rewrite(tc.ref, tc.registry)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImagesOfGroups(t *testing.T) {
	groups := mustObjects(t, input(func(in *Input) {
		in.Spec.Registry.PrivateRegistry = "hub.example"
		in.Spec.Addons = []clusterv1alpha1.Addon{{Name: "web", Chart: &clusterv1alpha1.Chart{Path: webChart}}}
	}))
	var got []string
	for _, name := range []string{"dns", "network", "addon-web"} {
		for _, o := range groups[name].Objects {
			for _, c := range containersOf(o) {
				got = append(got, c["image"].(string))
			}
		}
	}
	want := []string{
		"hub.example/coredns/coredns:v1.14.7", "hub.example/flannel-io/flannel-cni-plugin:v1.9.1-flannel1",
		"hub.example/flannel-io/flannel:v0.28.4", "hub.example/flannel-io/flannel:v0.28.4",
		"hub.example/library/web:1", "hub.example/library/web:1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
