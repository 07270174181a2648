package member

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	// keyNext is the key, in a Secret with the present credentials of a cluster, of the candidate: new
	// credentials that are to replace the present ones.
	keyNext = "next"
	// annotationTried is the annotation, on the Secret with the candidate, that has the result of the
	// last candidate (type tried).
	annotationTried = "cluster.orrery.dev/tried"
	// confirmTimeout is how long a join waits until the hub has tried its new credentials. confirmLook
	// is the time between two reads of the result.
	confirmTimeout = 30 * time.Second
	confirmLook    = 100 * time.Millisecond
)

// ReasonNotConfirmed is the reason of a *JoinError if the hub did not try the new credentials of a
// join within confirmTimeout. The present credentials then stay. No condition has this reason.
const ReasonNotConfirmed = "NotConfirmed"

// candidate has an address and credentials that are to replace those of a Cluster. It is stored as
// JSON in the Secret with the present credentials, under keyNext, until the hub itself has reached
// the cluster with the candidate. So only working credentials replace working ones.
type candidate struct {
	// ID identifies the candidate for the join that wrote it.
	ID string `json:"id"`
	// Cluster is the name of the Cluster that the candidate is for. Several Clusters may use a
	// Secret.
	Cluster string `json:"cluster"`
	// Accepted is true once the hub has reached the cluster with the candidate. The hub always
	// completes an accepted candidate: it becomes the address and credentials of the Cluster.
	Accepted bool `json:"accepted,omitempty"`
	// Offered is the origin of the candidate.
	Offered offer `json:"offered,omitempty"`

	// SyncMode is empty in candidates of earlier versions, which means Push.
	SyncMode        clusterv1alpha1.SyncMode        `json:"syncMode,omitempty"`
	APIEndpoint     string                          `json:"apiEndpoint"`
	TLSVerification clusterv1alpha1.TLSVerification `json:"tlsVerification"`
	TLSServerName   string                          `json:"tlsServerName,omitempty"`
	ProxyURL        string                          `json:"proxyURL,omitempty"`
	Data            map[string][]byte               `json:"data"`
}

