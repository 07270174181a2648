package intent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Take returns the spec for an Operation, and the hash for its status. The first attempt uses the
// given spec. Later attempts use the spec with the hash in the status: Wanted, or given if it is
// the same. The name in WantedBy is not enough, because a hub reuses the name of a deleted
// Operation.
func (s *Specs) Take(cluster string, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (spec *clusterv1alpha1.Provision, hash string, err error) {
	if op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates { // the applied spec is renewed
		if s.Applied == nil {
			return nil, "", fmt.Errorf("cluster %s is not built yet: it has no certificates to renew", cluster)
		}
		return s.Renewable(given), "", nil
	}
	fixed := op.Status.SpecHash
	if given != nil {
		given = given.DeepCopy()
		plan.Default(cluster, given)
		if hash, err = Hash(given); err != nil || op.Status.Attempt == 0 {
			return given, hash, err
		}
	}
	if s.Wanted != nil && s.WantedBy == op.Name {
		kept, err := Hash(s.Wanted)
		if err != nil || fixed == kept {
			return s.Wanted, kept, err
		}
	}
	switch {
	case given == nil:
		return nil, "", fmt.Errorf("operation %s: nothing is kept of what it was to do, so nothing is done; start a new one", op.Name)
	case fixed != "" && fixed != hash:
		return nil, "", fmt.Errorf("operation %s: what it was to do was not kept, and the spec is another now, so nothing is done; start a new one", op.Name)
	}
	return given, hash, nil
}

// Hash returns a hash of the effect of a spec with defaults on hosts. Passwords and keys are not
// part of it, because the hash is shown and a password could be guessed from it. Settings without
// an effect on hosts are left out, too: the deletion policy, and automatic renewal.
func Hash(spec *clusterv1alpha1.Provision) (string, error) {
	hashed := spec.DeepCopy()
	hashed.DeletionPolicy, hashed.Kubernetes.AutoRenewCerts = "", nil
	if hashed.Join == clusterv1alpha1.Push { // as before there was a choice
		hashed.Join = ""
	}
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

// equal reports whether two specs have the same effect on hosts.
func equal(a, b *clusterv1alpha1.Provision) (bool, error) {
	x, err := Hash(a)
	if err != nil {
		return false, err
	}
	y, err := Hash(b)
	return x == y, err
}
