package enrollment

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/tunnel/gateway"
)

// errStarting refuses agents for a moment.
var errStarting = errors.New("the hub is starting; try again")

// known is what the hub knows of a cluster whose agent wants to come in.
type known struct {
	cluster *clusterv1alpha1.Cluster // nil: there is none of that name
	key     string                   // that its agents may have
	joining bool                     // by a token that this key has used and that has not ended
	left    bool                     // there is a tombstone of it
}

// judge says whether an agent may come in. That the hub dials the cluster itself is no reason against it: the mode changes when the hub has
// reached the cluster by the agent, and an agent that is there already can take over.
func judge(who identity, k known, now time.Time) error {
	switch {
	case k.left:
		return gateway.ErrGone
	case k.cluster == nil || k.cluster.UID != who.uid:
		return fmt.Errorf("the hub knows no cluster %s of this certificate; if it should, run orrery cluster rejoin %s where the hub is administered", who.cluster, who.cluster)
	case k.key != who.key:
		return fmt.Errorf("the certificate was revoked: agents of cluster %s have another key now, or none; run orrery cluster rejoin %s where the hub is administered", who.cluster, who.cluster)
	case now.After(who.ends):
		return fmt.Errorf("the certificate expired at %s; run orrery cluster rejoin %s where the hub is administered", written(who.ends), who.cluster)
	}
	return nil
}

// Admit says which cluster the agent of a certificate speaks for; see gateway.Options. Most are let in by what the caches have; nobody is
// refused by them.
func (e *Enrollment) Admit(ctx context.Context, certificate *x509.Certificate) (cluster string, err error) {
	k := e.keeper.Load()
	if k == nil {
		return "", errStarting
	}
	who, err := k.identify(certificate, e.now())
	if err != nil {
		return "", err
	}
	have, err := e.cached(ctx, who)
	if err == nil && have.cluster != nil && have.cluster.DeletionTimestamp.IsZero() && judge(who, have, e.now()) == nil {
		return who.cluster, nil
	}
	if have, err = e.asked(ctx, who); err != nil {
		e.log.V(1).Info("an agent cannot be judged", "cluster", who.cluster, "cause", err.Error())
		return "", errors.New("the hub cannot look up the cluster now; try again")
	}
	return who.cluster, judge(who, have, e.now())
}

// cached is what the caches know.
func (e *Enrollment) cached(ctx context.Context, who identity) (known, error) {
	k := known{cluster: &clusterv1alpha1.Cluster{}}
	if err := e.hub.Get(ctx, client.ObjectKey{Name: who.cluster}, k.cluster); err != nil {
		return known{}, fmt.Errorf("get cluster %s: %w", who.cluster, err)
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := e.hub.Get(ctx, client.ObjectKey{Namespace: namespace, Name: who.cluster + agentSuffix}, m); err != nil {
		return known{}, fmt.Errorf("look up the key of agents of cluster %s: %w", who.cluster, err)
	}
	k.key = keyOf(m, k.cluster)
	return k, nil
}

// asked is what the hub itself says.
func (e *Enrollment) asked(ctx context.Context, who identity) (known, error) {
	var k known
	c, agent, join := &clusterv1alpha1.Cluster{}, &corev1.Secret{}, &corev1.Secret{}
	there, err := e.get(ctx, client.ObjectKey{Name: who.cluster}, c)
	if err != nil {
		return known{}, err
	}
	if there {
		k.cluster = c
	}
	// Also beside a Cluster: one that leaves is there until all is done.
	if k.left, err = e.get(ctx, client.ObjectKey{Namespace: namespace, Name: leftPrefix + string(who.uid)}, &corev1.ConfigMap{}); err != nil || k.left || !there {
		return k, err
	}
	if there, err = e.get(ctx, client.ObjectKeyFromObject(secretOf(who.cluster, agentSuffix)), agent); err != nil {
		return known{}, err
	}
	if there {
		k.key = keyOf(agent, c)
	}
	if there, err = e.get(ctx, client.ObjectKeyFromObject(secretOf(who.cluster, joinSuffix)), join); err != nil {
		return known{}, err
	}
	k.joining = there && readJoin(join).usedBy(c.UID, who.key, e.now())
	return k, nil
}

// get reads an object of the hub itself, past the caches, and says whether it is there.
func (e *Enrollment) get(ctx context.Context, key client.ObjectKey, into client.Object) (bool, error) {
	err := e.reader.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get %T %s: %w", into, key, err)
	}
	return true, nil
}

// keyOf is the key that agents of a Cluster may have, by its Secret NAME.agent; empty if that is of a Cluster that was there before it.
func keyOf(agent metav1.Object, c *clusterv1alpha1.Cluster) string {
	if !ownedBy(agent, c) {
		return ""
	}
	return agent.GetAnnotations()[annotationKey]
}

func ownedBy(o metav1.Object, c *clusterv1alpha1.Cluster) bool {
	for _, owner := range o.GetOwnerReferences() {
		if owner.UID == c.UID {
			return true
		}
	}
	return false
}
