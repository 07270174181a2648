package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// annotationBound on the namespace of credentials means that bindStored has bound the Secrets that
// earlier versions of Orrery had stored. To bind is to record in a Secret the Cluster and the
// address that it is for. Secrets without a binding are refused from then on.
const annotationBound = "cluster.orrery.dev/secrets-bound"

// problem is an error that prevents a connection to a cluster. reason is that of the condition
// Reachable, such as SecretNotBound.
type problem struct {
	reason string
	err    error
}

// Error implements error.
func (p *problem) Error() string { return p.err.Error() }

// Unwrap returns the cause.
func (p *problem) Unwrap() error { return p.err }

// reasonOf returns the reason of the condition Reachable for an error that prevents a connection to
// a cluster. It is the reason of a *problem in err, else SecretInvalid.
func reasonOf(err error) string {
	if p, ok := errors.AsType[*problem](err); ok {
		return p.reason
	}
	return clusterv1alpha1.ReasonSecretInvalid
}

// notBound returns a *problem with the reason SecretNotBound and the formatted message: a Secret is
// not marked as belonging to the Cluster and its address.
func notBound(format string, args ...any) error {
	return &problem{reason: clusterv1alpha1.ReasonSecretNotBound, err: fmt.Errorf(format, args...)}
}

// address returns the address of a cluster with all connection settings, as words separated by
// spaces. A Secret with credentials has this text as an annotation, so that the credentials are
// sent to this address only. A direct and verified cluster has only its URL.
func address(spec *clusterv1alpha1.ClusterSpec) string {
	parts := []string{spec.APIEndpoint}
	if spec.TLSServerName != "" {
		parts = append(parts, "tlsServerName="+spec.TLSServerName)
	}
	if spec.TLSVerification == clusterv1alpha1.TLSSkip {
		parts = append(parts, "tlsVerification="+string(spec.TLSVerification))
	}
	if spec.ProxyURL != "" {
		parts = append(parts, "proxyURL="+spec.ProxyURL)
	}
	if spec.SyncMode == clusterv1alpha1.Pull {
		parts = append(parts, byAgent)
	}
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], " ", "%20")
	}
	return strings.Join(parts, " ")
}

// byAgent is the word that address adds for a Cluster that is reached through an agent.
const byAgent = "syncMode=" + string(clusterv1alpha1.Pull)

// boundToAgent reports whether a Secret with credentials was stored for a Cluster that was reached
// through an agent, so that the agent sent the credentials. It reads the annotation for the
// address.
func boundToAgent(secret *corev1.Secret) bool {
	return slices.Contains(strings.Fields(secret.Annotations[clusterv1alpha1.AnnotationForAddress]), byAgent)
}

// bind sets the annotations of a Secret with credentials that allow its use by this Cluster at its
// present address only. It changes only the object in memory. The annotations do not have the
// certificate authority of the server, which is in the Secret itself.
func bind(secret *corev1.Secret, cluster *clusterv1alpha1.Cluster) {
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[clusterv1alpha1.AnnotationForCluster] = cluster.Name
	secret.Annotations[clusterv1alpha1.AnnotationForAddress] = address(&cluster.Spec)
}

// isOthers reports whether a Secret with credentials was stored for another Cluster than the one
// with this name. It is false for a Secret without the annotation for a Cluster.
func isOthers(secret *corev1.Secret, cluster string) bool {
	owner := secret.Annotations[clusterv1alpha1.AnnotationForCluster]
	return owner != "" && owner != cluster
}

// misplaced returns an error, of the type *problem, if a reference is to a Secret outside the
// namespace for credentials. Otherwise a user who may write Clusters could have any Secret of the
// hub sent to an address of the user.
func misplaced(ref clusterv1alpha1.SecretReference) error {
	if ref.Namespace == clusterv1alpha1.SecretNamespace {
		return nil
	}
	return notBound("secret %s/%s is not in namespace %s, where credentials of clusters are kept, and is not read; run orrery cluster join again",
		ref.Namespace, ref.Name, clusterv1alpha1.SecretNamespace)
}

// bound returns nil if the annotations of a Secret with credentials name this Cluster and its
// present address. Otherwise the credentials must not be sent, and the error is a *problem that
// says why and what to do.
func bound(secret *corev1.Secret, cluster *clusterv1alpha1.Cluster) error {
	const wayOut = "so nothing is sent; run orrery cluster join %s again with the cluster's kubeconfig, or, for a Secret of your own, set its annotations %s and %s"
	var why string
	switch {
	case secret.Annotations[clusterv1alpha1.AnnotationForCluster] == "":
		why = "does not say which cluster it is for"
	case isOthers(secret, cluster.Name):
		why = "is for another cluster"
	case secret.Annotations[clusterv1alpha1.AnnotationForAddress] != address(&cluster.Spec):
		why = "is for another address or syncMode than spec.apiEndpoint, tlsServerName, tlsVerification, proxyURL and syncMode say"
	default:
		return nil
	}
	return notBound("secret %s/%s %s, "+wayOut, secret.Namespace, secret.Name, why,
		cluster.Name, clusterv1alpha1.AnnotationForCluster, clusterv1alpha1.AnnotationForAddress)
}

