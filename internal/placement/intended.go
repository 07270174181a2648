package placement

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

// intended remembers the decisions that are being written to the hub. The event of a binding
// often arrives before the response to its write, and so before the decision is remembered with
// the UID and generation of the binding. Knows recognizes such a decision by the spec of the
// binding.
type intended struct {
	mu   sync.Mutex
	last map[binding.Template]intention
}

// intention is a decision that is being written.
type intention struct {
	spec       *workv1alpha2.BindingSpec
	identities *fleet.Identities // the clusters that it knew
}

func newIntended() *intended { return &intended{last: map[binding.Template]intention{}} }

// begin remembers a decision on a template until the caller calls end. Decisions on one
// template are written one at a time.
func (i *intended) begin(k binding.Template, spec *workv1alpha2.BindingSpec, identities *fleet.Identities) (end func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.last[k] = intention{spec, identities}
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.last, k)
	}
}

// knows reports whether a decision is being written that knew the Cluster with this name and
// UID, and whose spec is that of the binding on the hub.
func (i *intended) knows(b *workv1alpha2.ResourceBinding, cluster string, uid types.UID) bool {
	i.mu.Lock()
	now, ok := i.last[binding.TemplateOf(b)]
	i.mu.Unlock()
	return ok && now.identities.Has(cluster, uid) && equality.Semantic.DeepEqual(*now.spec, b.Spec)
}
