package apply

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
)

// preservation reads, for each deleted binding, whether its policy says that copies stay. The spec
// of a binding says so only once placement has decided on the changed policy. A template can be
// deleted earlier, and the garbage collector of the hub deletes the binding even if no server
// runs. The policy is read after the deletion of the binding, from the API server, and once in a
// process. It also counts with activation preference Lazy, which delays changes of placements: a
// deletion cannot be made good later.
//
// The methods may be called by several goroutines.
type preservation struct {
	reader client.Reader // not cached

	mu sync.Mutex
	of map[types.UID]*preserved // by UID of the deleted binding
}

// preserved is what is known of one deleted binding. mu is held during the request.
type preserved struct {
	mu     sync.Mutex
	copies presence.Presence
}

func newPreservation(reader client.Reader) *preservation {
	return &preservation{reader: reader, of: map[types.UID]*preserved{}}
}

// copies returns Present if the policy of the deleted binding b says that copies stay, and Absent
// if it does not or does not exist. The result is Unknown if the policy cannot be read; the next
// call reads it again.
func (p *preservation) copies(ctx context.Context, b *workv1alpha2.ResourceBinding) presence.Presence {
	p.mu.Lock()
	known := p.of[b.UID]
	if known == nil {
		known = &preserved{}
		p.of[b.UID] = known
	}
	p.mu.Unlock()
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.copies == presence.Unknown {
		known.copies = p.read(ctx, b)
	}
	return known.copies
}

func (p *preservation) read(ctx context.Context, b *workv1alpha2.ResourceBinding) presence.Presence {
	if b.Spec.PolicyRef.Name == "" {
		return presence.Absent
	}
	spec, err := readPolicy(ctx, p.reader, policyOf(b))
	switch {
	case apierrors.IsNotFound(err):
		return presence.Absent
	case err != nil:
		return presence.Unknown
	case spec.PreserveResourcesOnDeletion != nil && *spec.PreserveResourcesOnDeletion:
		return presence.Present
	default:
		return presence.Absent
	}
}

// policyOf returns the name of the policy that a binding names. The namespace of a cluster-wide
// policy is "".
func policyOf(b *workv1alpha2.ResourceBinding) types.NamespacedName {
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.PolicyRef.Name}
	if b.Spec.PolicyRef.Kind == policy.Kind("") {
		name.Namespace = ""
	}
	return name
}

// readPolicy reads the spec of the policy with a name from the hub.
func readPolicy(ctx context.Context, hub client.Reader, name types.NamespacedName) (policyv1alpha1.PropagationSpec, error) {
	if name.Namespace == "" {
		p := &policyv1alpha1.ClusterPropagationPolicy{}
		err := hub.Get(ctx, name, p)
		return p.Spec, err
	}
	p := &policyv1alpha1.PropagationPolicy{}
	err := hub.Get(ctx, name, p)
	return p.Spec, err
}

// forget removes what is known of a binding.
func (p *preservation) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, uid)
}
