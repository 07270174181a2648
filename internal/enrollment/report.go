package enrollment

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/tunnel"
)

// report processes the report of an agent: new credentials of the hub for the agent's cluster, and
// mostly a request for a new certificate. It is the gateway.Taker of this hub. It checks the
// agent's certificate again. The receipt may have a new certificate even if the credentials are
// refused. Internal errors are logged, and the agent gets a refusal that asks to try again.
func (e *Enrollment) report(ctx context.Context, certificate *x509.Certificate, cluster string, r tunnel.Report) tunnel.Receipt {
	var receipt tunnel.Receipt
	err := e.renew(ctx, certificate, cluster, r, &receipt)
	if refused := (*refusal)(nil); err != nil && !errors.As(err, &refused) {
		e.log.Info("a report failed", "cluster", cluster, "cause", err.Error())
		err = errors.New("the hub cannot take the report now; try again")
	}
	if err != nil {
		receipt.Refused = err.Error()
		reports.WithLabelValues("Refused").Inc()
		return receipt
	}
	reports.WithLabelValues("Accepted").Inc()
	return receipt
}

// renew issues a certificate if the report of an agent requests one, and offers the reported
// credentials to the hub. It stores the certificate in receipt, also if it then returns an error.
// If the join is complete, it deletes the token of that join. An error may be sent to the agent
// only if it is a *refusal.
func (e *Enrollment) renew(ctx context.Context, certificate *x509.Certificate, cluster string, r tunnel.Report, receipt *tunnel.Receipt) error {
	k := e.keeper.Load()
	if k == nil {
		return errStarting
	}
	who, err := k.identify(certificate, e.now())
	if err != nil {
		return &refusal{err}
	}
	have, err := e.asked(ctx, who)
	if err != nil {
		return err
	}
	if err := judge(who, have, e.now()); err != nil { // the decision may have changed since Admit
		return &refusal{err}
	}
	if len(r.Request) > 0 {
		key, name, err := requested(r.Request)
		if err == nil && name != who.key {
			err = errors.New("a certificate is renewed for the key that it has; for another key a token is needed: run orrery cluster rejoin where the hub is administered")
		}
		if err != nil {
			return &refusal{err}
		}
		if receipt.Certificate, err = e.issue(ctx, k, have.cluster, key, name, false); err != nil {
			return err
		}
	}
	var credentials tunnel.Credentials
	if err := tunnel.Open(k.sealing, cluster, r.Sealed, &credentials); err != nil {
		return &refusal{err}
	}
	// An agent whose key has redeemed the token could redeem it again. So its report counts as a
	// redemption.
	if err := e.options.Offer(ctx, cluster, who.uid, credentials, have.joining); err != nil {
		return &refusal{err}
	}
	if have.joining && have.cluster.Spec.SyncMode == clusterv1alpha1.Pull && have.cluster.Spec.APIEndpoint != "" {
		return e.settle(ctx, have.cluster, who.key)
	}
	return nil
}

// settle deletes the token of a completed join, after which a recorded redemption is useless. key
// is the fingerprint of the key of the agent that reported. If another key used the token, or there
// is no token, settle does nothing.
func (e *Enrollment) settle(ctx context.Context, c *clusterv1alpha1.Cluster, key string) error {
	s := &corev1.Secret{}
	there, err := e.get(ctx, client.ObjectKeyFromObject(secretOf(c.Name, joinSuffix)), s)
	if err != nil || !there || !readJoin(s).usedBy(c.UID, key, e.now()) {
		return err
	}
	err = e.hub.Delete(ctx, s, client.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("end the token of cluster %s: %w", c.Name, err)
	}
	return nil
}
