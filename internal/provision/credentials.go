package provision

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Keys of a Secret with a host's credentials, or with the credentials for an external etcd (keyCA).
// Keys of the Secret types kubernetes.io/basic-auth and kubernetes.io/ssh-auth are used where these
// have one.
const (
	keyUsername     = corev1.BasicAuthUsernameKey
	keyKnownHosts   = "known_hosts" // public keys of the host
	keyPassword     = corev1.BasicAuthPasswordKey
	keySudoPassword = "sudoPassword" // default: the password
	keyPrivateKey   = corev1.SSHAuthPrivateKey
	keyCA           = "ca.crt" // authority of an external etcd
)

// credentials reads the Secrets that the spec of a cluster names, for logins to its hosts. Its
// errors name Secrets and keys, but contain no values.
//
// A user who may write Clusters but not Secrets must not be able to send a Secret's password to a
// host of their own. The Secret therefore says where it may be sent. An annotation names the
// Cluster, and its key known_hosts has the public keys of the hosts. The addresses of the hosts
// would not be enough. The Cluster chooses the bastion, which decides which machine an address
// leads to.
type credentials struct {
	reader  client.Reader
	cluster string
}

// Target implements lifecycle.Environment. It returns the login for a host and its bastion, with
// the credentials and host keys in their Secrets. A bastion without a Secret uses that of the host.
//
// It returns an error for a host without a Secret. SSH keys of the account that runs the server are
// not used, because not everybody who may create a Cluster may use them.
func (c credentials) Target(ctx context.Context, h clusterv1alpha1.Host) (host.Target, error) {
	if h.SecretRef == nil {
		return host.Target{}, fmt.Errorf("secretRef is not set: make a Secret with %s or %s and name it there", keyPassword, keyPrivateKey)
	}
	secret, err := c.read(ctx, "secretRef", *h.SecretRef)
	if err != nil {
		return host.Target{}, err
	}
	t := host.Target{Name: h.Name, Address: h.Address, Port: int(h.Port), User: h.User, Timeout: time.Duration(h.Timeout) * time.Second}
	if err := fillIn(&t, secret); err != nil {
		return host.Target{}, err
	}
	if b := h.Bastion; b != nil {
		through := host.Target{Name: b.Address, Address: b.Address, Port: int(b.Port), User: cmp.Or(b.User, h.User), Timeout: t.Timeout}
		if b.SecretRef != nil {
			if secret, err = c.read(ctx, "bastion.secretRef", *b.SecretRef); err != nil {
				return host.Target{}, err
			}
		}
		if err := fillIn(&through, secret); err != nil {
			return host.Target{}, err
		}
		t.Bastion = &through
	}
	return t, nil
}

// fillIn copies the credentials and the host keys in a Secret to t. It removes line breaks at the
// end of passwords, which are there if the Secret was made from a file. It returns an error if the
// Secret has neither a password nor a private key, or is for another user than that of t.
func fillIn(t *host.Target, secret *corev1.Secret) error {
	name := client.ObjectKeyFromObject(secret)
	text := func(key string) host.Secret { return host.Secret(strings.TrimRight(string(secret.Data[key]), "\r\n")) }
	t.Password, t.SudoPassword, t.PrivateKey = text(keyPassword), text(keySudoPassword), host.Secret(secret.Data[keyPrivateKey])
	if t.Password == "" && t.PrivateKey == "" {
		return fmt.Errorf("secret %s has neither %s nor %s: set one of them", name, keyPassword, keyPrivateKey)
	}
	if user := string(text(keyUsername)); user != "" && user != cmp.Or(t.User, "root") {
		return fmt.Errorf("secret %s is for another user than %s, as its key %s says: correct one of them", name, cmp.Or(t.User, "root"), keyUsername)
	}
	t.KnownHosts, t.KnownHostsIn = string(secret.Data[keyKnownHosts]), fmt.Sprintf("key %s of secret %s", keyKnownHosts, name)
	return nil
}

// ExternalEtcd implements lifecycle.Environment. It returns the certificates for a client of an
// etcd that the cluster does not run itself. All contents are empty if e names no Secret.
func (c credentials) ExternalEtcd(ctx context.Context, e clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error) {
	if e.SecretRef == nil {
		return &plan.ExternalEtcd{}, nil
	}
	secret, err := c.read(ctx, "etcd.external.secretRef", *e.SecretRef)
	if err != nil {
		return nil, err
	}
	return &plan.ExternalEtcd{CA: secret.Data[keyCA], Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}, nil
}

// read returns a Secret with credentials. field is the field of the spec that names it, for
// messages. It returns an error for a Secret in another namespace than that of the credentials. The
// same holds for a Secret without the annotation that names this cluster, and for the credentials
// of a cluster's API server.
func (c credentials) read(ctx context.Context, field string, ref clusterv1alpha1.SecretReference) (*corev1.Secret, error) {
	if ref.Namespace != clusterv1alpha1.SecretNamespace {
		return nil, fmt.Errorf("%s: secret %s/%s is not in namespace %s, where credentials of hosts are kept: put it there",
			field, ref.Namespace, ref.Name, clusterv1alpha1.SecretNamespace)
	}
	secret := &corev1.Secret{}
	err := c.reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s: secret %s/%s does not exist: create it, or name another", field, ref.Namespace, ref.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: read secret %s/%s: %w", field, ref.Namespace, ref.Name, err)
	}
	if secret.Annotations[clusterv1alpha1.AnnotationForAddress] != "" {
		return nil, fmt.Errorf("%s: secret %s/%s holds the credentials of a cluster's API server, which are for nothing else: name another", field, ref.Namespace, ref.Name)
	}
	switch of := secret.Annotations[clusterv1alpha1.AnnotationForCluster]; of {
	case c.cluster:
		return secret, nil
	case "":
		return nil, fmt.Errorf("%s: secret %s/%s does not say which cluster it is for, so nothing is sent; if it is for this one, run: kubectl annotate secret %s -n %s %s=%s",
			field, ref.Namespace, ref.Name, ref.Name, ref.Namespace, clusterv1alpha1.AnnotationForCluster, c.cluster)
	}
	return nil, fmt.Errorf("%s: secret %s/%s is for another cluster, as its annotation %s says: name another",
		field, ref.Namespace, ref.Name, clusterv1alpha1.AnnotationForCluster)
}
