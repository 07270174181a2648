package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// intent is the spec that an Operation brings about. The first attempt takes the spec that it is given and fixes its hash in
// the Operation's status; later attempts take the spec with this hash, from the state or as it is given again, and no other.
// Operations of earlier versions of Orrery have no hash: these go by the name in the state alone.
func (e *Engine) intent(ctx context.Context, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (*clusterv1alpha1.Provision, error) {
	if op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates {
		return e.renewable(ctx, given)
	}
	hash := ""
	if given != nil {
		given = given.DeepCopy()
		plan.Default(e.Cluster, given)
		var err error
		if hash, err = specHash(given); err != nil {
			return nil, err
		}
	}
	if op.Status.Attempt == 0 && given != nil {
		op.Status.SpecHash = hash
		return given, nil
	}
	kept, keptHash, err := e.wanted(ctx, op)
	switch fixed := op.Status.SpecHash; {
	case err != nil:
		return nil, err
	case kept != nil && (fixed == "" || fixed == keptHash):
		op.Status.SpecHash = keptHash
		return kept, nil
	case given != nil && (fixed == "" || fixed == hash):
		op.Status.SpecHash = hash
		return given, nil
	case given == nil:
		return nil, fmt.Errorf("operation %s: nothing is kept of what it was to do, so nothing is done; start a new one", op.Name)
	}
	return nil, fmt.Errorf("operation %s: what it was to do was not kept, and the spec is another now, so nothing is done; start a new one", op.Name)
}

// renewable is what an Operation works on that renews certificates: what was applied, whatever was wanted since.
func (e *Engine) renewable(ctx context.Context, given *clusterv1alpha1.Provision) (*clusterv1alpha1.Provision, error) {
	state, err := e.Store.Load(ctx, e.Cluster)
	switch {
	case err != nil:
		return nil, err
	case state == nil || state.Applied == nil:
		return nil, fmt.Errorf("cluster %s is not built yet: it has no certificates to renew", e.Cluster)
	}
	return state.Renewable(given), nil
}

// wanted is the spec that the state keeps for an Operation, with its hash; nil if what it keeps is another run's. The name
// alone does not say whose it is, for a hub gives the name of an Operation that was deleted to the next one.
func (e *Engine) wanted(ctx context.Context, op *lifecyclev1alpha1.Operation) (*clusterv1alpha1.Provision, string, error) {
	state, err := e.Store.Load(ctx, e.Cluster)
	if err != nil || state == nil || state.Wanted == nil || state.WantedBy != op.Name {
		return nil, "", err
	}
	hash, err := specHash(state.Wanted)
	return state.Wanted, hash, err
}

// specHash identifies a spec whose defaults are filled in. How to log in to hosts is no part of it: the hash is shown, and
// a password could be guessed from it.
func specHash(spec *clusterv1alpha1.Provision) (string, error) {
	hashed := spec.DeepCopy()
	hashed.DeletionPolicy, hashed.Kubernetes.AutoRenewCerts = "", nil // nothing that is done to hosts
	for i := range hashed.Hosts {
		h := &hashed.Hosts[i]
		h.Password, h.SudoPassword, h.PrivateKey = "", "", ""
		if h.Bastion != nil {
			h.Bastion.Password = ""
		}
	}
	content, err := json.Marshal(hashed)
	if err != nil {
		return "", fmt.Errorf("hash the spec: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16]), nil
}
