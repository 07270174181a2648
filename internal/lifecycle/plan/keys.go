package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/pki"
)

// Names of the certificate authorities of a cluster. They are separate, so that a client of etcd is
// not also a user of Kubernetes, and a user cannot act as the front proxy.
const (
	AuthorityCluster    = "ca"
	AuthorityEtcd       = "etcd-ca"
	AuthorityFrontProxy = "front-proxy-ca"
)

// KeyServiceAccounts is the name of the key that signs the tokens of service accounts. It has no
// certificate.
const KeyServiceAccounts = "sa"

// Names of the leaf certificates that belong to no host: those of the administrators of the cluster
// and of etcd. Orrery uses them itself.
const (
	LeafAdmin     = "admin"
	LeafEtcdAdmin = "etcd-admin"
)

// Names of the leaf certificates of a host. In a Bundle they are HOST/LEAF.
const (
	leafAPIServer         = "apiserver"
	leafKubeletClient     = "apiserver-kubelet-client"
	leafEtcdClient        = "apiserver-etcd-client"
	leafFrontProxy        = "front-proxy-client"
	leafControllerManager = "kube-controller-manager"
	leafScheduler         = "kube-scheduler"
	leafKubelet           = "kubelet"
	leafKubeletServer     = "kubelet-server"
	leafKubeProxy         = "kube-proxy"
	leafEtcdServer        = "etcd-server"
	leafEtcdPeer          = "etcd-peer"
)

// IsControlPlaneLeaf reports whether a leaf certificate belongs to etcd, or is one with which an
// API server serves or connects to etcd. Without it, that component serves no client. name is
// HOST/LEAF. Other client certificates of an API server do not count.
func IsControlPlaneLeaf(name string) bool {
	_, leaf, _ := strings.Cut(name, "/")
	return slices.Contains([]string{leafAPIServer, leafEtcdClient, leafEtcdServer, leafEtcdPeer}, leaf)
}

// Users and groups of Kubernetes in certificates. userNode is a prefix, before the name of a node.
const (
	groupMasters = "system:masters"
	groupNodes   = "system:nodes"
	userNode     = "system:node:"
	// userKubeletClient is the user with which API servers connect to kubelets. The bootstrap objects
	// bind it to system:kubelet-api-admin.
	userKubeletClient = "kube-apiserver-kubelet-client"
)

// Authorities returns the names of the certificate authorities that every cluster has.
func Authorities() []string {
	return []string{AuthorityCluster, AuthorityEtcd, AuthorityFrontProxy}
}

// Keys returns the names of the keys without a certificate that every cluster has.
func Keys() []string { return []string{KeyServiceAccounts} }

// Leaves returns the leaf certificates that a cluster with this spec needs, with their names and
// addresses: those of the administrators, then those of the hosts in the order of the spec. It
// returns nil for an invalid spec. name is that of the cluster. The certificates of a host do not
// depend on other hosts, so adding or removing a host restarts no other.
func Leaves(name string, spec *clusterv1alpha1.Provision) []pki.Leaf {
	t, err := resolve(name, spec)
	if err != nil {
		return nil
	}
	leaves := []pki.Leaf{
		{Name: LeafAdmin, Authority: AuthorityCluster, CommonName: "kubernetes-admin", Organization: []string{groupMasters}, Client: true},
	}
	if t.managed() {
		leaves = append(leaves, pki.Leaf{Name: LeafEtcdAdmin, Authority: AuthorityEtcd, CommonName: LeafEtcdAdmin, Client: true})
	}
	for _, h := range spec.Hosts {
		m := t.members[h.Name]
		if m.has(clusterv1alpha1.RoleEtcd) {
			leaves = append(leaves, t.etcdLeaves(m)...)
		}
		if m.has(clusterv1alpha1.RoleControlPlane) {
			leaves = append(leaves, t.controlPlaneLeaves(m)...)
		}
		if m.isNode() {
			leaves = append(leaves, t.nodeLeaves(m)...)
		}
	}
	return leaves
}

// etcdLeaves returns the leaf certificates of the etcd member on a host.
func (t *topology) etcdLeaves(m member) []pki.Leaf {
	names, ips := []string{"localhost", m.Name}, texts(m.ips, "127.0.0.1", "::1")
	// A server is also a client: of itself in probes, and of the other members.
	return []pki.Leaf{
		{Name: leafName(m, leafEtcdServer), Authority: AuthorityEtcd, CommonName: m.Name, DNSNames: names, IPs: ips, Client: true, Server: true},
		{Name: leafName(m, leafEtcdPeer), Authority: AuthorityEtcd, CommonName: m.Name, DNSNames: names, IPs: ips, Client: true, Server: true},
	}
}

