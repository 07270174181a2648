package provision

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

const (
	// stateKey is the key of a cluster's state in its Secret. hostKey is that of a host's record.
	stateKey = "state.json.gz"
	hostKey  = "host.json.gz"
	// typeHost is the type of Secrets with records of hosts. They have the labels below.
	typeHost     = corev1.SecretType("lifecycle.orrery.dev/host")
	labelCluster = "lifecycle.orrery.dev/cluster"
	labelHost    = "lifecycle.orrery.dev/host"
	// maxSecret is the maximum size of a Secret's data, in bytes.
	maxSecret = 1 << 20
)

// shelf is a lifecycle.Shelf that keeps the pieces of a cluster in Secrets. The version of a piece
// is its resourceVersion.
//
// The state's Secret does not own the records of hosts. If it is restored from a backup, it has
// another UID, and the garbage collector would delete the records.
type shelf struct {
	client  client.Client
	cluster string
}

// key returns the key of the Secret of a host, or of the state if host is empty. Names of clusters
// have no dots.
func (s shelf) key(host string) client.ObjectKey {
	name := objectName(s.cluster)
	if host != "" {
		name += "." + host
	}
	return client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
}

func (s shelf) secret(host string) *corev1.Secret {
	key := s.key(host)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// labels returns the labels of the records of hosts.
func (s shelf) labels() client.MatchingLabels { return client.MatchingLabels{labelCluster: s.cluster} }

// Name implements lifecycle.Shelf.
func (s shelf) Name(host string) string { return "Secret " + s.key(host).String() }

// State implements lifecycle.Shelf.
func (s shelf) State(ctx context.Context) (lifecycle.Piece, bool, error) {
	secret := &corev1.Secret{}
	err := s.client.Get(ctx, s.key(""), secret)
	if apierrors.IsNotFound(err) {
		return lifecycle.Piece{}, false, nil
	}
	if err != nil {
		return lifecycle.Piece{}, false, err
	}
	return lifecycle.Piece{Content: unpack(secret.Data[stateKey]), Version: secret.ResourceVersion}, true, nil
}

// Hosts implements lifecycle.Shelf.
func (s shelf) Hosts(ctx context.Context) (map[string]lifecycle.Piece, error) {
	list := &corev1.SecretList{}
	if err := s.client.List(ctx, list, client.InNamespace(clusterv1alpha1.SecretNamespace), s.labels()); err != nil {
		return nil, err
	}
	hosts := make(map[string]lifecycle.Piece, len(list.Items))
	for _, secret := range list.Items {
		if host := secret.Labels[labelHost]; secret.Name == s.key(host).Name && host != "" {
			hosts[host] = lifecycle.Piece{Content: unpack(secret.Data[hostKey]), Version: secret.ResourceVersion}
		}
	}
	return hosts, nil
}

// WriteState implements lifecycle.Shelf.
func (s shelf) WriteState(ctx context.Context, content []byte, version string) (string, error) {
	secret := s.secret("")
	secret.Type, secret.Labels = corev1.SecretTypeOpaque, map[string]string{"app.kubernetes.io/part-of": "orrery"}
	return s.write(ctx, secret, stateKey, content, version)
}

// WriteHost implements lifecycle.Shelf.
func (s shelf) WriteHost(ctx context.Context, host string, content []byte, version string) (string, error) {
	secret := s.secret(host)
	secret.Type = typeHost
	secret.Labels = map[string]string{"app.kubernetes.io/part-of": "orrery", labelCluster: s.cluster, labelHost: host}
	return s.write(ctx, secret, hostKey, content, version)
}

func (s shelf) write(ctx context.Context, secret *corev1.Secret, key string, content []byte, version string) (string, error) {
	packed, err := pack(content)
	if err != nil {
		return "", err
	}
	if len(packed) > maxSecret {
		return "", fmt.Errorf("it has %d bytes, and a Secret takes %d: make spec.provision smaller, by shorter scripts and values of charts", len(packed), maxSecret)
	}
	before := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, ResourceVersion: version}, Type: secret.Type}
	secret.Data, secret.ResourceVersion = map[string][]byte{key: packed}, version
	if version == "" {
		err = s.client.Create(ctx, secret)
	} else { // labels and annotations of others stay
		err = s.client.Patch(ctx, secret, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsNotFound(err) {
			err = lifecycle.ErrStale
		}
	}
	return secret.ResourceVersion, stale(err)
}

// RemoveHost implements lifecycle.Shelf.
func (s shelf) RemoveHost(ctx context.Context, host, version string) error {
	err := s.client.Delete(ctx, s.secret(host), client.Preconditions{ResourceVersion: &version})
	return client.IgnoreNotFound(stale(err))
}

// RemoveState implements lifecycle.Shelf.
func (s shelf) RemoveState(ctx context.Context, version string) error {
	err := s.client.Delete(ctx, s.secret(""), client.Preconditions{ResourceVersion: &version})
	return client.IgnoreNotFound(stale(err))
}

// stale returns lifecycle.ErrStale if the Secret has another version or exists already.
func stale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return lifecycle.ErrStale
	}
	return err
}

func pack(content []byte) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(content); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return packed.Bytes(), nil
}

// unpack is the inverse of pack. It returns nil for damaged content, which is also invalid JSON.
func unpack(packed []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil
	}
	content, err := io.ReadAll(r) // to the end, where the checksum is
	if err != nil {
		return nil
	}
	return content
}
