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
	// leaseTime is how long the Lease of a server lasts without renewal. renewEvery is the interval of
	// renewals, and askEvery that of a waiting server.
	leaseTime  = 30 * time.Second
	renewEvery = leaseTime / 3
	askEvery   = 2 * time.Second
)

// Lock implements lifecycle.Store with a Lease on the hub. It waits while another server has the
// Lease. It returns an error if this server has locked the cluster already.
func (s *Store) Lock(ctx context.Context, cluster string) (unlock func(), err error) {
	if !s.lockHere(cluster) {
		return nil, fmt.Errorf("cluster %s: this server works on it already", cluster)
	}
	if err := s.waitForLease(ctx, cluster); err != nil {
		s.unlockHere(cluster)
		return nil, err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.renew(background, cluster)
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

func (s *Store) unlockHere(cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locked, cluster)
}

// waitForLease waits until this server has the cluster's Lease.
func (s *Store) waitForLease(ctx context.Context, cluster string) error {
	said := ""
	for {
		holder, err := s.acquire(ctx, cluster)
		if err != nil || holder == s.Holder {
			return err
		}
		if holder != said {
			ctrl.LoggerFrom(ctx).Info("another server works on the cluster; waiting for it", "cluster", cluster, "server", holder)
			said = holder
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(askEvery):
		}
	}
}

func lease(cluster string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: objectName(cluster)}}
}

// acquire takes or renews the Lease, and returns its holder. It leaves a valid Lease of another
// server.
func (s *Store) acquire(ctx context.Context, cluster string) (holder string, err error) {
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
		return "another server", nil // it was faster
	}
	if err != nil {
		return "", fmt.Errorf("take the lease of cluster %s: %w", cluster, err)
	}
	return s.Holder, nil
}

// renew renews the Lease until ctx ends. It calls s.Lost if another server has the Lease or may
// have it.
func (s *Store) renew(ctx context.Context, cluster string) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		holder, err := s.acquire(ctx, cluster)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && holder == s.Holder:
			last = time.Now()
		case err == nil || time.Since(last) > leaseTime:
			ctrl.LoggerFrom(ctx).Info("the cluster is not ours any more; its run is interrupted here", "cluster", cluster, "server", holder)
			s.Lost(cluster)
			return
		default:
			ctrl.LoggerFrom(ctx).Error(err, "renew lease", "cluster", cluster)
		}
	}
}

// release deletes the Lease if this server holds it.
func (s *Store) release(ctx context.Context, cluster string) error {
	l := lease(cluster)
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(l), l); err != nil {
		return client.IgnoreNotFound(err)
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != s.Holder {
		return nil
	}
	err := s.Client.Delete(ctx, l, client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil // another server has it by now
	}
	return client.IgnoreNotFound(err)
}
