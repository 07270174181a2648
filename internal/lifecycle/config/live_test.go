package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/config"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

// seed creates the objects of a kind of cluster.
type seed struct {
	t      *testing.T
	client kubernetes.Interface
}

func (s seed) node(name string, labels map[string]string, taint string, cidrs []string, ips ...string) {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	if len(cidrs) > 0 {
		node.Spec.PodCIDR = cidrs[0]
	}
	if taint != "" {
		node.Spec.Taints = []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}
	}
	made, err := s.client.CoreV1().Nodes().Create(s.t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	made.Spec.Taints = node.Spec.Taints // the API server adds a not-ready taint
	if made, err = s.client.CoreV1().Nodes().Update(s.t.Context(), made, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	made.Status.NodeInfo.Architecture = "amd64"
	made.Status.Capacity = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("200")}
	for _, ip := range ips {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(s.t.Context(), made, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s seed) configMap(name, key, value string) {
	s.t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}, Data: map[string]string{key: value}}
	if _, err := s.client.CoreV1().ConfigMaps("kube-system").Create(s.t.Context(), object, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s seed) daemonSet(name string) {
	s.t.Helper()
	labels := map[string]string{"app": name}
	object := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	}
	if _, err := s.client.AppsV1().DaemonSets("kube-system").Create(s.t.Context(), object, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// clear removes the objects of the previous test.
func (s seed) clear() {
	s.t.Helper()
	ctx, all := s.t.Context(), metav1.ListOptions{}
	errs := []error{
		s.client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		s.client.AppsV1().DaemonSets("kube-system").DeleteCollection(ctx, metav1.DeleteOptions{}, all),
	}
	for _, name := range []string{"kubeadm-config", "kube-proxy", "coredns"} {
		errs = append(errs, s.client.CoreV1().ConfigMaps("kube-system").DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "metadata.name=" + name}))
	}
	for _, err := range errs {
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestFromCluster(t *testing.T) {
	cfg := testenv.Config(0)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	services, err := client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const port = 16443
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port))}},
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cidr := strings.Join(services.Spec.CIDRs, ",")

	plane := map[string]string{"node-role.kubernetes.io/control-plane": "", "kubernetes.io/os": "linux"}
	const taint = "node-role.kubernetes.io/control-plane"
	kubeadm := `
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controlPlaneEndpoint: ENDPOINT
networking: {dnsDomain: example.local, podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/16}
etcd:
  external: {endpoints: ETCD}
`
	as := func(endpoint, etcd string) string {
		return strings.NewReplacer("ENDPOINT", endpoint, "ETCD", etcd).Replace(kubeadm)
	}
	host := func(n, ip string) clusterv1alpha1.Host {
		return clusterv1alpha1.Host{Name: n, Address: ip, Arch: "amd64"}
	}
	cases := map[string]struct {
		seed func(s seed)
		want clusterv1alpha1.Provision
		// notes are the beginnings of notes at the head of the file, beside that about logins.
		notes []string
	}{
		"OfKubeKey": {
			seed: func(s seed) {
				s.node("node1", plane, taint, nil, "10.0.0.1")
				s.node("node2", map[string]string{"disk": "ssd", "example.com/rack": "true"}, "", nil, "10.0.0.2")
				s.configMap("kubeadm-config", "ClusterConfiguration", as("10.0.0.1:6443", `["https://10.0.0.1:2379"]`))
				s.configMap("kube-proxy", "config.conf", "mode: ipvs\nclusterCIDR: 10.9.0.0/16\n")
				s.daemonSet("calico-node")
			},
			want: clusterv1alpha1.Provision{
				Hosts: []clusterv1alpha1.Host{
					host("node1", "10.0.0.1"),
					{Name: "node2", Address: "10.0.0.2", Arch: "amd64", Labels: map[string]string{"disk": "ssd", "example.com/rack": "true"}},
				},
				RoleGroups:           map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {"node1"}, "worker": {"node2"}, "etcd": {"node1"}},
				ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Port: port},
				Kubernetes:           clusterv1alpha1.Kubernetes{DNSDomain: "example.local", ProxyMode: "ipvs", MaxPods: 200},
				Network:              clusterv1alpha1.Network{Plugin: "calico", KubePodsCIDR: "10.244.0.0/16", KubeServiceCIDR: "10.96.0.0/16"},
			},
		},
		"OfKubeadmWithLoadBalancer": {
			seed: func(s seed) {
				s.node("node1", plane, "", nil, "10.0.0.1")
				s.configMap("kubeadm-config", "ClusterConfiguration", as("10.0.0.100:8443", `["https://10.0.0.77:2379"]`))
				s.daemonSet("cilium")
			},
			want: clusterv1alpha1.Provision{
				Hosts:                []clusterv1alpha1.Host{host("node1", "10.0.0.1")},
				RoleGroups:           map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {"node1"}, "worker": {"node1"}},
				ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Address: "10.0.0.100", Port: 8443},
				Kubernetes:           clusterv1alpha1.Kubernetes{DNSDomain: "example.local", DisableKubeProxy: true, MaxPods: 200},
				Etcd:                 clusterv1alpha1.Etcd{Type: "external", External: &clusterv1alpha1.ExternalEtcd{Endpoints: []string{"https://10.0.0.77:2379"}}},
				Network:              clusterv1alpha1.Network{Plugin: "cilium", KubePodsCIDR: "10.244.0.0/16", KubeServiceCIDR: "10.96.0.0/16"},
			},
			notes: []string{"The API servers are reached at 10.0.0.100", "etcd is external"},
		},
		"OfSomeoneElse": {
			seed: func(s seed) {
				s.node("node1", plane, "", []string{"10.42.0.0/25", "fd42::/64"}, "10.0.0.1", "fd00::1")
				s.node("node2", nil, "", []string{"10.42.2.0/25", "fd42:0:0:1::/64"}, "10.0.0.2", "fd00::2")
				s.configMap("coredns", "Corefile", ".:53 {\n    errors\n    kubernetes my.local in-addr.arpa ip6.arpa {\n    }\n}\n")
				s.daemonSet("kube-flannel-ds")
			},
			want: clusterv1alpha1.Provision{
				Hosts: []clusterv1alpha1.Host{
					{Name: "node1", Address: "10.0.0.1", InternalAddress: "10.0.0.1,fd00::1", Arch: "amd64"},
					{Name: "node2", Address: "10.0.0.2", InternalAddress: "10.0.0.2,fd00::2", Arch: "amd64"},
				},
				RoleGroups:           map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {"node1"}, "worker": {"node1", "node2"}},
				ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Port: port},
				Kubernetes:           clusterv1alpha1.Kubernetes{DNSDomain: "my.local", MaxPods: 200, NodeCidrMaskSize: 25},
				Network:              clusterv1alpha1.Network{Plugin: "flannel", KubePodsCIDR: "10.42.0.0/22,fd42::/63", KubeServiceCIDR: cidr},
			},
			notes: []string{"The pods' network has the parts of all nodes"},
		},
		"Nothing": {
			seed: func(seed) {},
			want: clusterv1alpha1.Provision{
				RoleGroups:           map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {}, "worker": {}},
				ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Port: port},
				Network:              clusterv1alpha1.Network{KubeServiceCIDR: cidr},
			},
			notes: []string{"No node is labelled", "The network plugin is not known", "The DNS domain is not known", "The pods' network is not known"},
		},
		"Garbage": {
			seed: func(s seed) {
				s.configMap("kubeadm-config", "ClusterConfiguration", "a: b: c")
				s.configMap("kube-proxy", "config.conf", "- a")
				s.node("node1", plane, "", nil)
			},
			want: clusterv1alpha1.Provision{
				Hosts:                []clusterv1alpha1.Host{host("node1", "node1")},
				RoleGroups:           map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {"node1"}, "worker": {"node1"}},
				ControlPlaneEndpoint: clusterv1alpha1.ControlPlaneEndpoint{Port: port},
				Kubernetes:           clusterv1alpha1.Kubernetes{MaxPods: 200},
				Network:              clusterv1alpha1.Network{KubeServiceCIDR: cidr},
			},
			notes: []string{
				"Node node1 tells no internal address", "ConfigMap kube-system/kubeadm-config is not understood", "ConfigMap kube-system/kube-proxy is not understood",
				"The network plugin is not known", "The DNS domain is not known", "The pods' network is not known",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := seed{t, client}
			s.clear()
			tc.seed(s)
			content, err := config.FromCluster(t.Context(), cfg, "alpha")
			if err != nil {
				t.Fatal(err)
			}
			read, err := config.Parse(content, "")
			if err != nil {
				t.Fatalf("%v\n%s", err, content)
			}
			got := read.Cluster.Spec.Provision
			tc.want.Kubernetes.Version = version.GitVersion
			plan.Default("alpha", &tc.want)
			plan.Default("alpha", got)
			if diff := cmp.Diff(&tc.want, got, cmp.Comparer(func(a, b []clusterv1alpha1.Host) bool { return len(a)+len(b) == 0 || cmp.Equal(a, b) })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			head, _, _ := strings.Cut(string(content), `# Lines that begin with "# "`)
			lines := strings.Split(strings.TrimSpace(head), "\n")[2:]
			if len(lines) != len(tc.notes) {
				t.Errorf("got the notes %q", lines)
			}
			for i, line := range lines {
				if i < len(tc.notes) && !strings.HasPrefix(line, "# "+tc.notes[i]) {
					t.Errorf("note %d is %q, and not %s", i, line, tc.notes[i])
				}
			}
		})
	}
}

func TestFromClusterThatDoesNotAnswer(t *testing.T) {
	_, err := config.FromCluster(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, "alpha")
	if err == nil || !strings.HasPrefix(err.Error(), "read the cluster's version: ") {
		t.Errorf("got %v", err)
	}
}
