// Package enrollment admits the agents of clusters that the hub cannot dial, and issues their
// certificates. The command line creates a token for one Cluster. The agent redeems the token for a
// certificate, once and for one key. Later reports renew the certificate and the hub's credentials
// for the cluster. The hub remembers clusters that have left, so that their agents remove
// themselves.
//
// The state is on the hub, in the namespace of the clusters' credentials. The names of these
// objects have a dot, which the name of a Cluster never has:
//
//	agent-authority.orrery.dev  Secret     authorities of agents' certificates, and the unsealing key
//	listener.orrery.dev         ConfigMap  where agents find the hub; what they trust and seal with
//	NAME.join                   Secret     token of a join: its hash, its end, and the first key
//	NAME.agent                  Secret     the key of the cluster's agents, in annotations
//	left.UID                    ConfigMap  a Cluster that has left
package enrollment

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// namespace is the namespace of all objects that this package stores: that of the clusters'
// credentials.
const namespace = clusterv1alpha1.SecretNamespace

// Names of the objects that this package stores, or suffixes and prefixes of such names; see the
// package comment.
const (
	authoritySecret   = "agent-authority.orrery.dev"
	listenerConfigMap = "listener.orrery.dev"
	joinSuffix        = ".join"
	agentSuffix       = ".agent"
	leftPrefix        = "left."
)

// Keys of a Secret NAME.join, the record of the token with which agents of Cluster NAME can join.
const (
	joinHash = "sha256" // hash of the token
	joinEnds = "ends"   // RFC 3339
	joinUID  = "uid"    // of the Cluster
	joinKey  = "key"    // fingerprint of the key that used the token first; missing: unused
)

// Annotations of a Secret NAME.agent, the record of the key that agents of Cluster NAME may use.
// The values are not secret. As annotations they are in the cache of metadata, which exists anyway.
const (
	annotationKey  = "agent.orrery.dev/key"              // fingerprint of the public key
	annotationEnds = "agent.orrery.dev/certificate-ends" // of the last certificate, RFC 3339
	// annotationRevoked is the time at which Replace revoked the key, RFC 3339 with nanoseconds. The
	// Secret has no key then.
	annotationRevoked = "agent.orrery.dev/revoked"
)

// secretOf returns an empty Secret in the namespace of credentials, whose name is the Cluster's
// name with a suffix (joinSuffix or agentSuffix).
func secretOf(cluster, suffix string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster + suffix}}
}

// owned makes the Cluster the only owner of the Secret, which is then deleted with the
// Cluster. It changes the object in memory.
func owned(s *corev1.Secret, c *clusterv1alpha1.Cluster) {
	s.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1alpha1.GroupVersion.String(), Kind: "Cluster", Name: c.Name, UID: c.UID,
	}}
}

// writes is the number of attempts of write after conflicts.
const writes = 5

// write changes the Secret with this name in the namespace of credentials. It reads the Secret
// through reader, or starts an empty one, calls change, and writes the Secret through hub if change
// returns true. It creates a missing Secret, and the namespace if necessary. After a conflict it
// reads again and calls change again, up to writes times in all; then it returns the conflict. An
// error of change ends write and is returned as it is.
func write(ctx context.Context, reader client.Reader, hub client.Client, name string, change func(*corev1.Secret) (changed bool, err error)) error {
	var err error
	for range writes {
		if err = tryWrite(ctx, reader, hub, name, change); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return err
}

// tryWrite is one attempt of write to change a Secret. Its error satisfies apierrors.IsConflict or
// IsAlreadyExists if another client wrote the Secret meanwhile.
func tryWrite(ctx context.Context, reader client.Reader, hub client.Client, name string, change func(*corev1.Secret) (changed bool, err error)) error {
	s := &corev1.Secret{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read secret %s/%s: %w", namespace, name, err)
	}
	if missing {
		s = secretOf(name, "")
	}
	changed, err := change(s)
	switch {
	case err != nil || !changed:
		return err
	case !missing:
		err = hub.Update(ctx, s)
	default:
		if err = hub.Create(ctx, s); apierrors.IsNotFound(err) { // the namespace does not exist
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
			if err = client.IgnoreAlreadyExists(hub.Create(ctx, ns)); err == nil {
				err = hub.Create(ctx, s)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, err)
	}
	return nil
}

// moment parses a stored time, in RFC 3339. An invalid text gives the zero time, which is in
// the past.
func moment(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// written returns a time as text, in RFC 3339 and UTC. moment parses it.
func written(at time.Time) string { return at.UTC().Format(time.RFC3339) }
