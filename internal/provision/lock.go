package provision

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	// leaseTime is how long the Lease of a server is valid without renewal.
	leaseTime = 30 * time.Second
	// renewEvery is the interval at which a server renews its Lease.
	renewEvery = leaseTime / 3
	// renewDeadline is how long after the last renewal a server gives up its Lease. It is less than
	// leaseTime, so that the run ends before another server may take the Lease.
	renewDeadline = 2 * renewEvery
	// askEvery is the interval at which a server that waits for a Lease tries to take it, and at which
	// a renewal that failed is tried again.
	askEvery = 2 * time.Second
	// leaseTimeout bounds an attempt to take, renew or release a Lease.
	leaseTimeout = 5 * time.Second
	// racing is the holder that acquire returns if the Lease was changed at the same moment.
	racing = "another server"
)

// Lock implements lifecycle.Store. It locks a cluster for a run, with a Lease on the hub. While
// another server has the Lease, it waits until ctx ends. It returns an error if this server has
// locked the cluster already.
//
// It renews the Lease until unlock is called, also after ctx has ended. If another server has the
// Lease, or may soon take it, Lock calls s.Lost. The caller must call unlock in any case.
func (s *Store) Lock(ctx context.Context, cluster string) (unlock func(), err error) {
	if !s.lockHere(cluster) {
		return nil, fmt.Errorf("cluster %s: this server works on it already", cluster)
	}
	sent, err := s.waitForLease(ctx, cluster)
	if err != nil {
		s.unlockHere(cluster)
		return nil, err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.renew(background, cluster, sent)
	}()
	return func() {
		stop()
		<-stopped
		if err := s.release(context.WithoutCancel(ctx), cluster); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "release cluster", "cluster", cluster)
		}
		s.unlockHere(cluster)
	}, nil
}

// lockHere locks a cluster within this process, without the Lease. It returns false if the cluster
// is locked already.
func (s *Store) lockHere(cluster string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked[cluster] {
		return false
	}
	if s.locked == nil {
		s.locked = map[string]bool{}
	}
	s.locked[cluster] = true
	return true
}

// unlockHere ends what lockHere did.
func (s *Store) unlockHere(cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locked, cluster)
}

// waitForLease takes the Lease of a cluster, and waits while another server has it. It returns a
// time before the request that took the Lease. If ctx ends before, it returns the cause. It returns
// an error of the API server at once.
func (s *Store) waitForLease(ctx context.Context, cluster string) (time.Time, error) {
	said := ""
	for {
		sent := time.Now()
		holder, err := s.acquire(ctx, cluster)
		if err != nil || holder == s.Holder {
			return sent, err
		}
		if holder != said {
			ctrl.LoggerFrom(ctx).Info("another server works on the cluster; waiting for it", "cluster", cluster, "server", holder)
			said = holder
		}
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(askEvery):
		}
	}
}

// lease returns a Lease object with the namespace and name that belong to a cluster. Nothing else
// is set.
func lease(cluster string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: objectName(cluster)}}
}

// acquire takes or renews the Lease of a cluster, and returns the server that has it now. This is
// s.Holder if acquire succeeded. If another server has a valid Lease, acquire changes nothing and
// returns that server. If the Lease was changed at the same moment, it returns racing. It ends with
// an error after leaseTimeout.
func (s *Store) acquire(ctx context.Context, cluster string) (holder string, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	l := lease(cluster)
	err = s.Client.Get(ctx, client.ObjectKeyFromObject(l), l)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return "", fmt.Errorf("read the lease of cluster %s: %w", cluster, err)
	}
	if other := l.Spec.HolderIdentity; other != nil && *other != s.Holder && l.Spec.RenewTime != nil && time.Since(l.Spec.RenewTime.Time) < leaseTime {
		return *other, nil
	}
	now := metav1.NowMicro()
	l.Spec.HolderIdentity, l.Spec.RenewTime = new(s.Holder), &now
	l.Spec.LeaseDurationSeconds = new(int32(leaseTime / time.Second))
	if missing {
		err = s.Client.Create(ctx, l)
	} else {
		err = s.Client.Update(ctx, l)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return racing, nil
	}
	if err != nil {
		return "", fmt.Errorf("take the lease of cluster %s: %w", cluster, err)
	}
	return s.Holder, nil
}

// renew renews the Lease of a cluster until ctx ends. sent is a time before the request that took
// the Lease. renew calls s.Lost and returns if another server has the Lease. It does the same
// renewDeadline after the last successful renewal was sent, since another server may soon take the
// Lease. Before that, errors are logged, and the renewal is tried again.
func (s *Store) renew(ctx context.Context, cluster string, sent time.Time) {
	log := ctrl.LoggerFrom(ctx).WithValues("cluster", cluster)
	until, wait := sent.Add(renewDeadline), renewEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(wait, time.Until(until))):
		}
		now := time.Now()
		rctx, cancel := context.WithDeadline(ctx, until)
		holder, err := s.acquire(rctx, cluster)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && holder == s.Holder:
			until, wait = now.Add(renewDeadline), renewEvery
		case err == nil && holder != racing:
			log.Info("the cluster is not ours any more; its run is interrupted here", "server", holder)
			s.Lost(cluster)
			return
		case !time.Now().Before(until):
			log.Info("the lease could not be renewed, and another server may soon take it; the run is interrupted here", "error", fmt.Sprint(err))
			s.Lost(cluster)
			return
		default:
			log.Info("the lease was not renewed; it is tried again", "error", err, "server", holder)
			wait = askEvery
		}
	}
}

// release deletes the Lease of a cluster if this server has it. A missing Lease, and a Lease of
// another server, are no error. It ends with an error after leaseTimeout.
func (s *Store) release(ctx context.Context, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	l := lease(cluster)
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(l), l); err != nil {
		return client.IgnoreNotFound(err)
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != s.Holder {
		return nil
	}
	err := s.Client.Delete(ctx, l, client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil // another server has taken the Lease
	}
	return client.IgnoreNotFound(err)
}
