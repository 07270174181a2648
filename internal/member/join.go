package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Reasons of refused joins, besides those of a Cluster's conditions.
const (
	// ReasonKubeconfigInvalid is the reason of a refused join whose kubeconfig cannot be used.
	ReasonKubeconfigInvalid = "KubeconfigInvalid"
	// ReasonUntrusted is the reason of a refused join to an API server whose certificate is not
	// trusted.
	ReasonUntrusted = "Untrusted"
)

// checkTimeout limits each request to a cluster during a join, the trial of new credentials, and
// the cleanup of the hub's ServiceAccount.
const checkTimeout = 10 * time.Second

// JoinOptions describe the cluster that Join makes a member: its name, a kubeconfig for it, and the
// description of the new Cluster.
type JoinOptions struct {
	// Name of the Cluster.
	Name string
	// Kubeconfig is the content of a kubeconfig file. Paths in it are relative to KubeconfigDir.
	Kubeconfig    []byte
	KubeconfigDir string
	// Context of the kubeconfig. The default is the current one.
	Context string
	// HubID is the UID of the hub's kube-system namespace. "": it is read from the hub.
	HubID string
	// Account makes Join create a ServiceAccount for the hub in the cluster, with the kubeconfig's
	// credentials. The hub then keeps a token of that ServiceAccount and renews the token. If Account
	// is false, the hub keeps the credentials of the kubeconfig.
	Account bool
	// Labels, Provider, Region and Zones of the Cluster. Those of an existing Cluster stay where
	// the option is empty.
	Labels           map[string]string
	Provider, Region string
	Zones            []string
	// Annotations and Mirror of a new Cluster. An existing Cluster keeps its own.
	Annotations map[string]string
	Mirror      *clusterv1alpha1.Mirror
	// Progress is called before each step. It may be nil.
	Progress func(step string)
}

// JoinResult describes the cluster after a join: its ID and version, and whether it was joined
// before.
type JoinResult struct {
	// ID is the UID of the cluster's kube-system namespace.
	ID string
	// Version of the cluster's API server.
	Version string
	// Refreshed is true if the cluster was joined under this name before, and only its
	// credentials were renewed.
	Refreshed bool
}

// JoinError means that a join was refused, by the checks of this process or by the hub. A Cluster
// that is joined already keeps its address and credentials.
type JoinError struct {
	// Reason is one word, such as Unreachable: a reason of a Cluster's conditions, or one of the
	// constants above.
	Reason string
	err    error
}

// Error implements error.
func (e *JoinError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *JoinError) Unwrap() error { return e.err }

// refuse returns a *JoinError with the reason and the formatted message.
func refuse(reason, format string, args ...any) error {
	return &JoinError{Reason: reason, err: fmt.Errorf(format, args...)}
}

// Join checks that a cluster can become a member of the hub's fleet. It then stores a Cluster on
// the hub, and a Secret with the credentials, whose owner is the Cluster. Join does not wait until
// the Cluster is Ready.
//
// A user can repeat Join at any time, to renew credentials or to finish an interrupted join. The
// hub replaces existing credentials only after it has reached the cluster with the new ones. Join
// waits for that. An error is a *JoinError if the join is refused. With o.Account, a Join that
// fails removes the ServiceAccount that it created, unless the hub may use it; see settleAccount.
func Join(ctx context.Context, hub client.Client, o JoinOptions) (*JoinResult, error) {
	c, err := check(ctx, hub, o)
	if err != nil {
		return nil, err
	}
	cluster, secret, known, stored, found := c.cluster, c.secret, c.known, c.stored, c.found
	progress := o.progress()
	var undo func() error
	if o.Account {
		progress("creating " + hubAccount + " in the cluster, for the hub")
		hubID, err := identifyHub(ctx, hub, o)
		if err != nil {
			return nil, err
		}
		if secret, undo, err = openAccount(ctx, dialDirectly, hubID, cluster, secret); err != nil {
			return nil, err
		}
	}
	if stored == nil && known != nil && !awaitsAgent(known) {
		// The referenced Secret does not exist, or belongs to another Cluster. The known Cluster
		// gets a Secret of its own.
		known.Spec.SecretRef = clusterv1alpha1.SecretReference{}
	}
	if stored == nil && known != nil && awaitsAgent(known) {
		// An agent may send credentials at the same time. With a Secret, though empty, the new
		// credentials wait beside it until the hub has tried them (renew). The hub accepts one of the
		// two.
		stored = &corev1.Secret{}
	}
	if stored != nil {
		progress("waiting until the hub has tried the new credentials")
		if err := renew(ctx, hub, known, cluster, stored, secret); err != nil {
			return nil, settleAccount(ctx, hub, credentialsKey(known), undo, err)
		}
		if err := describeAgain(ctx, hub, o.Name, cluster); err != nil {
			return nil, err
		}
		return &JoinResult{ID: found.id, Version: found.version, Refreshed: true}, nil
	}
	progress("storing Cluster " + o.Name + " and its credentials")
	if err := store(ctx, hub, known, cluster, secret); err != nil {
		return nil, settleAccount(ctx, hub, client.ObjectKeyFromObject(secret), undo, err)
	}
	return &JoinResult{ID: found.id, Version: found.version, Refreshed: known != nil}, nil
}