// controlPlaneLeaves returns the leaf certificates of the API server, controller manager and
// scheduler on a host.
func (t *topology) controlPlaneLeaves(m member) []pki.Leaf {
	local := func(leaf, user string) pki.Leaf {
		return pki.Leaf{
			Name: leafName(m, leaf), Authority: AuthorityCluster, CommonName: user, Client: true,
			DNSNames: []string{"localhost"}, IPs: []string{"127.0.0.1"}, Server: true,
		}
	}
	leaves := []pki.Leaf{
		t.apiServerLeaf(m),
		{Name: leafName(m, leafKubeletClient), Authority: AuthorityCluster, CommonName: userKubeletClient, Client: true},
		{Name: leafName(m, leafFrontProxy), Authority: AuthorityFrontProxy, CommonName: leafFrontProxy, Client: true},
		local(leafControllerManager, "system:kube-controller-manager"),
		local(leafScheduler, "system:kube-scheduler"),
	}
	if t.managed() {
		leaves = append(leaves, pki.Leaf{Name: leafName(m, leafEtcdClient), Authority: AuthorityEtcd, CommonName: "kube-apiserver-etcd-client", Client: true})
	}
	return leaves
}

// apiServerLeaf returns the serving certificate of the API server on a host. It has all names and
// addresses by which pods, load balancers and clients outside the cluster reach the server.
func (t *topology) apiServerLeaf(m member) pki.Leaf {
	domain := t.spec.Kubernetes.DNSDomain
	names := []string{"localhost", m.Name, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain}
	ips := texts(m.ips, "127.0.0.1", "::1")
	for _, s := range t.services {
		ips = append(ips, Nth(s, 1).String())
	}
	further := slices.Concat([]string{m.Address, t.spec.ControlPlaneEndpoint.Address, t.spec.ControlPlaneEndpoint.Domain}, t.spec.Kubernetes.APIServerCertExtraSANs)
	for _, san := range further {
		if a, err := netip.ParseAddr(san); err == nil {
			ips = append(ips, a.String())
		} else if san != "" {
			names = append(names, san)
		}
	}
	return pki.Leaf{
		Name: leafName(m, leafAPIServer), Authority: AuthorityCluster, CommonName: fileAPIServer,
		DNSNames: unique(names), IPs: unique(ips), Server: true,
	}
}

// nodeLeaves returns the leaf certificates of the kubelet and kube-proxy on a host.
func (t *topology) nodeLeaves(m member) []pki.Leaf {
	user := userNode + m.Name
	leaves := []pki.Leaf{
		{Name: leafName(m, leafKubelet), Authority: AuthorityCluster, CommonName: user, Organization: []string{groupNodes}, Client: true},
		{Name: leafName(m, leafKubeletServer), Authority: AuthorityCluster, CommonName: user, Organization: []string{groupNodes}, DNSNames: []string{m.Name}, IPs: texts(m.ips), Server: true},
	}
	if !t.spec.Kubernetes.DisableKubeProxy {
		leaves = append(leaves, pki.Leaf{Name: leafName(m, leafKubeProxy), Authority: AuthorityCluster, CommonName: "system:kube-proxy", Client: true})
	}
	return leaves
}

// leafName returns the full name HOST/LEAF of a leaf certificate.
func leafName(m member, leaf string) string { return m.Name + "/" + leaf }

// texts formats IP addresses, and returns them with the texts in more after them, in a new slice.
func texts(ips []netip.Addr, more ...string) []string {
	all := make([]string, 0, len(ips)+len(more))
	for _, ip := range ips {
		all = append(all, ip.String())
	}
	return append(all, more...)
}

// Kubeconfig returns a kubeconfig, as YAML, with one cluster, one user with the certificate client,
// and the context USER@CLUSTER. server is the URL of the API server, and ca the PEM of its
// authority.
func Kubeconfig(cluster, server, user string, ca []byte, client pki.KeyPair) ([]byte, error) {
	content, err := yaml.Marshal(clientcmdv1.Config{
		APIVersion: "v1", Kind: "Config",
		Clusters:       []clientcmdv1.NamedCluster{{Name: cluster, Cluster: clientcmdv1.Cluster{Server: server, CertificateAuthorityData: ca}}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: user, AuthInfo: clientcmdv1.AuthInfo{ClientCertificateData: client.Cert, ClientKeyData: client.Key}}},
		Contexts:       []clientcmdv1.NamedContext{{Name: user + "@" + cluster, Context: clientcmdv1.Context{Cluster: cluster, AuthInfo: user}}},
		CurrentContext: user + "@" + cluster,
	})
	if err != nil {
		return nil, fmt.Errorf("marshal the kubeconfig of %s: %w", user, err)
	}
	return content, nil
}
