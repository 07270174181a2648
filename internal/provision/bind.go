package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// annotationBound, on the namespace of credentials, records that Secrets of an earlier version are
// bound.
const annotationBound = "cluster.orrery.dev/host-secrets-bound"

// bindStored binds the Secrets of hosts that a version without binding used. It does so once in the
// life of a hub. It binds a Secret that exactly one Cluster names and that was used for hosts of
// that cluster. The Secret gets the recorded keys of these hosts. Runs refuse all other Secrets
// until somebody who may write a Secret binds it.
func (p *Provisioner) bindStored(ctx context.Context) error {
	p.binding.Lock()
	defer p.binding.Unlock()
	if p.storedBound {
		return nil
	}
	c := p.store.Client
	namespace := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: clusterv1alpha1.SecretNamespace}, namespace)
	fresh := apierrors.IsNotFound(err)
	if err != nil && !fresh {
		return fmt.Errorf("get namespace %s: %w", clusterv1alpha1.SecretNamespace, err)
	}
	if namespace.Annotations[annotationBound] == "" {
		if err := p.bindUsed(ctx); err != nil {
			return err
		}
		marked := namespace.DeepCopy()
		marked.Name = clusterv1alpha1.SecretNamespace
		metav1.SetMetaDataAnnotation(&marked.ObjectMeta, annotationBound, "true")
		if fresh {
			err = c.Create(ctx, marked)
		} else {
			err = c.Patch(ctx, marked, client.MergeFrom(namespace))
		}
		if err != nil {
			return fmt.Errorf("mark namespace %s: %w", clusterv1alpha1.SecretNamespace, err)
		}
	}
	p.storedBound = true
	return nil
}

// bindUsed binds the Secrets that exactly one cluster names and has used.
func (p *Provisioner) bindUsed(ctx context.Context) error {
	fleet := &clusterv1alpha1.ClusterList{}
	if err := p.store.Client.List(ctx, fleet); err != nil {
		return fmt.Errorf("list clusters: %w", err)
	}
	found := uses{}
	var errs []error
	for _, o := range fleet.Items {
		if spec := o.Spec.Provision; spec != nil {
			found.add(o.Name, spec.Hosts, spec.Etcd.External, false)
		}
		// Anybody may have written the Cluster. The state has what was really done.
		state, err := p.store.Load(ctx, o.Name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case state != nil && state.Applied != nil:
			found.add(o.Name, state.Known(), state.Applied.Etcd.External, true)
		case state != nil:
			found.add(o.Name, state.Known(), nil, true)
		}
	}
	for name, u := range found {
		if len(u.clusters) == 1 && u.done {
			errs = append(errs, p.bind(ctx, name, u))
		}
	}
	return errors.Join(errs...)
}

// use describes the use of a Secret.
type use struct {
	clusters  []string
	done      bool     // a run has used it
	addresses []string // of hosts for which a run used it, in the form of known_hosts
}

// uses maps the names of Secrets to their use.
type uses map[string]*use

// add records the Secrets that a cluster names. If done is true, a run has used them.
func (all uses) add(cluster string, hosts []clusterv1alpha1.Host, etcd *clusterv1alpha1.ExternalEtcd, done bool) {
	note := func(ref *clusterv1alpha1.SecretReference, addresses ...string) {
		if ref == nil || ref.Namespace != clusterv1alpha1.SecretNamespace {
			return
		}
		u := all[ref.Name]
		if u == nil {
			u = &use{}
			all[ref.Name] = u
		}
		if !slices.Contains(u.clusters, cluster) {
			u.clusters = append(u.clusters, cluster)
		}
		if done {
			u.done, u.addresses = true, append(u.addresses, addresses...)
		}
	}
	for _, h := range hosts {
		note(h.SecretRef, known(h.Address, h.Port))
		if b := h.Bastion; b != nil {
			note(cmp.Or(b.SecretRef, h.SecretRef), known(b.Address, b.Port))
		}
	}
	if etcd != nil {
		note(etcd.SecretRef)
	}
}

// known returns an address in the form of known_hosts.
func known(address string, port int32) string {
	return knownhosts.Normalize(net.JoinHostPort(address, strconv.Itoa(int(cmp.Or(port, 22)))))
}

// bind binds a Secret to the one cluster that uses it, and adds the recorded keys of its hosts. It
// does nothing if the Secret is gone or bound already.
func (p *Provisioner) bind(ctx context.Context, name string, u *use) error {
	cluster := u.clusters[0]
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
	secret := &corev1.Secret{}
	err := p.store.Client.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read secret %s: %w", key, err)
	}
	of := secret.Annotations[clusterv1alpha1.AnnotationForCluster]
	if secret.Annotations[clusterv1alpha1.AnnotationForAddress] != "" || of != "" && of != cluster {
		return nil
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, clusterv1alpha1.AnnotationForCluster, cluster)
	if len(secret.Data) > 0 && len(secret.Data[keyKnownHosts]) == 0 {
		keys, err := p.recordedKeys(cluster, u.addresses)
		if err != nil {
			return err
		}
		if keys != "" {
			secret.Data[keyKnownHosts] = []byte(keys)
		}
	}
	err = p.store.Client.Update(ctx, secret)
	log := ctrl.LoggerFrom(ctx).WithValues("secret", name, "cluster", cluster)
	switch {
	case apierrors.IsInvalid(err): // it is immutable
		log.Info("the credentials of hosts could not be bound to their cluster", "error", err.Error())
	case err != nil:
		return fmt.Errorf("bind secret %s to cluster %s: %w", key, cluster, err)
	default:
		log.Info("the credentials of hosts are bound to their cluster")
	}
	return nil
}

// recordedKeys returns the host keys that earlier versions recorded for addresses, as lines of
// known_hosts.
func (p *Provisioner) recordedKeys(cluster string, addresses []string) (string, error) {
	content, err := os.ReadFile(filepath.Join(p.options.DataDir, "lifecycle", "clusters", cluster, "known_hosts"))
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the keys of the hosts of cluster %s: %w", cluster, err)
	}
	var keys strings.Builder
	for line := range strings.Lines(string(content)) {
		marker, hosts, _, _, _, err := ssh.ParseKnownHosts([]byte(line))
		ours := func(host string) bool { return slices.Contains(addresses, host) }
		if err == nil && marker == "" && slices.ContainsFunc(hosts, ours) {
			keys.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	return keys.String(), nil
}
