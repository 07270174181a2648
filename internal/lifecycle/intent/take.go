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

// Take returns the spec that an Operation must use, with defaults, and the hash of that spec for
// the status of the Operation. The first attempt uses a copy of given. Later attempts must use the
// same spec again: Wanted or given, if its hash is the one in the status. Otherwise Take returns an
// error. The name in WantedBy is not enough, because a hub reuses the name of a deleted Operation.
//
// given may be nil for later attempts. For a renewal of certificates the spec is that of Renewable
// and the hash is "". Take does not change op.
func (s *Specs) Take(cluster string, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (spec *clusterv1alpha1.Provision, hash string, err error) {
	if op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates { // a renewal uses the applied spec
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

// Hash returns a hash, as 32 hex digits, of the effect of a spec with defaults on hosts. Two specs
// with the same hash need no run. Passwords and keys are not part of it, because the hash is shown
// and a password could be guessed from it. The deletion policy and automatic renewal are not part
// of it, because they change nothing on hosts. The order of hosts and the use of ranges in role
// groups do change the hash. Hash does not change spec.
func Hash(spec *clusterv1alpha1.Provision) (string, error) {
	hashed := spec.DeepCopy()
	hashed.DeletionPolicy, hashed.Kubernetes.AutoRenewCerts = "", nil
	if hashed.Join == clusterv1alpha1.Push { // keeps the hash from before join could be chosen
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

// equal reports whether two specs have the same Hash.
func equal(a, b *clusterv1alpha1.Provision) (bool, error) {
	x, err := Hash(a)
	if err != nil {
		return false, err
	}
	y, err := Hash(b)
	return x == y, err
}
