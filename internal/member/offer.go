package member

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/tunnel"
)

const (
	// reportPatience is how long an agent that reports new credentials waits until the hub has tried
	// them.
	reportPatience = 15 * time.Second
	// proposals is the number of attempts to write new credentials into a Secret that other writers
	// change at the same time.
	proposals = 8
)

// offer is the origin of a candidate, the new credentials of a Cluster that the hub is to try.
type offer string

const (
	byJoin       offer = ""           // orrery cluster join, with a kubeconfig
	byRedemption offer = "redemption" // an agent, with the token of a join
	byReport     offer = "report"     // an agent, with its certificate
)

// Offer stores credentials that an agent sends for its cluster, as new credentials that the hub is
// to try. uid is the UID that the Cluster must have. redeemed means that the agent sent the token
// of a join with the credentials. The hub then tries them when the agent has connected, which is
// after this call. Without redeemed, the agent reports with its certificate. The hub then tries the
// credentials during this call, and Offer waits for that up to reportPatience.
//
// nil means that the credentials were stored (redeemed) or accepted. It also means that nothing was
// done: the Cluster has the credentials already, or has syncMode Push and the agent only reports.
// An error is the reason why the credentials were not accepted, or not yet. It contains no secret.
// Present credentials stay until the hub has reached the same cluster with the new ones.
func (r *Registry) Offer(ctx context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error {
	known := &clusterv1alpha1.Cluster{}
	err := r.reader.Get(ctx, client.ObjectKey{Name: cluster}, known)
	switch {
	case apierrors.IsNotFound(err), err == nil && known.UID != uid:
		return fmt.Errorf("cluster %s was deleted on the hub, or created again, since the agent joined: join the cluster again", cluster)
	case err != nil:
		return fmt.Errorf("get cluster %s: %w", cluster, err)
	case !known.DeletionTimestamp.IsZero():
		return fmt.Errorf("cluster %s is leaving", cluster)
	case !pulls(known) && !redeemed:
		return nil
	}
	next := candidate{
		ID: string(uuid.NewUUID()), Cluster: cluster, Offered: byReport, SyncMode: clusterv1alpha1.Pull,
		APIEndpoint: c.Endpoint, TLSServerName: c.TLSServerName, TLSVerification: clusterv1alpha1.TLSVerify,
		Data: map[string][]byte{keyToken: []byte(strings.TrimSpace(c.Token)), keyCA: c.CA},
	}
	if redeemed {
		next.Offered = byRedemption
	}
	if err := usable(c); err != nil {
		return err
	}
	now := r.options.Clock.Now()
	if life := tokenLifeOf(c, now); life > 0 {
		if err := newCredential(string(next.Data[keyToken]), now, int64(life/time.Second)).write(next.Data); err != nil {
			return err
		}
	}
	if err := r.propose(ctx, known, &next); err != nil || next.ID == "" {
		return err
	}
	r.enqueue(cluster, 0)
	if redeemed {
		return nil
	}
	return r.confirm(ctx, known, next.ID)
}

// usable returns an error if credentials that an agent sent cannot be stored in a Cluster and its
// Secret: the address, the authorities or the token is missing or invalid. The error is sent to the
// agent.
func usable(c tunnel.Credentials) error {
	at, err := url.ParseRequestURI(c.Endpoint)
	switch {
	case err != nil, at.Scheme != "https", at.User != nil, len(c.Endpoint) > 2048:
		return errors.New("the endpoint in the agent's credentials is no https:// URL of an API server")
	case len(c.TLSServerName) > 253:
		return errors.New("the TLS server name in the agent's credentials is longer than 253 characters")
	case !x509.NewCertPool().AppendCertsFromPEM(c.CA):
		return errors.New("the agent's credentials have no authority of the API server's certificate, in PEM")
	case strings.TrimSpace(c.Token) == "":
		return errors.New("the agent's credentials have no token")
	}
	return nil
}

// propose writes the candidate next, the new credentials of a Cluster, beside the present ones. It
// creates the Secret if necessary. If these credentials are the present ones already, it writes
// nothing and sets next.ID to "". It may change next.Offered. Conflicts are retried up to proposals
// times.
func (r *Registry) propose(ctx context.Context, cluster *clusterv1alpha1.Cluster, next *candidate) error {
	key := credentialsKey(cluster)
	for range proposals {
		secret := &corev1.Secret{}
		err := r.reader.Get(ctx, key, secret)
		fresh := apierrors.IsNotFound(err)
		if err != nil && !fresh {
			return fmt.Errorf("read secret %s: %w", key, err)
		}
		if fresh {
			var raw []byte
			if raw, err = json.Marshal(next); err == nil {
				err = layFirst(ctx, r.client, cluster, key, raw)
			}
		} else {
			err = r.proposeBeside(ctx, cluster, secret, next)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return fmt.Errorf("secret %s changes all the time; try again", key)
}

// credentialsKey returns the key of the Secret for the credentials of a Cluster: the one that
// the Cluster references, if it is in the namespace for credentials, else the one with the
// Cluster's name.
func credentialsKey(cluster *clusterv1alpha1.Cluster) client.ObjectKey {
	if ref := cluster.Spec.SecretRef; ref.Name != "" && misplaced(ref) == nil {
		return client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	}
	return client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: cluster.Name}
}

// proposeBeside writes the candidate next into the existing Secret of a Cluster. If these
// credentials are the present ones already, it writes nothing and sets next.ID to "".
//
// It is an error if the Secret has other contents, or if a candidate in it was accepted or comes
// from orrery cluster join. A report of an agent replaces the candidate of a redemption (the
// agent's first credentials, with the token of a join) only with the same certificate authorities.
// next then counts as a redemption, too.
func (r *Registry) proposeBeside(ctx context.Context, cluster *clusterv1alpha1.Cluster, secret *corev1.Secret, next *candidate) error {
	if isOthers(secret, cluster.Name) || len(secret.Data) > 0 && !isCredentials(secret) {
		return fmt.Errorf("secret %s/%s, in which the credentials are to be stored, holds something else; delete it if nothing needs it",
			secret.Namespace, secret.Name)
	}
	switch old := waiting(secret, cluster.Name); {
	case old != nil && old.Accepted:
		return fmt.Errorf("other credentials of cluster %s are being taken; try again", cluster.Name)
	case old != nil && old.Offered == byJoin:
		return fmt.Errorf("other credentials of cluster %s are being tried; try again", cluster.Name)
	case old != nil && next.Offered == byReport && old.Offered == byRedemption:
		if string(old.Data[keyCA]) != string(next.Data[keyCA]) {
			return fmt.Errorf("the authorities that were redeemed for cluster %s are being tried; try again", cluster.Name)
		}
		next.Offered = byRedemption // a newer token of the same join
	case old == nil && bound(secret, cluster) == nil && equality.Semantic.DeepEqual(withoutGrant(secret.Data), withoutGrant(next.Data)) &&
		equality.Semantic.DeepEqual(cluster.Spec, next.applied(cluster).Spec):
		next.ID = ""
		return nil
	}
	raw, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode credentials: %w", err)
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[keyNext] = raw
	if err := r.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("store new credentials beside the present ones in secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

// confirm waits up to reportPatience until the hub has tried the candidate with this ID. nil means
// that it was accepted. An error means that the candidate was refused or replaced, or that the time
// is over. In the last case the candidate stays and is tried later.
func (r *Registry) confirm(ctx context.Context, cluster *clusterv1alpha1.Cluster, id string) error {
	key := credentialsKey(cluster)
	var said *tried
	err := wait.PollUntilContextTimeout(ctx, confirmLook, reportPatience, false, func(ctx context.Context) (bool, error) {
		secret := &corev1.Secret{}
		if err := r.reader.Get(ctx, key, secret); err != nil {
			return false, fmt.Errorf("read secret %s: %w", key, err)
		}
		if said = outcome(secret, id); said != nil {
			return true, nil
		}
		if now := waiting(secret, cluster.Name); now == nil || now.ID != id {
			return false, errors.New("other credentials were offered meanwhile")
		}
		return false, nil
	})
	if err == nil && said.Reason != "" {
		err = errors.New(said.Message)
	}
	if err != nil {
		return fmt.Errorf("the present credentials of cluster %s stay: %w", cluster.Name, err)
	}
	return nil
}

// Delays between trials of a candidate that cannot be tried yet.
const (
	trialFirst = 2 * time.Second
	trialLast  = time.Minute
)

// trial is the record of a candidate (new credentials of a Cluster) that the hub could not try yet.
// The zero value means that no candidate waits. Registry.mu guards the field trials of a registry.
type trial struct {
	id       string
	failures int
	due      time.Time
	agent    bool // the candidate waits for an agent
	why      string
}

// errAway means that none of the cluster's agents is connected. The cluster then cannot be reached,
// and new credentials cannot be tried.
var errAway = errors.New("no agent of the cluster is connected")

// postponed records that the candidate next of a Cluster could not be tried because of why. It
// schedules the next attempt, after a delay that doubles from trialFirst up to trialLast.
func (r *Registry) postponed(ctx context.Context, cluster string, next *candidate, why error) {
	r.mu.Lock()
	t := r.trials[cluster]
	if t == nil || t.id != next.ID {
		t = &trial{id: next.ID}
		r.trials[cluster] = t
	}
	t.why, t.agent = why.Error(), errors.Is(why, errAway)
	wait := min(trialLast, trialFirst<<min(t.failures, 8))
	t.failures++
	t.due = time.Now().Add(wait)
	r.mu.Unlock()
	ctrl.LoggerFrom(ctx).Info("new credentials cannot be tried yet", "cluster", cluster, "cause", why.Error())
	r.enqueue(cluster, wait)
}

// tried deletes the record that new credentials of the Cluster wait for a trial, if there is one.
// It is called after the trial, or if there are no new credentials.
func (r *Registry) tried(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.trials, cluster)
}

// trialOf returns the record of the new credentials of a Cluster that could not be tried yet. It is
// the zero value if none wait.
func (r *Registry) trialOf(cluster string) trial {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t := r.trials[cluster]; t != nil {
		return *t
	}
	return trial{}
}

// isDue reports whether new credentials of the Cluster could not be tried before, and may be tried
// again now.
func (r *Registry) isDue(cluster string) bool {
	t := r.trialOf(cluster)
	return t.id != "" && !time.Now().Before(t.due)
}

// tryOffered tries the new credentials, from an agent or a join, of a Cluster that has no
// credentials yet. It does nothing if there are none, if their next trial is not due, or if the
// Cluster is being deleted. It also does nothing for those of an agent while no agent is connected.
func (r *Registry) tryOffered(ctx context.Context, cluster *clusterv1alpha1.Cluster) error {
	if !cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	key := credentialsKey(cluster)
	secret := &corev1.Secret{}
	err := r.reader.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) || err == nil && isOthers(secret, cluster.Name) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read secret %s: %w", key, err)
	}
	next := waiting(secret, cluster.Name)
	if next == nil || next.Offered != byJoin && len(r.agents(cluster.Name)) == 0 {
		return nil
	}
	if t := r.trialOf(cluster.Name); t.id == next.ID && time.Now().Before(t.due) {
		return nil
	}
	_, err = r.try(ctx, cluster, secret, nil)
	return err
}
