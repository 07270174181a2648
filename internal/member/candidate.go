package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	// keyNext is the key of a Secret with credentials under which a candidate lies.
	keyNext = "next"
	// annotationTried, on that Secret, says what came of the last candidate.
	annotationTried = "cluster.orrery.dev/tried"
	// confirmTimeout is how long a join waits until the hub has tried a candidate.
	confirmTimeout = 30 * time.Second
	confirmLook    = 100 * time.Millisecond
)

// ReasonNotConfirmed is that of a join whose credentials were not confirmed: the hub did not try the new credentials in time. It is a reason of joins only.
const ReasonNotConfirmed = "NotConfirmed"

// candidate is an address with credentials that are to replace those of a Cluster. It lies beside them, in the same
// Secret, until the hub itself has reached the cluster with it: what works is never replaced by what does not.
type candidate struct {
	// ID by which the join that wrote it knows it again.
	ID string `json:"id"`
	// Cluster that it is for; a Secret may be used by several.
	Cluster string `json:"cluster"`
	// Accepted is true once it has proved good. Then it is carried through, whatever happens.
	Accepted bool `json:"accepted,omitempty"`

	APIEndpoint     string                          `json:"apiEndpoint"`
	TLSVerification clusterv1alpha1.TLSVerification `json:"tlsVerification"`
	TLSServerName   string                          `json:"tlsServerName,omitempty"`
	ProxyURL        string                          `json:"proxyURL,omitempty"`
	Data            map[string][]byte               `json:"data"`
}

// tried is what came of a candidate. Without a reason it was taken.
type tried struct {
	ID      string `json:"id"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

func newCandidate(cluster *clusterv1alpha1.Cluster, secret *corev1.Secret) candidate {
	spec := &cluster.Spec
	return candidate{
		ID: string(uuid.NewUUID()), Cluster: cluster.Name, Data: secret.Data,
		APIEndpoint: spec.APIEndpoint, TLSVerification: spec.TLSVerification,
		TLSServerName: spec.TLSServerName, ProxyURL: spec.ProxyURL,
	}
}

// applied returns the Cluster with the candidate's address.
func (c *candidate) applied(cluster *clusterv1alpha1.Cluster) *clusterv1alpha1.Cluster {
	o := cluster.DeepCopy()
	o.Spec.APIEndpoint, o.Spec.TLSVerification = c.APIEndpoint, c.TLSVerification
	o.Spec.TLSServerName, o.Spec.ProxyURL = c.TLSServerName, c.ProxyURL
	return o
}

// waiting returns the candidate that a Secret holds for a Cluster, or nil.
func waiting(secret *corev1.Secret, cluster string) *candidate {
	c := &candidate{}
	if json.Unmarshal(secret.Data[keyNext], c) != nil || c.Cluster != cluster {
		return nil
	}
	return c
}

// outcome returns what came of a candidate, or nil while nobody knows.
func outcome(secret *corev1.Secret, id string) *tried {
	t := &tried{}
	if json.Unmarshal([]byte(secret.Annotations[annotationTried]), t) != nil || t.ID != id {
		return nil
	}
	return t
}

// present are the credentials of a Secret without a candidate.
func present(secret *corev1.Secret) map[string][]byte {
	data := maps.Clone(secret.Data)
	delete(data, keyNext)
	return data
}

// renew has the hub try an address and credentials, and waits until it has taken or refused them.
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
	stored = stored.DeepCopy()
	stored.Data[keyNext] = raw
	if err := hub.Update(ctx, stored); err != nil {
		return fmt.Errorf("store new credentials beside the present ones in secret %s/%s: %w", stored.Namespace, stored.Name, err)
	}
	key := client.ObjectKeyFromObject(stored)
	var said *tried
	err = wait.PollUntilContextTimeout(ctx, confirmLook, confirmTimeout, true, func(ctx context.Context) (bool, error) {
		if err := hub.Get(ctx, key, stored); err != nil {
			return false, fmt.Errorf("read secret %s: %w", key, err)
		}
		said = outcome(stored, next.ID)
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

// withdraw takes a candidate back that the hub has not tried. It returns what came of it if the hub was faster.
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

// try reaches the cluster with the candidate that lies in its Secret and, if that works, puts it in the place of what the
// Cluster and the Secret have. It returns the Cluster as it is then, and changes the Secret accordingly. Killed at any
// point, it is taken up again: a candidate that was accepted stays until Cluster and Secret both have it.
func (r *Registry) try(
	ctx context.Context, cluster *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret,
) (*clusterv1alpha1.Cluster, error) {
	next := waiting(secret, cluster.Name)
	if next == nil {
		return cluster, nil
	}
	proposed := next.applied(cluster)
	if !next.Accepted {
		err := r.examineCandidate(ctx, proposed, next)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if refused, ok := errors.AsType[*JoinError](err); ok {
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
	bind(secret, proposed)
	if err := r.settle(ctx, secret, next.Data, tried{ID: next.ID}); err != nil {
		return nil, err
	}
	ctrl.LoggerFrom(ctx).Info("new credentials taken", "cluster", cluster.Name, "endpoint", Redacted(proposed.Spec.APIEndpoint))
	return proposed, nil
}

// settle writes credentials without a candidate, and what came of it.
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

// examineCandidate asks the cluster all that a join asks it, from where the hub is.
func (r *Registry) examineCandidate(ctx context.Context, proposed *clusterv1alpha1.Cluster, next *candidate) error {
	found, err := examine(ctx, r.options.Dial, proposed, &corev1.Secret{Data: next.Data})
	if err != nil {
		return err
	}
	switch {
	case found.id == r.options.HubID:
		return refuse(clusterv1alpha1.ReasonIsHub, "%s is the hub itself", Redacted(proposed.Spec.APIEndpoint))
	case proposed.Status.ID != "" && found.id != proposed.Status.ID:
		return refuse(clusterv1alpha1.ReasonIdentityChanged, "another cluster answers at %s than is joined as %s", Redacted(proposed.Spec.APIEndpoint), proposed.Name)
	}
	return nil
}
