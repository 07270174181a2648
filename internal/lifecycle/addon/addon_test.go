package addon

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

// input returns the input of a cluster with flannel. change functions modify it.
func input(change ...func(*Input)) Input {
	in := Input{
		Name: "test", Nodes: 3, APIServer: "127.0.0.1:7443", Endpoint: "192.0.2.10:6443", CA: []byte("PEM"),
		ControlPlanes: []string{"192.0.2.1", "192.0.2.2"}, Local: true,
		Images: map[string]string{
			"coredns":            "registry.k8s.io/coredns/coredns:v1.14.7",
			"flannel":            "ghcr.io/flannel-io/flannel:v0.28.4",
			"flannel-cni-plugin": "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1",
		},
		Fetch: func(_ context.Context, url string) ([]byte, error) { return nil, errors.New("no network: " + url) },
		Spec: &clusterv1alpha1.Provision{
			Kubernetes: clusterv1alpha1.Kubernetes{
				Version: "v1.36.3", ClusterName: "test", DNSDomain: "cluster.local", ProxyMode: "nftables",
			},
			Network: clusterv1alpha1.Network{
				Plugin: "flannel", KubePodsCIDR: "10.233.64.0/18", KubeServiceCIDR: "10.233.0.0/18",
				Flannel: clusterv1alpha1.Flannel{BackendMode: "vxlan"},
			},
		},
	}
	for _, f := range change {
		f(&in)
	}
	return in
}