// settleAccount ends a join that failed with err, and returns that error. It calls undo, which
// removes the hub's ServiceAccount from the cluster; nil: this join has not created it.
// settleAccount first reads the Secret of the Cluster, with this key. The ServiceAccount stays if
// the Secret has a token of it in use, because this or another join may have written the token. A
// token on trial counts, too, unless err is a refusal of the hub. The ServiceAccount also stays if
// another join has created the Cluster or the Secret meanwhile, or if the Secret cannot be read.
// In these two cases the returned error says that it stays, and the way out.
func settleAccount(ctx context.Context, hub client.Client, key client.ObjectKey, undo func() error, err error) error {
	if undo == nil {
		return err
	}
	if apierrors.IsAlreadyExists(err) {
		return errors.Join(err, fmt.Errorf("another join may use the account that this join created; join again, or, if the cluster is not to join: %s", accountLeft))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	if readErr := hub.Get(ctx, key, secret); client.IgnoreNotFound(readErr) != nil {
		return errors.Join(err, fmt.Errorf("read secret %s: %w; join again, or, if the cluster is not to join: %s", key, readErr, accountLeft))
	}
	next := &candidate{}
	reason := reasonOfJoin(err)
	undecided := reason == "" || reason == ReasonNotConfirmed
	if granted(secret.Data) != nil || undecided && json.Unmarshal(secret.Data[keyNext], next) == nil && granted(next.Data) != nil {
		return err
	}
	return errors.Join(err, undo())
}

// Check makes all checks of a join and writes nothing, for a dry run. It returns the Cluster that
// Join would create. If a Cluster of that name is joined already, Check returns that Cluster as it
// is on the hub. An error is a *JoinError if the join would be refused.
func Check(ctx context.Context, hub client.Client, o JoinOptions) (*clusterv1alpha1.Cluster, *JoinResult, error) {
	c, err := check(ctx, hub, o)
	if err != nil {
		return nil, nil, err
	}
	cluster := c.cluster
	if c.known != nil {
		cluster = c.known
	}
	return cluster, &JoinResult{ID: c.found.id, Version: c.found.version, Refreshed: c.known != nil}, nil
}

// checked is the result of the checks of a join, for Join and Check.
type checked struct {
	cluster *clusterv1alpha1.Cluster // to be joined
	secret  *corev1.Secret           // the credentials of cluster
	known   *clusterv1alpha1.Cluster // the existing Cluster of that name; nil: none
	stored  *corev1.Secret           // the credentials of known; nil: none
	found   contact                  // what the API server of the cluster reported
}

// progress returns o.Progress, the function that reports the steps of a join. If that is nil, it
// returns a function that does nothing.
func (o *JoinOptions) progress() func(step string) {
	if o.Progress == nil {
		return func(string) {}
	}
	return o.Progress
}

// check does the work of Check, also for Join: it makes all checks of a join and writes nothing. An
// error is a *JoinError if the join is refused.
func check(ctx context.Context, hub client.Client, o JoinOptions) (c checked, err error) {
	progress := o.progress()
	if c.cluster, c.secret, err = fromKubeconfig(o); err != nil {
		return c, &JoinError{Reason: ReasonKubeconfigInvalid, err: err}
	}
	progress("reading the version and the identity of " + Redacted(c.cluster.Spec.APIEndpoint))
	if c.found, err = examineReady(ctx, dialDirectly, c.cluster, c.secret, readyTimeout, progress); err != nil {
		return c, err
	}
	progress("checking that the cluster has not joined yet")
	if c.known, err = checkFleet(ctx, hub, o, c.cluster, c.found.id); err != nil {
		return c, err
	}
	if c.stored, err = credentials(ctx, hub, c.known); err != nil || c.stored != nil {
		return c, err
	}
	return c, vacant(ctx, hub, o.Name)
}

// examine makes all checks of a cluster that is to be a member, with the credentials in secret. It
// opens a connection through dial, closes it again, and changes nothing in the cluster. It returns
// the identity and version of the cluster. The error is a *JoinError if the cluster is refused or
// does not answer.
func examine(ctx context.Context, dial Dial, cluster *clusterv1alpha1.Cluster, secret *corev1.Secret) (contact, error) {
	c, err := newConnection(dial, cluster, secret, nil)
	if err != nil {
		return contact{}, refuse(ReasonKubeconfigInvalid, "kubeconfig: %w", err)
	}
	defer c.close()
	if !c.expires.IsZero() && time.Now().After(c.expires) {
		return contact{}, refuse(clusterv1alpha1.ReasonUnauthorized,
			"kubeconfig: the client certificate expired at %s; get a new one from the cluster", c.expires.UTC().Format(time.RFC3339))
	}
	err = ready(ctx, c.transport, c, checkTimeout)
	var found contact
	if err == nil {
		found, err = identify(ctx, c.transport, c, checkTimeout)
	}
	endpoint := Redacted(cluster.Spec.APIEndpoint)
	if errors.Is(err, errThroughHub) {
		return contact{}, refuse(clusterv1alpha1.ReasonThroughHub, "%s: %w", endpoint, errThroughHub)
	}
	if refusal := asRefusal(err); refusal != nil {
		return contact{}, refuse(clusterv1alpha1.ReasonUnauthorized, "%s: %s", endpoint, refusal.explain(c))
	}
	if untrusted(err) {
		return contact{}, refuse(ReasonUntrusted,
			"%s: the certificate of the API server is not trusted: %w; check certificate-authority-data and tls-server-name of the kubeconfig", endpoint, err)
	}
	if isNotReady(err) {
		return contact{}, refuse(clusterv1alpha1.ReasonUnreachable, "the API server at %s answers but is not ready: %w", endpoint, err)
	}
	if err != nil {
		return contact{}, refuse(clusterv1alpha1.ReasonUnreachable,
			"no API server answers at %s: %w; the hub must be able to reach this address", endpoint, describe(err))
	}
	if len(found.missing) > 0 {
		return contact{}, refuse(clusterv1alpha1.ReasonForbidden, "%s: %s", endpoint, forbidden(&cluster.Spec, found.missing))
	}
	return found, nil
}

// untrusted reports whether err means that the certificate of a server is not trusted.
func untrusted(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
	)
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &hostname)
}

