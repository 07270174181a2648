package placement

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/scheduler"
)

// placements caches the compiled form of spec.placement of policies, by policy. The zero value is
// empty and can be used. It is safe for concurrent use.
type placements struct {
	mu   sync.RWMutex
	read map[types.NamespacedName]placement
}

// placement is the compiled spec.placement of one policy.
type placement struct {
	policy   *policyv1alpha1.PropagationPolicy // the policy that was compiled
	hash     string
	compiled *scheduler.Placement
}

// of returns the compiled spec.placement of a policy, and its hash. An edit of the policy that does
// not change spec.placement keeps both. p must not be changed afterwards.
func (ps *placements) of(p *policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string) {
	name := policy.Name(p)
	ps.mu.RLock()
	held := ps.read[name]
	ps.mu.RUnlock()
	if held.policy == p {
		return held.compiled, held.hash
	}
	next := placement{policy: p, hash: hash(p.Spec.Placement), compiled: held.compiled}
	if next.hash != held.hash {
		next.compiled, _ = readPlacement(p)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.read == nil {
		ps.read = map[types.NamespacedName]placement{}
	}
	ps.read[name] = next
	return next.compiled, next.hash
}

// readPlacement compiles spec.placement of a policy and returns it with its hash, without a cache.
func readPlacement(p *policyv1alpha1.PropagationPolicy) (*scheduler.Placement, string) {
	compiled := scheduler.Compile(p.Spec.Placement)
	if p.Namespace == "" {
		compiled = compiled.Trusted()
	}
	return compiled, hash(p.Spec.Placement)
}

// forget removes the cached placement of a deleted policy.
func (ps *placements) forget(name types.NamespacedName) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.read, name)
}

// hash returns a hash of spec.placement of a policy: 12 hexadecimal digits.
func hash(p policyv1alpha1.Placement) string {
	text, _ := json.Marshal(p) //nolint:errchkjson // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}