// tried is the result of a candidate, as JSON in annotationTried. ID is that of the candidate.
// Reason and Message are why the candidate was refused; without a reason it was accepted.
type tried struct {
	ID      string `json:"id"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// newCandidate returns a candidate (new credentials that the hub is to try) of a join. It has a new
// ID and the address of cluster. It shares the data of secret.
func newCandidate(cluster *clusterv1alpha1.Cluster, secret *corev1.Secret) candidate {
	spec := &cluster.Spec
	return candidate{
		ID: string(uuid.NewUUID()), Cluster: cluster.Name, Data: secret.Data, SyncMode: spec.SyncMode,
		APIEndpoint: spec.APIEndpoint, TLSVerification: spec.TLSVerification,
		TLSServerName: spec.TLSServerName, ProxyURL: spec.ProxyURL,
	}
}

// applied returns a copy of the Cluster with the candidate's address and syncMode. If the
// candidate's syncMode is Pull (with an agent), the copy has no impersonatorSecretRef.
func (c *candidate) applied(cluster *clusterv1alpha1.Cluster) *clusterv1alpha1.Cluster {
	o := cluster.DeepCopy()
	o.Spec.APIEndpoint, o.Spec.TLSVerification = c.APIEndpoint, c.TLSVerification
	o.Spec.TLSServerName, o.Spec.ProxyURL = c.TLSServerName, c.ProxyURL
	o.Spec.SyncMode = cmp.Or(c.SyncMode, clusterv1alpha1.Push)
	if pulls(o) {
		o.Spec.ImpersonatorSecretRef = nil // the agent's credentials also serve users, if any do
	}
	return o
}

// waiting returns the candidate (new credentials on trial) that a Secret holds for the Cluster with
// this name. It is nil if there is none, it is for another Cluster, or it cannot be parsed.
func waiting(secret *corev1.Secret, cluster string) *candidate {
	c := &candidate{}
	if json.Unmarshal(secret.Data[keyNext], c) != nil || c.Cluster != cluster {
		return nil
	}
	return c
}

// outcome returns the result of the candidate with this ID, from the annotation of the Secret. It
// is nil if the hub has not tried the candidate yet, or if the result of a later candidate has
// replaced it.
func outcome(secret *corev1.Secret, id string) *tried {
	t := &tried{}
	if json.Unmarshal([]byte(secret.Annotations[annotationTried]), t) != nil || t.ID != id {
		return nil
	}
	return t
}

// present returns a copy of the data of a Secret with credentials, without the new credentials that
// are on trial (the candidate).
func present(secret *corev1.Secret) map[string][]byte {
	data := maps.Clone(secret.Data)
	delete(data, keyNext)
	return data
}

// renew gives the existing Cluster known the address of cluster and the credentials of secret, for
// a repeated join. It stores them as a candidate beside the present credentials, and waits until
// the hub has tried the candidate. It does nothing if known has this address and these credentials
// already. stored is the Secret with the present credentials, an empty Secret if there is none.
//
// The error is a *JoinError if the hub has refused the candidate, or has not tried it within
// confirmTimeout or before ctx ends. In the second case the candidate is deleted again.
func renew(ctx context.Context, hub client.Client, known, cluster *clusterv1alpha1.Cluster, stored, secret *corev1.Secret) error {
	next := newCandidate(cluster, secret)
	if bound(stored, known) == nil &&
		equality.Semantic.DeepEqual(present(stored), next.Data) && equality.Semantic.DeepEqual(known.Spec, next.applied(known).Spec) {
		return nil
	}
	raw, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode credentials: %w", err)
	}
	key := credentialsKey(known)
	if err := lay(ctx, hub, known, key, raw); err != nil {
		return err
	}
	var said *tried
	err = wait.PollUntilContextTimeout(ctx, confirmLook, confirmTimeout, true, func(ctx context.Context) (bool, error) {
		now := &corev1.Secret{}
		if err := hub.Get(ctx, key, now); err != nil {
			return false, fmt.Errorf("read secret %s: %w", key, err)
		}
		said = outcome(now, next.ID)
		return said != nil, nil
	})
	if err != nil {
		if said, err = withdraw(context.WithoutCancel(ctx), hub, key, next.ID, err); err != nil {
			return err
		}
	}
	if said.Reason != "" {
		return refuse(said.Reason, "the hub tried the new credentials and keeps the present ones: %s", said.Message)
	}
	return nil
}

// lay writes raw, an encoded candidate, into the Secret with this key for the Cluster known. It
// creates the Secret if necessary. It replaces a candidate that the hub has not accepted. If there
// is an accepted one, lay waits up to confirmTimeout until the hub has replaced the credentials by
// it.
func lay(ctx context.Context, hub client.Client, known *clusterv1alpha1.Cluster, key client.ObjectKey, raw []byte) error {
	err := wait.PollUntilContextTimeout(ctx, confirmLook, confirmTimeout, true, func(ctx context.Context) (bool, error) {
		secret := &corev1.Secret{}
		err := hub.Get(ctx, key, secret)
		switch now := waiting(secret, known.Name); {
		case apierrors.IsNotFound(err):
			err = layFirst(ctx, hub, known, key, raw)
		case err != nil, now != nil && now.Accepted:
			return false, err
		default:
			if secret.Data == nil {
				secret.Data = map[string][]byte{}
			}
			secret.Data[keyNext] = raw
			err = hub.Update(ctx, secret)
		}
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("store new credentials beside the present ones in secret %s: %w", key, err)
	}
	return nil
}

// layFirst creates the Secret of a Cluster that has none, and the namespace if necessary. The
// Secret has only raw, an encoded candidate, and is not bound to an address yet. If the Secret
// exists, the error satisfies apierrors.IsAlreadyExists.
func layFirst(ctx context.Context, hub client.Client, cluster *clusterv1alpha1.Cluster, key client.ObjectKey, raw []byte) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, Annotations: map[string]string{clusterv1alpha1.AnnotationForCluster: cluster.Name},
		},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{keyNext: raw},
	}
	if err := controllerutil.SetOwnerReference(cluster, secret, hub.Scheme()); err != nil {
		return fmt.Errorf("own secret %s: %w", key, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}
	if err := hub.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", namespace.Name, err)
	}
	if err := hub.Create(ctx, secret); err != nil {
		return fmt.Errorf("store credentials in secret %s: %w", key, err)
	}
	return nil
}

// withdraw ends the wait of a join for the trial of its candidate. why is the error with which the
// wait ended. If the hub has tried the candidate meanwhile, withdraw returns the result without an
// error. Otherwise it deletes the candidate and returns a *JoinError with the reason NotConfirmed.
// The error is the same if another join has replaced the candidate. If the hub has accepted the
// candidate but has not completed it, withdraw waits for the result, for at most checkTimeout.
func withdraw(ctx context.Context, hub client.Client, key client.ObjectKey, id string, why error) (*tried, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for {
		secret := &corev1.Secret{}
		if err := hub.Get(ctx, key, secret); err != nil {
			return nil, errors.Join(why, fmt.Errorf("read secret %s: %w", key, err))
		}
		if said := outcome(secret, id); said != nil {
			return said, nil
		}
		next := &candidate{}
		if json.Unmarshal(secret.Data[keyNext], next) != nil || next.ID != id {
			return nil, refuse(ReasonNotConfirmed, "another join of this cluster began meanwhile; the present credentials stay")
		}
		if !next.Accepted {
			delete(secret.Data, keyNext)
			err := hub.Update(ctx, secret)
			if err == nil {
				return nil, refuse(ReasonNotConfirmed,
					"the hub did not try the new credentials within %s, so the present ones stay; is orrery server running? (%w)", confirmTimeout, why)
			}
			if !apierrors.IsConflict(err) {
				return nil, errors.Join(why, fmt.Errorf("take the new credentials out of secret %s: %w", key, err))
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until the hub has taken the new credentials: %w", ctx.Err())
		case <-time.After(confirmLook):
		}
	}
}

// try lets the hub test the candidate in secret: it reaches the cluster with the new address and
// credentials. On success they replace those of the Cluster and the Secret. try then returns the
// changed Cluster, and has changed secret, and impersonator if that is bound to the Cluster.
// impersonator is the Secret for requests in the name of users; nil: none.
//
// If there is no candidate, or it is refused or cannot be tried yet, try returns the given Cluster
// without an error. The reason of a refusal is written to the Secret. A candidate that cannot be
// tried yet is tried again later. try may be interrupted at any point: an accepted candidate stays
// in the Secret until Cluster and Secret have the new values.
func (r *Registry) try(
	ctx context.Context, cluster *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret,
) (*clusterv1alpha1.Cluster, error) {
	next := waiting(secret, cluster.Name)
	if next == nil {
		r.tried(cluster.Name)
		return cluster, nil
	}
	proposed := next.applied(cluster)
	if proposed.Spec.SecretRef.Name == "" {
		proposed.Spec.SecretRef = clusterv1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}
	}
	if !next.Accepted {
		if pulls(proposed) && len(r.agents(cluster.Name)) == 0 {
			r.postponed(ctx, cluster.Name, next, errAway)
			return cluster, nil
		}
		err := r.examineCandidate(ctx, cluster, proposed, secret, next)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		refused, ok := errors.AsType[*JoinError](err)
		if ok && next.waits(secret, refused) {
			r.postponed(ctx, cluster.Name, next, refused)
			return cluster, nil
		}
		if ok {
			r.tried(cluster.Name)
			if next.Offered != byJoin {
				r.events.Eventf(cluster, nil, corev1.EventTypeWarning, "CredentialsRefused", "Tunnel", "the credentials that the agent sent are refused: %s", refused.Error())
			}
			ctrl.LoggerFrom(ctx).Info("new credentials refused", "cluster", cluster.Name, "reason", refused.Reason, "message", refused.Error())
			return cluster, r.settle(ctx, secret, present(secret), tried{ID: next.ID, Reason: refused.Reason, Message: refused.Error()})
		}
		if err != nil {
			return nil, err
		}
	}
	if !equality.Semantic.DeepEqual(cluster.Spec, proposed.Spec) {
		if !next.Accepted {
			next.Accepted = true
			raw, err := json.Marshal(next)
			if err != nil {
				return nil, fmt.Errorf("encode credentials: %w", err)
			}
			secret.Data[keyNext] = raw
			if err := r.client.Update(ctx, secret); err != nil {
				return nil, fmt.Errorf("accept the new credentials in secret %s/%s: %w", secret.Namespace, secret.Name, err)
			}
		}
		if err := r.client.Patch(ctx, proposed, client.MergeFrom(cluster)); err != nil {
			return nil, fmt.Errorf("set the new address of cluster %s: %w", cluster.Name, err)
		}
	}
	if impersonator != nil && impersonator.UID != secret.UID && impersonator.Annotations[clusterv1alpha1.AnnotationForCluster] == cluster.Name {
		bind(impersonator, proposed)
		if err := r.client.Update(ctx, impersonator); err != nil {
			return nil, fmt.Errorf("bind secret %s/%s to the new address: %w", impersonator.Namespace, impersonator.Name, err)
		}
	}
	if pulls(proposed) && granted(present(secret)) != nil && !boundToAgent(secret) {
		r.leaveAccount(ctx, proposed, next)
	}
	bind(secret, proposed)
	if err := r.settle(ctx, secret, next.Data, tried{ID: next.ID}); err != nil {
		return nil, err
	}
	r.tried(cluster.Name)
	ctrl.LoggerFrom(ctx).Info("new credentials taken", "syncMode", proposed.Spec.SyncMode, "cluster", cluster.Name, "endpoint", Redacted(proposed.Spec.APIEndpoint))
	return proposed, nil
}

// settle ends the trial of a candidate: it replaces the data of the Secret by data, which has no
// candidate, and writes the result t into the annotation annotationTried.
func (r *Registry) settle(ctx context.Context, secret *corev1.Secret, data map[string][]byte, t tried) error {
	raw, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode the outcome: %w", err)
	}
	secret.Data = data
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[annotationTried] = string(raw)
	if err := r.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("write credentials to secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

// waits reports whether the refusal of new credentials (the candidate) is temporary, so that they
// are tried again. The agent may disconnect during the trial, and the hub's rights in a cluster may
// take effect after the agent has connected. Credentials from an agent that would replace present
// ones are tried again only if the cluster was unreachable. Those of a join are never tried again.
func (c *candidate) waits(secret *corev1.Secret, refused *JoinError) bool {
	switch refused.Reason {
	case clusterv1alpha1.ReasonUnreachable:
		return c.Offered != byJoin
	case clusterv1alpha1.ReasonUnauthorized, clusterv1alpha1.ReasonForbidden, clusterv1alpha1.ReasonAlreadyJoined:
		return c.Offered == byRedemption && len(present(secret)) == 0
	default:
		return false
	}
}

// examineCandidate makes all checks of a join with the new credentials in next, from the hub. nil
// means that they passed. A *JoinError means that the candidate is refused. cluster is the present
// Cluster, proposed the same with the new address, and secret has the present credentials. Only
// candidates of agents are compared with the other Clusters; a joining client has done that itself.
// With an agent it takes at most trialPatience.
func (r *Registry) examineCandidate(ctx context.Context, cluster, proposed *clusterv1alpha1.Cluster, secret *corev1.Secret, next *candidate) error {
	if pulls(proposed) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, trialPatience)
		defer cancel()
	}
	if err := r.checkAuthorities(ctx, proposed, secret, next); err != nil {
		return err
	}
	found, err := examineReady(ctx, r.dialer(proposed), proposed, &corev1.Secret{Data: next.Data}, trialReadyTimeout, nil)
	if err != nil {
		return err
	}
	at := Redacted(proposed.Spec.APIEndpoint)
	switch {
	case found.id == r.options.HubID:
		return refuse(clusterv1alpha1.ReasonIsHub, "%s is the hub itself", at)
	case cluster.Status.ID != "" && found.id != cluster.Status.ID:
		return refuse(clusterv1alpha1.ReasonIdentityChanged, "another cluster answers at %s than the one that is joined as %s; correct the address, or join that cluster under another name", at, proposed.Name)
	case next.Offered == byJoin:
		return nil // the joining client has compared the cluster with the fleet
	}
	fleet := &clusterv1alpha1.ClusterList{}
	if err := r.client.List(ctx, fleet); err != nil {
		return fmt.Errorf("list clusters: %w", err)
	}
	for i := range fleet.Items {
		if other := &fleet.Items[i]; other.Name != cluster.Name && other.Status.ID == found.id {
			return refuse(clusterv1alpha1.ReasonAlreadyJoined, "the cluster of the agent is already joined as %s; unjoin one of the two", other.Name)
		}
	}
	return nil
}

// trialPatience limits the trial of new credentials through an agent, because the agent or its
// cluster may hang.
const trialPatience = 20 * time.Second

// rootCA is the name of the ConfigMap, in each namespace, in which every cluster publishes the
// certificate authorities of its API server.
const rootCA = "kube-root-ca.crt"

// checkAuthorities returns an error, mostly a *JoinError, if the certificate authorities of the API
// server in a candidate cannot be trusted. It checks only candidates that an agent reported later
// with its certificate: such an agent could invent authorities, and answer as the API server
// itself. So new authorities must be among those that the API server publishes in ConfigMap
// kube-root-ca.crt, over a connection verified with the present authorities.
func (r *Registry) checkAuthorities(ctx context.Context, proposed *clusterv1alpha1.Cluster, secret *corev1.Secret, next *candidate) error {
	const wayOut = "run orrery cluster rejoin %s, and apply the manifest that it prints in the cluster"
	if next.Offered != byReport {
		return nil
	}
	present := secret.Data[keyCA]
	news := unknownTo(present, next.Data[keyCA])
	if len(news) == 0 {
		return nil
	}
	if len(present) == 0 {
		return refuse(ReasonUntrusted, "the agent reports authorities of the API server, and none is known to compare them with; "+wayOut, proposed.Name)
	}
	old := &corev1.Secret{Data: maps.Clone(next.Data)}
	old.Data[keyCA] = present
	c, err := newConnection(r.dialer(proposed), proposed, old, nil)
	if err != nil {
		return refuse(ReasonKubeconfigInvalid, "the credentials cannot be used: %w", err)
	}
	defer c.close()
	published, err := publishedAuthorities(ctx, c)
	switch {
	case untrusted(err):
		return refuse(ReasonUntrusted, "the agent reports other authorities of the API server, whose certificate the present ones do not verify any more: %w; "+wayOut, err, proposed.Name)
	case err != nil:
		return refuse(clusterv1alpha1.ReasonUnreachable, "the authorities that the API server publishes cannot be read: %w", describe(err))
	case len(unknownTo(append(slices.Clone(present), published...), next.Data[keyCA])) > 0:
		return refuse(ReasonUntrusted, "the agent reports authorities of the API server that this does not publish (ConfigMap %s); "+wayOut, rootCA, proposed.Name)
	}
	return nil
}

// publishedAuthorities returns the certificate authorities, in PEM, that an API server publishes in
// the ConfigMap rootCA. It reads the namespace kube-system or, if that fails, the namespace
// default.
func publishedAuthorities(ctx context.Context, c *connection) ([]byte, error) {
	core, err := corev1client.NewForConfigAndClient(&rest.Config{Host: c.base.String(), QPS: -1}, &http.Client{Transport: c.transport, Timeout: checkTimeout})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	for _, namespace := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault} {
		var found *corev1.ConfigMap
		if found, err = core.ConfigMaps(namespace).Get(ctx, rootCA, metav1.GetOptions{}); err == nil {
			return []byte("\n" + found.Data[keyCA]), nil
		}
	}
	return nil, err
}

// unknownTo returns the certificates in some that are not in others, as DER. Both arguments are
// PEM. It is empty if others has all of them. If some cannot be parsed, the result has one element,
// the bytes of some.
func unknownTo(others, some []byte) [][]byte {
	known, _ := cert.ParseCertsPEM(others) // certificates that cannot be parsed count as unknown
	parsed, err := cert.ParseCertsPEM(some)
	if err != nil {
		return [][]byte{some}
	}
	var news [][]byte
	for _, c := range parsed {
		if !slices.ContainsFunc(known, c.Equal) {
			news = append(news, c.Raw)
		}
	}
	return news
}