// checkFleet checks that a cluster may join the hub under the name o.Name. id is the UID of the
// cluster's kube-system namespace. It returns the existing Cluster of that name, if that is the
// same cluster or has no known ID because its join was interrupted. It returns nil if the name is
// free. The error is a *JoinError if the cluster is the hub or has joined under another name. It is
// also a *JoinError if the name belongs to another cluster or to one that is leaving.
func checkFleet(ctx context.Context, hub client.Client, o JoinOptions, cluster *clusterv1alpha1.Cluster, id string) (*clusterv1alpha1.Cluster, error) {
	hubID, err := identifyHub(ctx, hub, o)
	if err != nil {
		return nil, err
	}
	if id == hubID {
		return nil, refuse(clusterv1alpha1.ReasonIsHub,
			"%s is the hub itself, which cannot be a member of its own fleet; use the kubeconfig of another cluster", Redacted(cluster.Spec.APIEndpoint))
	}
	fleet := &clusterv1alpha1.ClusterList{}
	if err := hub.List(ctx, fleet); err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	var known *clusterv1alpha1.Cluster
	for i := range fleet.Items {
		member := &fleet.Items[i]
		same := member.Status.ID == id
		unknown := member.Status.ID == ""
		switch {
		case member.Name == o.Name && !member.DeletionTimestamp.IsZero():
			return nil, refuse(clusterv1alpha1.ReasonUnjoining, "cluster %s is leaving; wait until it is gone, or choose another name", o.Name)
		case member.Name == o.Name && !same && !unknown:
			return nil, refuse(clusterv1alpha1.ReasonIdentityChanged,
				"another cluster is joined as %s; choose another name, or unjoin that one first", o.Name)
		case member.Name == o.Name:
			known = member
		case same || (unknown && member.Spec.APIEndpoint == cluster.Spec.APIEndpoint):
			return nil, refuse(clusterv1alpha1.ReasonAlreadyJoined,
				"this cluster is already joined as %s; unjoin it first to give it another name", member.Name)
		}
	}
	return known, nil
}

