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

// annotationBound on the namespace of credentials means that the Secrets of versions without
// bindings were bound.
const annotationBound = "cluster.orrery.dev/secrets-bound"

// problem is why a cluster is not dialled, with the reason of the condition Reachable.
type problem struct {
	reason string
	err    error
}

// Error implements error.
func (p *problem) Error() string { return p.err.Error() }

// Unwrap returns the cause.
func (p *problem) Unwrap() error { return p.err }

// reasonOf returns the reason of the condition Reachable for an error that prevents dialling.
func reasonOf(err error) string {
	if p, ok := errors.AsType[*problem](err); ok {
		return p.reason
	}
	return clusterv1alpha1.ReasonSecretInvalid
}

func notBound(format string, args ...any) error {
	return &problem{reason: clusterv1alpha1.ReasonSecretNotBound, err: fmt.Errorf(format, args...)}
}

// address returns the address of a cluster with all connection settings, for the annotation of
// its Secrets.
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

// byAgent is part of the address of a Cluster that is reached through an agent.
const byAgent = "syncMode=" + string(clusterv1alpha1.Pull)

// boundToAgent reports whether the credentials of a Secret came from an agent.
func boundToAgent(secret *corev1.Secret) bool {
	return slices.Contains(strings.Fields(secret.Annotations[clusterv1alpha1.AnnotationForAddress]), byAgent)
}

// bind allows a Secret to be used by a Cluster at its address only. The certificate authority of
// the server need not be part of that, since it is in the Secret.
func bind(secret *corev1.Secret, cluster *clusterv1alpha1.Cluster) {
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[clusterv1alpha1.AnnotationForCluster] = cluster.Name
	secret.Annotations[clusterv1alpha1.AnnotationForAddress] = address(&cluster.Spec)
}

// isOthers reports whether a Secret has credentials of another Cluster.
func isOthers(secret *corev1.Secret, cluster string) bool {
	owner := secret.Annotations[clusterv1alpha1.AnnotationForCluster]
	return owner != "" && owner != cluster
}

// misplaced returns an error unless a Secret is in the namespace for credentials. Otherwise a
// user who may write Clusters could have any Secret of the hub sent to an address of the user.
func misplaced(ref clusterv1alpha1.SecretReference) error {
	if ref.Namespace == clusterv1alpha1.SecretNamespace {
		return nil
	}
	return notBound("secret %s/%s is not in namespace %s, where credentials of clusters are kept, and is not read; run orrery cluster join again",
		ref.Namespace, ref.Name, clusterv1alpha1.SecretNamespace)
}

// bound returns an error unless a Secret was stored for this Cluster and its present address.
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

// bindStoredOnStart binds Secrets of earlier versions as soon as the hub answers. The first
// reconcile of a Cluster could be too late, since a Cluster may have been made for a Secret that
// is not bound yet.
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

// bindStored binds the Secrets of versions that did not bind them, once in the life of a hub:
// each Secret that exactly one Cluster references, and only for credentials. All other Secrets
// are refused from then on, until a user with write access binds them.
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

// bindNamed binds every Secret that exactly one Cluster references.
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

// soleUsers returns the Clusters that are the only one to reference a Secret, by its name, as
// credentials of an API server and not also of hosts.
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

// hostSecrets returns the references to Secrets for a Cluster's hosts and its external etcd.
// Elements may be nil.
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

// isCredentials reports whether a Secret has credentials of an API server, or a candidate.
func isCredentials(secret *corev1.Secret) bool {
	return slices.ContainsFunc([]string{keyToken, keyCert, keyNext}, func(key string) bool { return len(secret.Data[key]) > 0 })
}
