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

// errStarting refuses agents until the certificate authority for agents is loaded.
var errStarting = errors.New("the hub is starting; try again")

// known is what the hub knows about the cluster of an agent, for the decision to admit that agent.
// cached leaves joining and left false; only asked reads them.
type known struct {
	cluster *clusterv1alpha1.Cluster // nil: no cluster has that name
	key     string                   // fingerprint of the key that its agents may use
	joining bool                     // this key has used a token of a join that is still valid
	left    bool                     // the cluster has left the fleet; its tombstone records that
}

// judge returns nil if the agent with the certificate who is admitted, else the reason, which is
// sent to the agent. The reason is gateway.ErrGone if the cluster has left the fleet. Agents of a
// cluster that the hub dials itself (syncMode Push) are admitted, too: the mode changes only after
// the hub has reached the cluster through an agent.
func judge(who identity, k known, now time.Time) error {
	switch {
	case k.left:
		return gateway.ErrGone
	case k.cluster == nil || k.cluster.UID != who.uid:
		return fmt.Errorf("the hub knows no cluster %s of this certificate; if it should, run orrery cluster rejoin %s where the hub is administered", who.cluster, who.cluster)
	case k.key != who.key:
		return fmt.Errorf("the certificate was revoked: agents of cluster %s have another key now, or none; run orrery cluster rejoin %s --replace where the hub is administered", who.cluster, who.cluster)
	case now.After(who.ends):
		return fmt.Errorf("the certificate expired at %s; run orrery cluster rejoin %s where the hub is administered", written(who.ends), who.cluster)
	}
	return nil
}

// Admit returns the name of the cluster for which this hub issued an agent's certificate. It is the
// Admit of gateway.Options. An error means that the agent is refused: gateway.ErrGone if its
// cluster has left the fleet. Agents are also refused while the hub starts or cannot read its
// objects. The caches are enough to admit an agent. Only reads from the API server can refuse one.
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

// cached reads the agent's cluster and the fingerprint of the key of its agents from the caches. It
// is an error if an object is not in the caches. It does not read joining and left.
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

// asked reads everything that the hub knows about the agent's cluster from the API server. Objects
// that do not exist are no error.
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
	// A leaving Cluster has a tombstone before it is gone.
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

// get reads an object from the API server, not from the cache, and reports whether the object
// exists. If it does not exist, there is no error, and into stays as it is.
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

// keyOf returns the fingerprint of the key that the agents of a Cluster may use. agent is the
// Secret NAME.agent of that Cluster, or its metadata. The result is "" if the Secret has no
// fingerprint, or if it belongs to an earlier Cluster of the same name.
func keyOf(agent metav1.Object, c *clusterv1alpha1.Cluster) string {
	if !ownedBy(agent, c) {
		return ""
	}
	return agent.GetAnnotations()[annotationKey]
}

// ownedBy reports whether the Cluster c is an owner of the object o. The UID decides, so an earlier
// Cluster of the same name does not count.
func ownedBy(o metav1.Object, c *clusterv1alpha1.Cluster) bool {
	for _, owner := range o.GetOwnerReferences() {
		if owner.UID == c.UID {
			return true
		}
	}
	return false
}
