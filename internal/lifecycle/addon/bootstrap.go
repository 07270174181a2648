package addon

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeletClient is who the API servers are to the kubelets.
const kubeletClient = "kube-apiserver-kubelet-client"

// bootstrapGroup is what the control plane needs beside the roles that every API server makes: that its API servers may
// read logs from kubelets. What kube-proxy may do is among those roles.
func bootstrapGroup(in Input) (Group, error) {
	g := Group{Name: GroupBootstrap, Namespace: metav1.NamespaceSystem, Objects: objects(
		clusterRoleBinding("orrery:"+kubeletClient, "system:kubelet-api-admin", nil,
			rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kubeletClient}),
	)}
	if in.Endpoint == "" || len(in.CA) == 0 {
		return g, nil
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: "https://" + in.Endpoint, CertificateAuthorityData: in.CA},
	}})
	if err != nil {
		return Group{}, fmt.Errorf("write cluster-info: %w", err)
	}
	const name, role = "cluster-info", "orrery:cluster-info"
	g.Objects = append(g.Objects, objects(
		configMap(metav1.NamespacePublic, name, nil, map[string]string{"kubeconfig": string(kubeconfig)}),
		&rbacv1.Role{
			TypeMeta: rbac("Role"), ObjectMeta: named(metav1.NamespacePublic, role, nil),
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{name}, Verbs: []string{"get"},
			}},
		},
		&rbacv1.RoleBinding{
			TypeMeta: rbac("RoleBinding"), ObjectMeta: named(metav1.NamespacePublic, role, nil),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.AllAuthenticated}},
		},
	)...)
	return g, nil
}
