package provision

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaseServer is the part of an API server that keeps the Lease of one cluster. While fault is set,
// each request fails with its result.
type leaseServer struct {
	client.Client

	mu    sync.Mutex
	lease *coordinationv1.Lease
	fault func(context.Context) error
}

func (s *leaseServer) setFault(fault func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// do calls request with the lock held, unless a fault is set.
func (s *leaseServer) do(ctx context.Context, request func() error) error {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		return fault(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return request()
}

func (s *leaseServer) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return s.do(ctx, func() error {
		if s.lease == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, key.Name)
		}
		s.lease.DeepCopyInto(o.(*coordinationv1.Lease))
		return nil
	})
}

func (s *leaseServer) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	return s.do(ctx, func() error { s.lease = o.(*coordinationv1.Lease).DeepCopy(); return nil })
}

func (s *leaseServer) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	return s.do(ctx, func() error { s.lease = o.(*coordinationv1.Lease).DeepCopy(); return nil })
}

func (s *leaseServer) Delete(ctx context.Context, _ client.Object, _ ...client.DeleteOption) error {
	return s.do(ctx, func() error { s.lease = nil; return nil })
}

// TestLeaseIsGivenUpBeforeItEnds: when a server cannot renew its Lease, it gives up the cluster
// while no other server can take the Lease. It keeps the cluster if a renewal succeeds in time.
func TestLeaseIsGivenUpBeforeItEnds(t *testing.T) {
	refuse := func(context.Context) error { return errors.New("connection refused") }
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, fault := range map[string]func(context.Context) error{"Refused": refuse, "Hangs": hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, lost := &leaseServer{}, make(chan struct{})
				one := &Store{Client: server, Holder: "one", Lost: func(string) { close(lost) }}
				two := &Store{Client: server, Holder: "two"}
				unlock, err := one.Lock(t.Context(), "oak")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(renewEvery + time.Second)
				server.setFault(fault)
				time.Sleep(leaseTime / 3)
				server.setFault(nil)
				select {
				case <-lost:
					t.Fatal("the cluster is given up although the Lease could be renewed in time")
				case <-time.After(2 * leaseTime):
				}
				server.setFault(fault)
				<-lost
				server.setFault(nil)
				if holder, err := two.acquire(t.Context(), "oak"); err != nil || holder != "one" {
					t.Errorf("when the cluster is given up, the Lease is that of %q, %v; want one", holder, err)
				}
				server.setFault(fault)
				unlock() // ends although the Lease cannot be released
			})
		})
	}
}
