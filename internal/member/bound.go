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

// annotationBound, on the namespace of credentials, says that those of hubs from before Secrets were bound have been.
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

// reasonOf is the reason of the condition Reachable for what keeps a cluster from being dialled.
func reasonOf(err error) string {
	if p, ok := errors.AsType[*problem](err); ok {
		return p.reason
	}
	return clusterv1alpha1.ReasonSecretInvalid
}

func notBound(format string, args ...any) error {
	return &problem{reason: clusterv1alpha1.ReasonSecretNotBound, err: fmt.Errorf(format, args...)}
}

// address is where and how a cluster is dialled, as its Secrets' annotation says it.
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

// byAgent is in the address of a Cluster that an agent dials.
const byAgent = "syncMode=" + string(clusterv1alpha1.Pull)

// boundToAgent is true of a Secret whose credentials came from an agent.
func boundToAgent(secret *corev1.Secret) bool {
	return slices.Contains(strings.Fields(secret.Annotations[clusterv1alpha1.AnnotationForAddress]), byAgent)
}

// bind makes a Secret usable by a Cluster at its address, and by nothing else. The authority that the server's certificate is
// held against needs no mention: it is in the Secret.
func bind(secret *corev1.Secret, cluster *clusterv1alpha1.Cluster) {
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[clusterv1alpha1.AnnotationForCluster] = cluster.Name
	secret.Annotations[clusterv1alpha1.AnnotationForAddress] = address(&cluster.Spec)
}

// isOthers is true for a Secret with credentials of another Cluster.
func isOthers(secret *corev1.Secret, cluster string) bool {
	owner := secret.Annotations[clusterv1alpha1.AnnotationForCluster]
	return owner != "" && owner != cluster
}

// misplaced returns an error unless a Secret is where credentials are kept. Who may write Clusters must not be able to have any
// Secret of the hub sent to an address of theirs.
func misplaced(ref clusterv1alpha1.SecretReference) error {
	if ref.Namespace == clusterv1alpha1.SecretNamespace {
		return nil
	}
	return notBound("secret %s/%s is not in namespace %s, where credentials of clusters are kept, and is not read; run orrery cluster join again",
		ref.Namespace, ref.Name, clusterv1alpha1.SecretNamespace)
}

// bound returns an error unless a Secret was stored for this Cluster and the address that it has now.
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

// bindStoredOnStart binds what an earlier version stored as soon as the hub answers: not only when the first Cluster is looked
// at, which somebody may have made for what is not bound yet.
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

// bindStored binds, once in the life of a hub, the Secrets that a version stored which did not bind them: each that exactly one
// Cluster names, for credentials and for nothing else. The others are refused, as every Secret is from then on that nobody has
// bound who may write it.
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

// bindNamed binds every Secret that exactly one Cluster names.
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

// soleUsers returns, by the names of Secrets in their namespace, the Clusters that are the only one to name them, as
// credentials of an API server and not also as those of hosts.
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

// hostSecrets are the Secrets with which a Cluster's hosts and its etcd are reached.
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

// isCredentials is true for a Secret that holds credentials of an API server, or such as are to be tried.
func isCredentials(secret *corev1.Secret) bool {
	return slices.ContainsFunc([]string{keyToken, keyCert, keyNext}, func(key string) bool { return len(secret.Data[key]) > 0 })
}