// mustObjects returns the groups of an input by name.
func mustObjects(t *testing.T, in Input) map[string]Group {
	t.Helper()
	groups, err := Objects(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Group{}
	for _, g := range groups {
		byName[g.Name] = g
	}
	return byName
}

// find returns an object of a group.
func find(t *testing.T, g Group, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range g.Objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	t.Fatalf("group %s has no %s %s", g.Name, kind, name)
	return nil
}

// at reads a field by its path. It takes the first item of lists.
func at(t *testing.T, o *unstructured.Unstructured, path ...string) any {
	t.Helper()
	var value any = o.Object
	for _, name := range path {
		if list, ok := value.([]any); ok && len(list) > 0 {
			value = list[0]
		}
		m, ok := value.(map[string]any)
		if !ok {
			t.Fatalf("%s of %s: no map at %s", strings.Join(path, "."), o.GetName(), name)
		}
		value = m[name]
	}
	return value
}

func TestGroups(t *testing.T) {
	cases := map[string]struct {
		change func(*Input)
		want   []string
	}{
		"Default": {func(*Input) {}, []string{"bootstrap", "dns", "network"}},
		"NoNetwork": {
			func(in *Input) { in.Spec.Network.Plugin = "none" },
			[]string{"bootstrap", "dns"},
		},
		"Addons": {
			func(in *Input) {
				in.Spec.Addons = []clusterv1alpha1.Addon{
					{Name: "b", Chart: &clusterv1alpha1.Chart{Path: webChart}},
					{Name: "a", YAML: []string{"testdata/crd.yaml"}},
				}
			},
			[]string{"bootstrap", "dns", "network", "addon-b", "addon-a"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			groups, err := Objects(t.Context(), input(tc.change))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range groups {
				got = append(got, g.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDNS(t *testing.T) {
	type service struct {
		ClusterIPs, Families any
		Policy               any
	}
	cases := map[string]struct {
		cidr     string
		nodes    int
		want     service
		replicas any
	}{
		"IPv4": {
			"10.233.0.0/18", 3,
			service{[]any{"10.233.0.10"}, []any{"IPv4"}, "SingleStack"},
			int64(2),
		},
		"OneNode": {
			"10.96.0.0/12", 1,
			service{[]any{"10.96.0.10"}, []any{"IPv4"}, "SingleStack"},
			int64(1),
		},
		"IPv6": {
			"fd00:1::/112", 2,
			service{[]any{"fd00:1::a"}, []any{"IPv6"}, "SingleStack"},
			int64(2),
		},
		"DualStack": {
			"10.233.0.0/18, fd00:1::/112", 2,
			service{[]any{"10.233.0.10", "fd00:1::a"}, []any{"IPv4", "IPv6"}, "RequireDualStack"},
			int64(2),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := mustObjects(t, input(func(in *Input) {
				in.Spec.Network.KubeServiceCIDR = tc.cidr
				in.Nodes = tc.nodes
				in.Spec.Kubernetes.DNSDomain = "example.org"
			}))["dns"]
			svc := find(t, g, "Service", "kube-dns")
			got := service{at(t, svc, "spec", "clusterIPs"), at(t, svc, "spec", "ipFamilies"), at(t, svc, "spec", "ipFamilyPolicy")}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.replicas, at(t, find(t, g, "Deployment", "coredns"), "spec", "replicas")); diff != "" {
				t.Error(diff)
			}
			corefile, _ := at(t, find(t, g, "ConfigMap", "coredns"), "data", "Corefile").(string)
			if !strings.Contains(corefile, "kubernetes example.org in-addr.arpa") {
				t.Errorf("Corefile does not serve the domain:\n%s", corefile)
			}
		})
	}
}

func TestFlannel(t *testing.T) {
	cases := map[string]struct {
		change func(*Input)
		want   map[string]any
	}{
		"VXLAN": {func(*Input) {}, map[string]any{
			"Network": "10.233.64.0/18", "EnableIPv4": true, "EnableIPv6": false, "EnableNFTables": true,
			"Backend": map[string]any{"Type": "vxlan"},
		}},
		"DualStackHostGateway": {
			func(in *Input) {
				in.Spec.Network.KubePodsCIDR = "10.233.64.0/18,fd00:2::/56"
				in.Spec.Network.Flannel = clusterv1alpha1.Flannel{BackendMode: "host-gw", DirectRouting: true}
				in.Spec.Kubernetes.ProxyMode = "iptables"
			},
			map[string]any{
				"Network": "10.233.64.0/18", "IPv6Network": "fd00:2::/56", "EnableIPv4": true, "EnableIPv6": true,
				"EnableNFTables": false, "Backend": map[string]any{"Type": "host-gw", "DirectRouting": true},
			},
		},
		"IPv6": {
			func(in *Input) { in.Spec.Network.KubePodsCIDR = "fd00:2::/56" },
			map[string]any{
				"IPv6Network": "fd00:2::/56", "EnableIPv4": false, "EnableIPv6": true, "EnableNFTables": true,
				"Backend": map[string]any{"Type": "vxlan"},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := mustObjects(t, input(tc.change))["network"]
			text, _ := at(t, find(t, g, "ConfigMap", "kube-flannel-cfg"), "data", "net-conf.json").(string)
			var got map[string]any
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFlannelRestarts: flannel reads its configuration only at its start, so another configuration
// must change the pods.
func TestFlannelRestarts(t *testing.T) {
	pods := func(in Input) any {
		return at(t, find(t, mustObjects(t, in)["network"], "DaemonSet", "kube-flannel-ds"), "spec", "template")
	}
	before := pods(input())
	if diff := cmp.Diff(before, pods(input())); diff != "" {
		t.Errorf("the same input makes other pods: %s", diff)
	}
	if cmp.Equal(before, pods(input(func(in *Input) { in.Spec.Network.Flannel.BackendMode = "host-gw" }))) {
		t.Error("another backend makes the same pods")
	}
}

// TestProbesStartNoProcesses: a probe that lasts as long as its pod starts no process in a
// container. Each such process costs its node some percent of a core, and fails where the node is
// busy.
func TestProbesStartNoProcesses(t *testing.T) {
	found := 0
	for _, g := range mustObjects(t, input()) {
		for _, o := range g.Objects {
			if kind := o.GetKind(); kind != "DaemonSet" && kind != "Deployment" {
				continue
			}
			for _, c := range containersOf(o) {
				found++
				for _, probe := range []string{"readinessProbe", "livenessProbe"} {
					p, _ := c[probe].(map[string]any)
					if p["exec"] != nil {
						t.Errorf("%s %s: the %s of container %v is %v", o.GetKind(), o.GetName(), probe, c["name"], p)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no container was found")
	}
}

func TestFlannelReachesAPIServer(t *testing.T) {
	g := mustObjects(t, input())["network"]
	c := containersOf(find(t, g, "DaemonSet", "kube-flannel-ds"))
	got := map[any]any{}
	for _, item := range c[len(c)-1]["env"].([]any) {
		v := item.(map[string]any)
		got[v["name"]] = v["value"]
	}
	if got["KUBERNETES_SERVICE_HOST"] != "127.0.0.1" || got["KUBERNETES_SERVICE_PORT"] != "7443" {
		t.Errorf("flannel is told to use %v", got)
	}
}

func TestBadInput(t *testing.T) {
	cases := map[string]struct {
		change func(*Input)
		want   string
	}{
		"NoImage":        {func(in *Input) { delete(in.Images, "coredns") }, "no image coredns"},
		"SmallServices":  {func(in *Input) { in.Spec.Network.KubeServiceCIDR = "10.0.0.0/29" }, "kubeServiceCIDR: 10.0.0.0/29 has no place"},
		"BadPods":        {func(in *Input) { in.Spec.Network.KubePodsCIDR = "pods" }, "kubePodsCIDR"},
		"NoPlugin":       {func(in *Input) { in.Spec.Network.Plugin = "calico" }, "set spec.provision.network.manifest or chart"},
		"BadAPIServer":   {func(in *Input) { in.APIServer = "nowhere" }, "address of the API server"},
		"AddonName":      {addonWith(clusterv1alpha1.Addon{Name: "A b", YAML: []string{"x"}}), `addons[0] (A b): name "A b"`},
		"AddonNoFile":    {addonWith(clusterv1alpha1.Addon{Name: "a", YAML: []string{"testdata/none.yaml"}}), "testdata/none.yaml"},
		"AddonNoNetwork": {addonWith(clusterv1alpha1.Addon{Name: "a", YAML: []string{"https://192.0.2.1/a.yaml"}}), "no network: https://192.0.2.1/a.yaml"},
		"AddonEmpty":     {addonWith(clusterv1alpha1.Addon{Name: "a", YAML: []string{"testdata/empty.yaml"}}), "no object in it"},
		"AddonTwice": {
			addonWith(clusterv1alpha1.Addon{Name: "a", YAML: []string{"testdata/crd.yaml", "testdata/crd.yaml"}}),
			"one is in addon-a twice: leave one",
		},
		"AddonsShare": {func(in *Input) {
			in.Spec.Addons = []clusterv1alpha1.Addon{
				{Name: "a", YAML: []string{"testdata/crd.yaml"}}, {Name: "b", YAML: []string{"testdata/other.yaml"}},
			}
		}, "ConfigMap kube-system/widgets is in addon-a and, not the same, in addon-b"},
		"PathFromElsewhere": {func(in *Input) {
			in.Local = false
			addonWith(clusterv1alpha1.Addon{Name: "a", YAML: []string{"/etc/passwd"}})(in)
		}, "a path is only for files"},
		"ChartPathFromElsewhere": {func(in *Input) {
			in.Local = false
			addonWith(clusterv1alpha1.Addon{Name: "a", Chart: &clusterv1alpha1.Chart{Path: webChart}})(in)
		}, "a path is only for files"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Objects(t.Context(), input(tc.change))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func addonWith(a clusterv1alpha1.Addon) func(*Input) {
	return func(in *Input) { in.Spec.Addons = []clusterv1alpha1.Addon{a} }
}

// TestAddonNamespaces: a namespace of several add-ons is in one group only. If a manifest has it,
// that form is used.
func TestAddonNamespaces(t *testing.T) {
	groups, err := Objects(t.Context(), input(func(in *Input) {
		in.Spec.Addons = []clusterv1alpha1.Addon{
			{Name: "a", Namespace: "shared", YAML: []string{"testdata/crd.yaml"}},
			{Name: "b", Namespace: "shared", YAML: []string{"testdata/namespace.yaml"}},
			{Name: "c", Namespace: "own", YAML: []string{"testdata/other.yaml"}},
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups {
		for _, o := range g.Objects {
			if o.GetKind() == "Namespace" {
				got = append(got, g.Name+" "+o.GetName()+" "+o.GetLabels()["from"])
			}
		}
	}
	if diff := cmp.Diff([]string{"network kube-flannel ", "addon-a shared ", "addon-b own manifest"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCalico(t *testing.T) {
	manifest := `
kind: ConfigMap
apiVersion: v1
metadata: {name: calico-config, namespace: kube-system}
data:
  cni_network_config: |-
    {"plugins": [{"type": "calico", "mtu": __CNI_MTU__, "nodename": "__KUBERNETES_NODE_NAME__", "ipam": {"type": "calico-ipam"}}]}
---
kind: DaemonSet
apiVersion: apps/v1
metadata: {name: calico-node, namespace: kube-system}
spec:
  template:
    spec:
      containers:
      - name: calico-node
        image: quay.io/calico/node:v3.31.0
        env:
        - {name: CALICO_IPV4POOL_CIDR, value: 192.168.0.0/16}
        - {name: FELIX_IPV6SUPPORT, value: "false"}
        - {name: WAIT_FOR_DATASTORE, value: "true"}
`
	in := input(func(in *Input) {
		in.Spec.Network.Plugin = "calico"
		in.Spec.Network.KubePodsCIDR = "10.1.0.0/16,fd00:2::/56"
		in.Plugin = catalog.Plugin{Manifest: "https://calico.example/calico.yaml"}
		in.Fetch = func(context.Context, string) ([]byte, error) { return []byte(manifest), nil }
	})
	g := mustObjects(t, in)["network"]
	got := map[any]any{}
	for _, item := range containersOf(find(t, g, "DaemonSet", "calico-node"))[0]["env"].([]any) {
		v := item.(map[string]any)
		if _, twice := got[v["name"]]; twice {
			t.Errorf("%s is set twice", v["name"])
		}
		got[v["name"]] = v["value"]
	}
	want := map[any]any{
		"CALICO_IPV4POOL_CIDR": "10.1.0.0/16", "CALICO_IPV6POOL_CIDR": "fd00:2::/56", "CALICO_IPV6POOL_NAT_OUTGOING": "true",
		"IP6": "autodetect", "FELIX_IPV6SUPPORT": "true", "FELIX_NFTABLESMODE": "Enabled", "WAIT_FOR_DATASTORE": "true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	conf, _ := at(t, find(t, g, "ConfigMap", "calico-config"), "data", "cni_network_config").(string)
	for _, part := range []string{`"mtu": __CNI_MTU__`, `"assign_ipv6": "true"`, `"nodename": "__KUBERNETES_NODE_NAME__"`} {
		if !strings.Contains(conf, part) {
			t.Errorf("the CNI configuration has no %s:\n%s", part, conf)
		}
	}
	if diff := cmp.Diff([]ReadinessCheck{{Kind: "DaemonSet", Namespace: "kube-system", Name: "calico-node"}}, g.ReadinessChecks); diff != "" {
		t.Error(diff)
	}
}

// TestPluginValues renders a chart that shows the values it gets.
func TestPluginValues(t *testing.T) {
	cases := map[string]struct {
		change func(*Input)
		want   map[string]any
	}{
		"Cilium": {
			func(in *Input) {
				in.Spec.Network.Plugin = "cilium"
				in.Spec.Kubernetes.DisableKubeProxy = true
			},
			map[string]any{
				"cluster": map[string]any{"name": "test"}, "ipam": map[string]any{"mode": "kubernetes"},
				"ipv4": map[string]any{"enabled": true}, "ipv6": map[string]any{"enabled": false},
				"kubeProxyReplacement": true, "k8sServiceHost": "127.0.0.1", "k8sServicePort": "7443",
				"operator": map[string]any{"replicas": 2.0},
				"hubble":   map[string]any{"tls": map[string]any{"auto": map[string]any{"method": "cronJob"}}},
			},
		},
		"KubeOVNDualStack": {
			func(in *Input) {
				in.Spec.Network.Plugin = "kubeovn"
				in.Spec.Network.KubePodsCIDR = "10.1.0.0/16,fd00:2::/64"
				in.Spec.Network.KubeServiceCIDR = "10.2.0.0/16,fd00:3::/112"
			},
			map[string]any{
				"MASTER_NODES": "192.0.2.1,192.0.2.2", "MASTER_NODES_LABEL": "node-role.kubernetes.io/control-plane=",
				"networking": map[string]any{"NET_STACK": "dual_stack"},
				"dual_stack": map[string]any{
					"POD_CIDR": "10.1.0.0/16,fd00:2::/64", "POD_GATEWAY": "10.1.0.1,fd00:2::1", "SVC_CIDR": "10.2.0.0/16,fd00:3::/112",
				},
			},
		},
		"SpecOverrides": {
			func(in *Input) {
				in.Spec.Network.Plugin = "cilium"
				in.Spec.Network.Chart.Values = &apiextensionsv1.JSON{
					Raw: []byte(`{"ipam": {"mode": "cluster-pool", "operator": {"x": 1}}, "operator": {"replicas": 1}}`),
				}
			},
			map[string]any{
				"cluster": map[string]any{"name": "test"},
				"ipam":    map[string]any{"mode": "cluster-pool", "operator": map[string]any{"x": 1.0}},
				"ipv4":    map[string]any{"enabled": true}, "ipv6": map[string]any{"enabled": false},
				"kubeProxyReplacement": false, "k8sServiceHost": "127.0.0.1", "k8sServicePort": "7443",
				"operator": map[string]any{"replicas": 1.0},
				"hubble":   map[string]any{"tls": map[string]any{"auto": map[string]any{"method": "cronJob"}}},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := mustObjects(t, input(func(in *Input) {
				in.Spec.Network.Chart = &clusterv1alpha1.Chart{Path: "testdata/charts/values"}
				tc.change(in)
			}))["network"]
			text, _ := at(t, find(t, g, "ConfigMap", "values"), "data", "values").(string)
			var got map[string]any
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			delete(got, "global")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestClusterInfo(t *testing.T) {
	g := mustObjects(t, input())["bootstrap"]
	text, _ := at(t, find(t, g, "ConfigMap", "cluster-info"), "data", "kubeconfig").(string)
	if !strings.Contains(text, "https://192.0.2.10:6443") || !strings.Contains(text, "certificate-authority-data: UEVN") {
		t.Errorf("cluster-info is\n%s", text)
	}
}
