package placement

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

// intended remembers the decisions that are being written to the hub. The event of a written
// binding often arrives before the response to the write. At that moment decisions does not have
// the decision yet, because the UID and generation of the binding come with the response.
// Controller.Knows then recognizes the decision by the spec of the binding.
type intended struct {
	mu   sync.Mutex
	last map[binding.Template]intention
}

// intention is a decision that is being written.
type intention struct {
	spec       *workv1alpha2.BindingSpec
	identities *fleet.Identities // names and UIDs of the clusters that the decision knew
}

func newIntended() *intended { return &intended{last: map[binding.Template]intention{}} }

// begin remembers the decision on the template k, which is going to be written, until the caller
// calls end. Decisions on one template are written one at a time. The caller must not change spec
// afterwards.
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

// knows reports whether the spec of the binding b on the hub is that of a decision that is being
// written. The decision must also have been made when the fleet had the Cluster with this name and
// UID.
func (i *intended) knows(b *workv1alpha2.ResourceBinding, cluster string, uid types.UID) bool {
	i.mu.Lock()
	now, ok := i.last[binding.TemplateOf(b)]
	i.mu.Unlock()
	return ok && now.identities.Has(cluster, uid) && equality.Semantic.DeepEqual(*now.spec, b.Spec)
}
