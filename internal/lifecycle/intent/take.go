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

// Take is the spec that an Operation brings about, and its hash. The first attempt takes the spec that it is given; its hash is
// fixed in the Operation's status, and later attempts take the spec with this hash, from Wanted or as it is given again, and no
// other. Operations of earlier versions of Orrery have no hash: these go by the name in WantedBy alone. The name is not enough
// otherwise, for a hub gives the name of an Operation that was deleted to the next one.
func (s *Specs) Take(cluster string, op *lifecyclev1alpha1.Operation, given *clusterv1alpha1.Provision) (spec *clusterv1alpha1.Provision, hash string, err error) {
	if op.Spec.Action == lifecyclev1alpha1.ActionRenewCertificates { // of what was applied, whatever was wanted since
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
		if err != nil || fixed == "" || fixed == kept {
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

// Hash identifies what a spec whose defaults are filled in does to hosts. How to log in to them is no part of it: the hash is shown,
// and a password could be guessed from it. What becomes of the hosts when the Cluster goes, and who renews their certificates, is
// nothing that is done to them.
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

// equal reports whether two specs do the same to hosts.
func equal(a, b *clusterv1alpha1.Provision) (bool, error) {
	x, err := Hash(a)
	if err != nil {
		return false, err
	}
	y, err := Hash(b)
	return x == y, err
}
