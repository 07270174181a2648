package provision

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/reconciler"
)

const (
	// certificatesEvery is the interval between checks of the certificates of all clusters.
	certificatesEvery = time.Hour
	// renewRetry is the time after the end of a renewal in which the hub starts no other renewal of
	// that cluster.
	renewRetry = time.Hour
)

// lookAtCertificates runs until ctx ends. Every certificatesEvery it calls Refresh for every
// Cluster with spec.provision, because no event reports that a certificate is due. It also deletes
// the expiry metrics of clusters without spec.provision.
func (p *Provisioner) lookAtCertificates(ctx context.Context) {
	tick := p.options.Clock.NewTicker(certificatesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		list := &clusterv1alpha1.ClusterList{}
		if err := p.client.List(ctx, list); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "list clusters to look at their certificates")
			continue
		}
		var built []string
		for _, o := range list.Items {
			if o.Spec.Provision != nil {
				built = append(built, o.Name)
				p.options.Refresh(o.Name)
			}
		}
		metrics.expireOnly(built)
	}
}

// certificates sets the expiry and the condition CertificatesExpiring in the status of o, and the
// metrics, from the expiries of the cluster's certificates. list has the earliest first, and ops
// has the oldest Operation first. It saves nothing.
//
// renew is true if the hub must renew certificates now. This requires that one is due, that the
// Cluster has joined and allows automatic renewal, and that no renewal has ended within renewRetry.
// If list is empty, certificates changes nothing and returns false.
func (p *Provisioner) certificates(o *clusterv1alpha1.Cluster, list []pki.Expiry, ops []lifecyclev1alpha1.Operation) (renew bool) {
	if len(list) == 0 {
		return false
	}
	now := p.options.Clock.Now()
	o.Status.Provision.CertificatesExpire = nil
	leaf := slices.IndexFunc(list, func(e pki.Expiry) bool { return !e.IsAuthority() })
	if leaf >= 0 {
		o.Status.Provision.CertificatesExpire = &metav1.Time{Time: list[leaf].NotAfter}
	}
	metrics.expire(o.Name, list)
	last := lastRenewal(ops)
	auto := o.Spec.Provision.Kubernetes.AutoRenewCerts
	automatic := auto == nil || *auto
	c := metav1.Condition{Type: clusterv1alpha1.ConditionCertificatesExpiring, Status: metav1.ConditionFalse, Reason: clusterv1alpha1.ReasonValid}
	if near := slices.IndexFunc(list, func(e pki.Expiry) bool { return e.Near(now) }); near >= 0 {
		c.Status, c.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon
		if list[near].NotAfter.Before(now) {
			c.Reason = clusterv1alpha1.ReasonExpired
		}
		c.Message = warning(o.Name, list[near], automatic, last)
	}
	reconciler.SetCondition(&o.Status.Conditions, c, o.Generation)
	due := slices.ContainsFunc(list, func(e pki.Expiry) bool { return e.Due(now) })
	return due && automatic && o.Spec.APIEndpoint != "" && (last == nil || time.Since(last.Status.Finished.Time) > renewRetry)
}

// warning returns the message of the condition CertificatesExpiring: what expires first, and what
// the hub does or the user must do. automatic says whether the hub may renew certificates. last is
// the last renewal if that has ended, or nil.
func warning(cluster string, first pki.Expiry, automatic bool, last *lifecyclev1alpha1.Operation) string {
	ends := fmt.Sprintf("%s ends at %s", first.Name, first.NotAfter.UTC().Format(time.RFC3339))
	switch {
	case first.IsAuthority():
		return "authority " + ends + ", and all certificates that it signs with it: build a new cluster before"
	case last != nil && last.Status.Phase == lifecyclev1alpha1.PhaseFailed:
		return fmt.Sprintf("certificate %s; operation %s, which was to renew it, failed: %s; it is tried again every hour", ends, last.Name, last.Status.Message)
	case !automatic:
		return fmt.Sprintf("certificate %s, and spec.provision.kubernetes.autoRenewCerts is false: create an Operation of cluster %s with action %s",
			ends, cluster, lifecyclev1alpha1.ActionRenewCertificates)
	default:
		return fmt.Sprintf("certificate %s; the hub renews it", ends)
	}
}

// lastRenewal returns the last Operation in ops that renews certificates. It is nil if there is
// none, or if it has not ended. ops has the oldest first.
func lastRenewal(ops []lifecyclev1alpha1.Operation) *lifecyclev1alpha1.Operation {
	for _, op := range slices.Backward(ops) {
		if isRenewal(op) {
			if op.Status.Finished != nil {
				return &op
			}
			return nil
		}
	}
	return nil
}

// isRenewal reports whether an Operation renews certificates.
func isRenewal(op lifecyclev1alpha1.Operation) bool {
	return op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates
}

// renew starts an Operation that renews certificates, and returns the result for the condition
// Provisioned, as underWay does. If the last Operation is a failed renewal, it resumes that one.
func (p *Provisioner) renew(ctx context.Context, o *clusterv1alpha1.Cluster, ops []lifecyclev1alpha1.Operation) error {
	if n := len(ops); n > 0 && isRenewal(ops[n-1]) && ops[n-1].Status.Phase == lifecyclev1alpha1.PhaseFailed {
		return p.resume(ctx, &ops[n-1], clusterv1alpha1.ReasonProvisioning)
	}
	spec := &lifecyclev1alpha1.OperationSpec{Cluster: o.Name, Action: lifecyclev1alpha1.ActionRenewCertificates}
	return p.create(ctx, o, spec, "", clusterv1alpha1.ReasonProvisioning)
}