// bindStoredOnStart calls bindStored as soon as the hub answers, and retries every second until
// that succeeds. It runs once after the start of the manager. The end of ctx is no error. After the
// first attempt it ends r.bound, on which Prepared waits. A reconcile of a Cluster would be too
// late, because a user could have created that Cluster to get a Secret that is not bound yet.
func (r *Registry) bindStoredOnStart(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := r.bindStored(ctx)
		r.bound.End()
		if err != nil && ctx.Err() == nil {
			ctrl.Log.WithName("member").Info("credentials are not bound yet; trying again", "error", err.Error())
		}
		return err == nil, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the server stops
	}
	return err
}

// bindStored records Cluster and address in the Secrets that earlier versions of Orrery stored
// without them, once in the life of a hub. It binds each Secret with credentials that exactly one
// Cluster references. It then marks the namespace of credentials with annotationBound, and creates
// the namespace if necessary. All other Secrets are refused from then on, until a user sets their
// annotations. Several goroutines may call it; after a success it does nothing.
func (r *Registry) bindStored(ctx context.Context) error {
	r.storing.Lock()
	defer r.storing.Unlock()
	if r.storedBound {
		return nil
	}
	namespace := &corev1.Namespace{}
	err := r.reader.Get(ctx, client.ObjectKey{Name: clusterv1alpha1.SecretNamespace}, namespace)
	fresh := apierrors.IsNotFound(err)
	if err != nil && !fresh {
		return fmt.Errorf("get namespace %s: %w", clusterv1alpha1.SecretNamespace, err)
	}
	if namespace.Annotations[annotationBound] == "" {
		if err := r.bindNamed(ctx); err != nil {
			return err
		}
		marked := namespace.DeepCopy()
		marked.Name = clusterv1alpha1.SecretNamespace
		metav1.SetMetaDataAnnotation(&marked.ObjectMeta, annotationBound, "true")
		if fresh {
			err = r.client.Create(ctx, marked)
		} else {
			err = r.client.Patch(ctx, marked, client.MergeFrom(namespace))
		}
		if err != nil {
			return fmt.Errorf("mark namespace %s: %w", clusterv1alpha1.SecretNamespace, err)
		}
	}
	r.storedBound = true
	return nil
}

// bindNamed binds every Secret that has credentials, is referenced by exactly one Cluster, and has
// no annotation for a Cluster yet. To bind is to set the annotations for that Cluster and its
// address. Secrets that do not exist are skipped.
func (r *Registry) bindNamed(ctx context.Context) error {
	fleet := &clusterv1alpha1.ClusterList{}
	if err := r.reader.List(ctx, fleet); err != nil {
		return fmt.Errorf("list clusters: %w", err)
	}
	for name, cluster := range soleUsers(fleet.Items) {
		secret := &corev1.Secret{}
		err := r.reader.Get(ctx, client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: name}, secret)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read secret %s/%s: %w", clusterv1alpha1.SecretNamespace, name, err)
		}
		if secret.Annotations[clusterv1alpha1.AnnotationForCluster] != "" || !isCredentials(secret) {
			continue
		}
		bind(secret, cluster)
		if err := r.client.Update(ctx, secret); err != nil {
			return fmt.Errorf("bind secret %s/%s to cluster %s: %w", secret.Namespace, secret.Name, cluster.Name, err)
		}
		ctrl.LoggerFrom(ctx).Info("credentials bound to their cluster", "secret", name, "cluster", cluster.Name)
	}
	return nil
}

// soleUsers returns the Clusters that alone reference a Secret in the namespace for credentials, by
// the name of that Secret. It skips Secrets that two Clusters reference, or that also have the
// credentials of hosts or an external etcd. The values point into fleet.
func soleUsers(fleet []clusterv1alpha1.Cluster) map[string]*clusterv1alpha1.Cluster {
	sole := map[string]*clusterv1alpha1.Cluster{}
	shared := map[string]bool{}
	for i := range fleet {
		cluster := &fleet[i]
		for _, ref := range []*clusterv1alpha1.SecretReference{&cluster.Spec.SecretRef, cluster.Spec.ImpersonatorSecretRef} {
			if ref == nil || ref.Name == "" || ref.Namespace != clusterv1alpha1.SecretNamespace {
				continue
			}
			if other := sole[ref.Name]; other != nil && other != cluster {
				shared[ref.Name] = true
			}
			sole[ref.Name] = cluster
		}
		for _, ref := range hostSecrets(cluster) {
			if ref != nil && ref.Namespace == clusterv1alpha1.SecretNamespace {
				shared[ref.Name] = true
			}
		}
	}
	for name := range shared {
		delete(sole, name)
	}
	return sole
}

// hostSecrets returns the references of a Cluster to Secrets with the credentials of its hosts,
// their bastions (SSH jump hosts) and its external etcd. Elements may be nil. The result is nil for
// a Cluster that Orrery does not build.
func hostSecrets(cluster *clusterv1alpha1.Cluster) []*clusterv1alpha1.SecretReference {
	p := cluster.Spec.Provision
	if p == nil {
		return nil
	}
	var refs []*clusterv1alpha1.SecretReference
	for i := range p.Hosts {
		refs = append(refs, p.Hosts[i].SecretRef)
		if b := p.Hosts[i].Bastion; b != nil {
			refs = append(refs, b.SecretRef)
		}
	}
	if e := p.Etcd.External; e != nil {
		refs = append(refs, e.SecretRef)
	}
	return refs
}

// isCredentials reports whether a Secret has a token, a client certificate, or new credentials that
// the hub is to try (a candidate).
func isCredentials(secret *corev1.Secret) bool {
	return slices.ContainsFunc([]string{keyToken, keyCert, keyNext}, func(key string) bool { return len(secret.Data[key]) > 0 })
}
