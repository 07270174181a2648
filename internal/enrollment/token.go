package enrollment

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// tokenLife is how long a token can be redeemed.
const tokenLife = 24 * time.Hour

// NewToken creates a token with which an agent of the Cluster can enrol, within 24 hours. It
// replaces an earlier token, used or not. If agents of the cluster have a key, only that key can
// redeem the token, and their certificates stay valid: a thief of the token gets nothing. See
// Replace.
func NewToken(ctx context.Context, hub client.Client, cluster string) (token string, expires time.Time, err error) {
	c := &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: cluster}, c); err != nil {
		return "", time.Time{}, fmt.Errorf("get cluster %s: %w", cluster, err)
	}
	if !c.DeletionTimestamp.IsZero() {
		return "", time.Time{}, fmt.Errorf("cluster %s is leaving the fleet: wait until it has left, and join it again", cluster)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	token = base64.RawURLEncoding.EncodeToString(random)
	hash := sha256.Sum256([]byte(token))
	expires = time.Now().Add(tokenLife).Truncate(time.Second)
	err = write(ctx, hub, hub, cluster+joinSuffix, func(s *corev1.Secret) (bool, error) {
		owned(s, c)
		s.Data = map[string][]byte{joinHash: hash[:], joinEnds: []byte(written(expires)), joinUID: []byte(c.UID)}
		return true, nil
	})
	return token, expires, err
}

// Replace creates a token as NewToken does, and revokes the key of the Cluster's agents. Their
// certificates are then invalid, and their connections end. The first key that redeems the token is
// that of the cluster's agents.
func Replace(ctx context.Context, hub client.Client, cluster string) (token string, expires time.Time, err error) {
	if token, expires, err = NewToken(ctx, hub, cluster); err != nil {
		return "", time.Time{}, err
	}
	if err := client.IgnoreNotFound(hub.Delete(ctx, secretOf(cluster, agentSuffix))); err != nil {
		return "", time.Time{}, fmt.Errorf("forget the key of the agents of cluster %s: %w", cluster, err)
	}
	return token, expires, nil
}

// Keys of the listener's ConfigMap.
const (
	listenerURL = "url"
	listenerCA  = "ca.crt"
	listenerKey = "key" // in base64
)

// Published returns how agents reach the hub: the URL of its listener, the authorities of its
// certificate in PEM (empty: the system's), and the public key for tunnel.Seal.
func Published(ctx context.Context, hub client.Reader) (listener string, ca, key []byte, err error) {
	m := &corev1.ConfigMap{}
	err = hub.Get(ctx, client.ObjectKey{Namespace: namespace, Name: listenerConfigMap}, m)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil, nil, errors.New("the hub does not say where agents of clusters find it: start its orrery server, of this version, and see whether --public-address and --public-url suit it")
	case err != nil:
		return "", nil, nil, fmt.Errorf("read where agents of clusters find the hub: %w", err)
	case m.Data[listenerURL] == "":
		return "", nil, nil, errors.New("the hub does not know by which URL clusters reach it: start orrery server with --public-url, such as https://orrery.example.com")
	}
	if key, err = base64.StdEncoding.DecodeString(m.Data[listenerKey]); err != nil || len(key) == 0 {
		return "", nil, nil, fmt.Errorf("the key in configmap %s/%s cannot be read: delete the ConfigMap; orrery server makes it anew when it starts", namespace, listenerConfigMap)
	}
	return m.Data[listenerURL], []byte(m.Data[listenerCA]), key, nil
}

// OnlyLocal reports whether the host of the URL is this machine. Agents on other machines cannot
// use such a URL: orrery server needs --public-url and --public-address.
func OnlyLocal(listener string) bool {
	u, err := url.Parse(listener)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
