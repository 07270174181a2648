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
	// stateKey is the key of a cluster's state in the Secret of the state.
	stateKey = "state.json.gz"
	// hostKey is the key of a host's record in the Secret of the host.
	hostKey = "host.json.gz"
	// typeHost is the type of Secrets with the record of a host.
	typeHost = corev1.SecretType("lifecycle.orrery.dev/host")
	// labelCluster is the label with the name of the cluster, of such Secrets and of OperationSlices.
	labelCluster = "lifecycle.orrery.dev/cluster"
	// labelHost is the label with the name of the host, of such Secrets and of OperationSlices.
	labelHost = "lifecycle.orrery.dev/host"
	// maxSecret is the maximum size of a Secret's data, in bytes.
	maxSecret = 1 << 20
)

// secretPieceStore is a lifecycle.PieceStore that keeps the state of one cluster in Secrets. One
// Secret has the state, and one for each host has the record of the host. The content is compressed
// with gzip. The version of a piece is the resourceVersion of its Secret. client must not have a
// cache.
//
// The Secret of the state does not own those of the hosts. If it is restored from a backup, it has
// another UID, and the garbage collector would delete the others.
type secretPieceStore struct {
	client  client.Client
	cluster string
}

// key returns namespace and name of the Secret with the record of a host, or with the state if host
// is "". The names cannot collide, since names of clusters have no dots.
func (s secretPieceStore) key(host string) client.ObjectKey {
	name := objectName(s.cluster)
	if host != "" {
		name += "." + host
	}
	return client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
}

// secret returns a Secret with the namespace and name that key returns. Nothing else is set.
func (s secretPieceStore) secret(host string) *corev1.Secret {
	key := s.key(host)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// labels returns the labels by which the Secrets of the cluster's hosts are listed.
func (s secretPieceStore) labels() client.MatchingLabels {
	return client.MatchingLabels{labelCluster: s.cluster}
}

// Name implements lifecycle.PieceStore. It returns the name, for messages, of the Secret of a host,
// or of the state if host is "".
func (s secretPieceStore) Name(host string) string { return "Secret " + s.key(host).String() }

// State implements lifecycle.PieceStore. It returns the state, or false if none is stored. The
// content of a damaged Secret is nil.
func (s secretPieceStore) State(ctx context.Context) (lifecycle.Piece, bool, error) {
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

// Hosts implements lifecycle.PieceStore. It returns the records of all hosts of the cluster, by
// host. It leaves out Secrets whose name does not belong to the host in their label. The content of
// a damaged Secret is nil.
func (s secretPieceStore) Hosts(ctx context.Context) (map[string]lifecycle.Piece, error) {
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

// WriteState implements lifecycle.PieceStore. It stores the state if the stored version is still
// version; "" means that no state is stored. It returns the new version.
func (s secretPieceStore) WriteState(ctx context.Context, content []byte, version string) (string, error) {
	secret := s.secret("")
	secret.Type, secret.Labels = corev1.SecretTypeOpaque, map[string]string{"app.kubernetes.io/part-of": "orrery"}
	return s.write(ctx, secret, stateKey, content, version)
}

// WriteHost implements lifecycle.PieceStore. It stores the record of a host if the stored version
// is still version; "" means that no record is stored. It returns the new version.
func (s secretPieceStore) WriteHost(ctx context.Context, host string, content []byte, version string) (string, error) {
	secret := s.secret(host)
	secret.Type = typeHost
	secret.Labels = map[string]string{"app.kubernetes.io/part-of": "orrery", labelCluster: s.cluster, labelHost: host}
	return s.write(ctx, secret, hostKey, content, version)
}

// write stores content under a key of a Secret, and returns the new version. It creates the Secret
// if version is "". Else it patches the Secret if that still has this version. If the Secret has
// another version, the error is lifecycle.ErrStale. Compressed content larger than maxSecret is
// another error.
func (s secretPieceStore) write(ctx context.Context, secret *corev1.Secret, key string, content []byte, version string) (string, error) {
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
	} else { // a patch keeps labels and annotations of other clients
		err = s.client.Patch(ctx, secret, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsNotFound(err) {
			err = lifecycle.ErrStale
		}
	}
	return secret.ResourceVersion, stale(err)
}

// RemoveHost implements lifecycle.PieceStore. It deletes the record of a host if it still has this
// version. A missing record is no error.
func (s secretPieceStore) RemoveHost(ctx context.Context, host, version string) error {
	err := s.client.Delete(ctx, s.secret(host), client.Preconditions{ResourceVersion: &version})
	return client.IgnoreNotFound(stale(err))
}

// RemoveState implements lifecycle.PieceStore. It deletes the state if it still has this version. A
// missing state is no error.
func (s secretPieceStore) RemoveState(ctx context.Context, version string) error {
	err := s.client.Delete(ctx, s.secret(""), client.Preconditions{ResourceVersion: &version})
	return client.IgnoreNotFound(stale(err))
}

// stale returns lifecycle.ErrStale if err means that the Secret has another version than expected,
// or exists already. It returns any other err, and nil, as it is.
func stale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return lifecycle.ErrStale
	}
	return err
}

// pack compresses content with gzip.
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

// unpack returns the content that pack has compressed. It returns nil for damaged content, which
// the caller cannot parse as JSON either.
func unpack(packed []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil
	}
	content, err := io.ReadAll(r) // also reads and verifies the checksum at the end
	if err != nil {
		return nil
	}
	return content
}
