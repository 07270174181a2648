// Package enrollment is how clusters come in that the hub cannot dial: whose agents may, and by which certificates. The command line
// makes a token for one Cluster; the agent that has it redeems it, once and for one key, for a certificate, and renews that and the
// hub's credentials in its cluster by reports. Clusters that leave are remembered, so that their agents are told to go.
//
// What is kept is on the hub, in the namespace of the clusters' credentials, in objects whose names have a dot, as no Cluster's has:
//
//	agent-authority.orrery.dev   Secret     the authorities of agents' certificates, and the key that opens what is sealed
//	listener.orrery.dev          ConfigMap  where agents find the hub, and what they trust and seal with
//	NAME.join                    Secret     the token of a join: its hash, its end, and the key that used it first
//	NAME.agent                   Secret     the key that agents of the cluster have, in annotations
//	left.UID                     ConfigMap  a Cluster that has left
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

// namespace of all that is kept.
const namespace = clusterv1alpha1.SecretNamespace

// Names and their parts.
const (
	authoritySecret   = "agent-authority.orrery.dev"
	listenerConfigMap = "listener.orrery.dev"
	joinSuffix        = ".join"
	agentSuffix       = ".agent"
	leftPrefix        = "left."
)

// Keys of a Secret NAME.join.
const (
	joinHash = "sha256" // of the token
	joinEnds = "ends"   // RFC 3339
	joinUID  = "uid"    // of the Cluster
	joinKey  = "key"    // fingerprint of the public key that used the token first; missing: nobody has
)

// Annotations of a Secret NAME.agent. They are no secrets; as metadata they are in the cache that is there anyway.
const (
	annotationKey  = "agent.orrery.dev/key"              // fingerprint of the public key
	annotationEnds = "agent.orrery.dev/certificate-ends" // of the last certificate, RFC 3339
)

// secretOf is the Secret of a Cluster with a suffix, as it is to be.
func secretOf(cluster, suffix string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster + suffix}}
}

// owned makes a Secret go with its Cluster.
func owned(s *corev1.Secret, c *clusterv1alpha1.Cluster) {
	s.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1alpha1.GroupVersion.String(), Kind: "Cluster", Name: c.Name, UID: c.UID,
	}}
}

// writes is how often a write is tried that others are ahead of.
const writes = 5

// write reads a Secret, which may not be there yet, has it changed, and writes it if that made a difference. What somebody else wrote
// meanwhile is read anew: change is called again then, and may refuse.
func write(ctx context.Context, reader client.Reader, hub client.Client, name string, change func(*corev1.Secret) (changed bool, err error)) error {
	var err error
	for range writes {
		if err = tryWrite(ctx, reader, hub, name, change); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return err
}

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
		if err = hub.Create(ctx, s); apierrors.IsNotFound(err) { // the namespace
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

// moment reads a time as it is kept; the zero time if it is none, which is over.
func moment(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

func written(at time.Time) string { return at.UTC().Format(time.RFC3339) }
