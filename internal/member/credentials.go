package member

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// connect replaces the member's connection if the address or the credentials of its Cluster
// changed. Before that, it tries the new credentials in the Secret (the candidate), if any, which
// may change the Cluster and the Secret. New tokens of the same user replace the old ones in the
// open connection.
//
// If the Secrets cannot be used, the member gets a connection whose requests fail, without an
// error. But a cluster that is being deleted keeps a working connection. An error means that an
// object on the hub could not be read or written.
func (r *Registry) connect(ctx context.Context, m *Member, cluster *clusterv1alpha1.Cluster) error {
	stamp, err := r.stamp(ctx, &cluster.Spec)
	if err != nil {
		return err
	}
	if old := m.current(); old.stamp == stamp && !r.isDue(cluster.Name) {
		return nil
	}
	secret, impersonator, problem, err := r.secrets(ctx, &cluster.Spec)
	if err != nil {
		return err
	}
	if secret != nil && cluster.DeletionTimestamp.IsZero() && !isOthers(secret, cluster.Name) {
		if cluster, err = r.try(ctx, cluster, secret, impersonator); err != nil {
			return err
		}
		m.setCluster(cluster)
		if cluster.Spec.ImpersonatorSecretRef == nil {
			impersonator = nil
		}
	}
	for _, s := range []*corev1.Secret{secret, impersonator} {
		if problem == nil && s != nil {
			problem = bound(s, cluster)
		}
	}
	if problem != nil && !cluster.DeletionTimestamp.IsZero() && m.current().problem == nil {
		// A foreground deletion deletes the Secret first. The open connection still serves for
		// the cleanup.
		return nil
	}
	key, err := connectionKey(&cluster.Spec, secret, impersonator)
	if err != nil {
		return err
	}
	next := m.current()
	switch {
	case problem == nil && next.problem == nil && next.key == key:
		// Only other parts of the Secret changed, such as its labels.
		m.mu.Lock()
		defer m.mu.Unlock()
		next.stamp = stamp
		return nil
	case problem == nil && next.problem == nil && next.renew(cluster, secret, impersonator):
		m.mu.Lock()
		defer m.mu.Unlock()
		next.key, next.stamp, m.contact.identity = key, stamp, time.Time{}
		nudge(m.kick)
		return nil
	case problem == nil:
		next, problem = newConnection(r.dialer(cluster), cluster, secret, impersonator)
	}
	if problem != nil {
		next = brokenConnection(cluster, problem)
	}
	next.key, next.stamp = key, stamp
	m.reconnect(next)
	ctrl.LoggerFrom(ctx).Info("connection made", "endpoint", Redacted(cluster.Spec.APIEndpoint), "usable", problem == nil)
	return nil
}

// reconnect replaces the member's connection and closes the old one. The member is not reachable
// until the next probe has checked the identity of the cluster again. That probe begins at once.
// Subscribers are notified.
func (m *Member) reconnect(next *connection) {
	var old *connection
	m.update(func() {
		old, m.connection, m.judged = m.connection, next, false
		switch {
		case next.problem != nil:
			m.contact = contact{state: silent, problem: next.problem.Error()}
		case m.contact.state == silent:
			m.contact = contact{} // the change may have fixed the connection
		default:
			m.contact.id, m.contact.refused, m.contact.proxied, m.contact.missing = "", false, false, nil
		}
	})
	old.close()
	nudge(m.kick)
	m.registry.notify(Event{Type: Changed, Name: m.name})
}

// stamp returns a text that changes with every write to the Secrets that spec references, and with
// every change of the address or the rights in spec. connect compares it to see whether it must
// read the Secrets. stamp itself reads only metadata, which is cached. A Secret that does not exist
// has empty values.
func (r *Registry) stamp(ctx context.Context, spec *clusterv1alpha1.ClusterSpec) (string, error) {
	parts := []string{string(spec.SyncMode), rightsOf(spec), spec.APIEndpoint, string(spec.TLSVerification), spec.TLSServerName, spec.ProxyURL}
	for _, ref := range []*clusterv1alpha1.SecretReference{&spec.SecretRef, spec.ImpersonatorSecretRef} {
		if ref == nil {
			continue
		}
		secret := &metav1.PartialObjectMetadata{}
		secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		err := r.client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret)
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("look up secret %s/%s: %w", ref.Namespace, ref.Name, err)
		}
		parts = append(parts, ref.Namespace, ref.Name, string(secret.UID), secret.ResourceVersion)
	}
	return strings.Join(parts, "\n"), nil
}

// secrets reads the Secrets with credentials that spec references. problem is why one of them does
// not exist or must not be read. That Secret is then nil, and so is impersonator. impersonator is
// also nil if spec references none. err means that the hub could not be read.
func (r *Registry) secrets(ctx context.Context, spec *clusterv1alpha1.ClusterSpec) (secret, impersonator *corev1.Secret, problem, err error) {
	read := func(ref *clusterv1alpha1.SecretReference) *corev1.Secret {
		if ref == nil || problem != nil || err != nil {
			return nil
		}
		if problem = misplaced(*ref); problem != nil {
			return nil
		}
		s := &corev1.Secret{}
		switch e := r.reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, s); {
		case apierrors.IsNotFound(e):
			problem = fmt.Errorf("secret %s/%s does not exist", ref.Namespace, ref.Name)
			return nil
		case e != nil:
			err = fmt.Errorf("read secret %s/%s: %w", ref.Namespace, ref.Name, e)
			return nil
		}
		return s
	}
	secret, impersonator = read(&spec.SecretRef), read(spec.ImpersonatorSecretRef)
	return secret, impersonator, problem, err
}
