package member

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// fromKubeconfig converts o.Context of the kubeconfig in o to a Cluster and a Secret with its
// credentials, both named o.Name. It reads the files that the kubeconfig names, and writes nothing.
// Errors contain neither credentials nor the address.
func fromKubeconfig(o JoinOptions) (*clusterv1alpha1.Cluster, *corev1.Secret, error) {
	config, err := clientcmd.Load(o.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	server, user, err := selectContext(config, o.Context)
	if err != nil {
		return nil, nil, err
	}
	if err := static(user.name, user.AuthInfo); err != nil {
		return nil, nil, err
	}
	if err := server.check(); err != nil {
		return nil, nil, err
	}
	read := func(field string, data []byte, path string) ([]byte, error) {
		if len(data) > 0 || path == "" {
			return data, nil
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(o.KubeconfigDir, path)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig: %s: %w", field, err)
		}
		return data, nil
	}
	ca, errCA := read("certificate-authority", server.CertificateAuthorityData, server.CertificateAuthority)
	cert, errCert := read("client-certificate", user.ClientCertificateData, user.ClientCertificate)
	key, errKey := read("client-key", user.ClientKeyData, user.ClientKey)
	token, errToken := read("tokenFile", []byte(user.Token), user.TokenFile)
	if err := errors.Join(errCA, errCert, errKey, errToken); err != nil {
		return nil, nil, err
	}

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: o.Name},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{keyToken: token, keyCert: cert, keyKey: key, keyCA: ca},
	}
	maps.DeleteFunc(secret.Data, func(_ string, v []byte) bool { return len(v) == 0 })
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: o.Labels, Annotations: o.Annotations},
		Spec: clusterv1alpha1.ClusterSpec{
			SyncMode: clusterv1alpha1.Push, APIEndpoint: server.Server,
			SecretRef:       clusterv1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name},
			TLSVerification: clusterv1alpha1.TLSVerify, TLSServerName: server.TLSServerName, ProxyURL: server.ProxyURL,
			Provider: o.Provider, Region: o.Region, Zones: o.Zones, Mirror: o.Mirror,
		},
	}
	if server.InsecureSkipTLSVerify {
		cluster.Spec.TLSVerification = clusterv1alpha1.TLSSkip
	}
	return cluster, secret, nil
}

// namedServer is a cluster entry of a kubeconfig with its name there.
type namedServer struct {
	*clientcmdapi.Cluster

	name string
}

// check returns an error unless the server of the kubeconfig is an https URL without a user, and
// its proxy-url is empty or a URL of http, https or socks5. The API of the hub would reject such
// addresses, too, but its error would contain the address, which may have a password.
func (s *namedServer) check() error {
	at, err := url.ParseRequestURI(s.Server)
	switch {
	case err != nil || at.Scheme != "https":
		return fmt.Errorf("kubeconfig: cluster %q: server is not an https:// URL, such as https://10.0.0.4:6443", s.name)
	case at.User != nil:
		return fmt.Errorf("kubeconfig: cluster %q: server has a user or a password in it, which API servers do not take; take it out, and use a token or a client certificate", s.name)
	}
	if s.ProxyURL == "" {
		return nil
	}
	proxy, err := url.ParseRequestURI(s.ProxyURL)
	if err != nil || !slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) {
		return fmt.Errorf("kubeconfig: cluster %q: proxy-url is not an http://, https:// or socks5:// URL", s.name)
	}
	return nil
}

// namedUser is a user entry of a kubeconfig with its name there.
type namedUser struct {
	*clientcmdapi.AuthInfo

	name string
}

// selectContext returns the cluster and the user that a context of the kubeconfig names. name is
// that of the context; "": the current context. It is an error if the context, the cluster or the
// user does not exist.
func selectContext(config *clientcmdapi.Config, name string) (server namedServer, user namedUser, err error) {
	if name == "" {
		name = config.CurrentContext
	}
	if name == "" {
		return server, user, errors.New("kubeconfig: current-context is not set; name a context")
	}
	c, ok := config.Contexts[name]
	if !ok {
		return server, user, fmt.Errorf("kubeconfig: there is no context %q; there are: %s",
			name, strings.Join(slices.Sorted(maps.Keys(config.Contexts)), ", "))
	}
	if server = (namedServer{config.Clusters[c.Cluster], c.Cluster}); server.Cluster == nil {
		return server, user, fmt.Errorf("kubeconfig: context %q names cluster %q, which is not there", name, c.Cluster)
	}
	if user = (namedUser{config.AuthInfos[c.AuthInfo], c.AuthInfo}); user.AuthInfo == nil {
		return server, user, fmt.Errorf("kubeconfig: context %q names user %q, which is not there", name, c.AuthInfo)
	}
	return server, user, nil
}

// static returns an error if user has credentials that the hub cannot keep and use: those of a
// program or an auth provider, a password, or impersonation. name is the user's name, for the
// error.
func static(name string, user *clientcmdapi.AuthInfo) error {
	const wayOut = "use the token of a ServiceAccount in the cluster (kubectl create token) or a client certificate"
	switch {
	case user.Exec != nil:
		return fmt.Errorf("kubeconfig: user %q gets its credentials from the program %q, which the hub cannot run; %s",
			name, user.Exec.Command, wayOut)
	case user.AuthProvider != nil:
		return fmt.Errorf("kubeconfig: user %q gets its credentials from the auth provider %q, which the hub does not have; %s",
			name, user.AuthProvider.Name, wayOut)
	case user.Username != "" || user.Password != "":
		return fmt.Errorf("kubeconfig: user %q has a password, which API servers no longer accept; %s", name, wayOut)
	case user.Impersonate != "":
		return fmt.Errorf("kubeconfig: user %q impersonates %q; %s", name, user.Impersonate, wayOut)
	default:
		return nil
	}
}