// identifyHub returns the ID of the hub: o.HubID, or the UID of its namespace kube-system.
func identifyHub(ctx context.Context, hub client.Client, o JoinOptions) (string, error) {
	if o.HubID != "" {
		return o.HubID, nil
	}
	system := &corev1.Namespace{}
	if err := hub.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return "", fmt.Errorf("get namespace %s of the hub: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}

// credentials returns the Secret with the credentials of the joined Cluster known. It is nil,
// without an error, if known is nil or references no Secret. It is also nil if the Secret does not
// exist, is in another namespace than that for credentials, belongs to another Cluster or has no
// credentials.
func credentials(ctx context.Context, hub client.Client, known *clusterv1alpha1.Cluster) (*corev1.Secret, error) {
	if known == nil || known.Spec.SecretRef.Name == "" {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	ref := known.Spec.SecretRef
	if misplaced(ref) != nil {
		return nil, nil //nolint:nilnil,nilerr // none that may be used
	}
	secret := &corev1.Secret{}
	err := hub.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // as above
	case err != nil:
		return nil, fmt.Errorf("read secret %s/%s: %w", ref.Namespace, ref.Name, err)
	case !isCredentials(secret), isOthers(secret, known.Name):
		return nil, nil //nolint:nilnil // as above
	}
	return secret, nil
}

// vacant returns a *JoinError if the Secret into which a join would store the credentials of a new
// Cluster exists and has other contents. name is the name of the Cluster and the Secret.
func vacant(ctx context.Context, hub client.Client, name string) error {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
	if err := hub.Get(ctx, key, secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read secret %s: %w", key, err)
	}
	if isOthers(secret, name) || len(secret.Data) > 0 && !isCredentials(secret) {
		return refuse(clusterv1alpha1.ReasonSecretNotBound,
			"secret %s, in which the credentials are to be stored, holds something else; delete it if nothing needs it, or join the cluster under another name", key)
	}
	return nil
}

// describeAgain updates provider, region, zones and labels of an existing Cluster on the hub from
// joining, the Cluster of a repeated join. It does not change the address, which the hub has
// written with the new credentials.
func describeAgain(ctx context.Context, hub client.Client, name string, joining *clusterv1alpha1.Cluster) error {
	known := &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, known); err != nil {
		return fmt.Errorf("get cluster %s: %w", name, err)
	}
	updated := known.DeepCopy()
	Describe(updated, joining)
	if equality.Semantic.DeepEqual(known, updated) {
		return nil
	}
	if err := hub.Patch(ctx, updated, client.MergeFrom(known)); err != nil {
		return fmt.Errorf("update cluster %s: %w", name, err)
	}
	return nil
}

// store writes the Cluster of a join and then its Secret, so that the Secret always has an owner.
// It creates the namespace if necessary, and replaces the data of an existing Secret. If store is
// interrupted, unjoining the Cluster deletes everything. known is the existing Cluster of that
// name; nil: there is none.
func store(ctx context.Context, hub client.Client, known, cluster *clusterv1alpha1.Cluster, secret *corev1.Secret) error {
	if known == nil {
		if err := hub.Create(ctx, cluster); err != nil {
			return fmt.Errorf("create cluster %s: %w", cluster.Name, err)
		}
	} else {
		updated := refreshed(known, cluster)
		if err := hub.Patch(ctx, updated, client.MergeFrom(known)); err != nil {
			return fmt.Errorf("update cluster %s: %w", cluster.Name, err)
		}
		secret.Namespace, secret.Name = updated.Spec.SecretRef.Namespace, updated.Spec.SecretRef.Name
		cluster = updated
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secret.Namespace}}
	if err := hub.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", namespace.Name, err)
	}
	stored := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, hub, stored, func() error {
		bind(stored, cluster)
		if !equality.Semantic.DeepEqual(stored.Data, secret.Data) {
			stored.Data = secret.Data
		}
		stored.Type = secret.Type
		return controllerutil.SetOwnerReference(cluster, stored, hub.Scheme())
	})
	if err != nil {
		return fmt.Errorf("store credentials in secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

// refreshed returns a copy of known, the existing Cluster, with the address, syncMode, provider,
// region, zones and labels of joining, the Cluster of a repeated join.
func refreshed(known, joining *clusterv1alpha1.Cluster) *clusterv1alpha1.Cluster {
	updated := known.DeepCopy()
	spec := &updated.Spec
	spec.APIEndpoint, spec.TLSVerification = joining.Spec.APIEndpoint, joining.Spec.TLSVerification
	spec.TLSServerName, spec.ProxyURL = joining.Spec.TLSServerName, joining.Spec.ProxyURL
	spec.SyncMode = joining.Spec.SyncMode
	if spec.SecretRef.Name == "" { // the Cluster has no Secret yet, or Join has removed the reference
		spec.SecretRef = joining.Spec.SecretRef
	}
	Describe(updated, joining)
	return updated
}

// Describe copies provider, region, zones and labels of a Cluster from joining to updated. Empty
// values of joining are not copied, and labels that joining does not have stay.
func Describe(updated, joining *clusterv1alpha1.Cluster) {
	spec := &updated.Spec
	if joining.Spec.Provider != "" {
		spec.Provider = joining.Spec.Provider
	}
	if joining.Spec.Region != "" {
		spec.Region = joining.Spec.Region
	}
	if joining.Spec.Zones != nil {
		spec.Zones = joining.Spec.Zones
	}
	if len(joining.Labels) > 0 {
		if updated.Labels == nil {
			updated.Labels = map[string]string{}
		}
		maps.Copy(updated.Labels, joining.Labels)
	}
}
