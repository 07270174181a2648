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

// tokenLife is how long an agent can redeem the token of a join.
const tokenLife = 24 * time.Hour

// NewToken creates the token with which agents of the Cluster can get their first certificate, and
// returns it with its end, after 24 hours. The hub stores only the hash. The token replaces an
// earlier one, used or not. If agents of the cluster have a key already, only that key can redeem
// the token, so a thief of the token gets nothing, and their certificates stay valid. Replace also
// revokes that key. It is an error if the Cluster does not exist or is being deleted.
func NewToken(ctx context.Context, hub client.Client, cluster string) (token string, expires time.Time, err error) {
	token, expires, _, err = newToken(ctx, hub, cluster)
	return token, expires, err
}

// newToken does the work of NewToken, and also returns the Cluster.
func newToken(ctx context.Context, hub client.Client, cluster string) (token string, expires time.Time, c *clusterv1alpha1.Cluster, err error) {
	c = &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: cluster}, c); err != nil {
		return "", time.Time{}, nil, fmt.Errorf("get cluster %s: %w", cluster, err)
	}
	if !c.DeletionTimestamp.IsZero() {
		return "", time.Time{}, nil, fmt.Errorf("cluster %s is leaving the fleet: wait until it has left, and join it again", cluster)
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
	return token, expires, c, err
}

// Replace creates a token for agents of the Cluster with NewToken, and revokes the key that its
// agents have. Their certificates are then invalid, and the hub ends their connections within
// seconds. The first key that redeems the token becomes the key of the cluster's agents. After an
// error, the earlier token may be invalid already.
//
// Replace first writes the token and then the Secret NAME.agent, and each call changes that Secret.
// issue depends on both.
func Replace(ctx context.Context, hub client.Client, cluster string) (token string, expires time.Time, err error) {
	token, expires, c, err := newToken(ctx, hub, cluster)
	if err != nil {
		return "", time.Time{}, err
	}
	err = write(ctx, hub, hub, cluster+agentSuffix, func(s *corev1.Secret) (bool, error) {
		owned(s, c)
		// A deletion, or an update that changes nothing, causes no conflict in issue if the Secret has
		// no key. So each call writes another time.
		s.Annotations = map[string]string{annotationRevoked: time.Now().UTC().Format(time.RFC3339Nano)}
		return true, nil
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("revoke the key of the agents of cluster %s: %w", cluster, err)
	}
	return token, expires, nil
}

// Keys of the ConfigMap listener.orrery.dev, which Published reads.
const (
	listenerURL = "url"
	listenerCA  = "ca.crt"
	listenerKey = "key" // in base64
)

// Published returns how agents reach the hub, for the manifest of an agent: the URL of the hub's
// listener, the authorities of its certificate in PEM (empty: the system's), and the public key for
// tunnel.Seal. It is an error, with what the user can do, if the hub has not published these values
// or does not know its URL.
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

// OnlyLocal reports whether the host of the URL of the hub's listener is localhost or a loopback
// address. Agents on other machines cannot use such a URL; orrery server needs --public-url and
// --public-address then. It is false for a text that is no URL.
func OnlyLocal(listener string) bool {
	u, err := url.Parse(listener)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
