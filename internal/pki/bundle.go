package pki

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Bundle has the keys and certificates of a cluster by name, such as ca or host-1/kubelet. For an
// authority it has the key that signs, and the certificates of all trusted versions, as
// Authority.Pair joins them.
type Bundle map[string]KeyPair

// Ensure creates in b the named authorities and keys, and the certificates that leaves specify, as
// far as they are missing. It reports whether b or next changed. An existing certificate stays in
// b, because hosts use it. It needs a successor if it does not fit its Leaf, has other names or is
// due for renewal. Ensure creates the successor in next, which the caller later puts on the hosts.
// A successor that fits stays, and one that is not necessary is removed. Entries that no argument
// names stay unchanged.
//
// An authority is never replaced, because all who trust it would first have to trust the new one.
// So Ensure returns an error for an invalid authority, and for a missing one whose certificates b
// already has. It is also an error if a Leaf names an authority that is neither in b nor in
// authorities. After an error b and next are unchanged. Neither map may be nil.
func (b Bundle) Ensure(next Bundle, now time.Time, authorities, keys []string, leaves []Leaf) (changed bool, err error) {
	minted := Bundle{}
	if err := b.ensureAuthorities(minted, now, authorities, leaves); err != nil {
		return false, err
	}
	for _, name := range keys {
		if _, ok := b[name]; ok {
			continue
		}
		pair, err := NewKey()
		if err != nil {
			return false, fmt.Errorf("make key %s: %w", name, err)
		}
		minted[name] = pair
	}
	successors := Bundle{}
	var idle []string // successors that are not needed
	for _, l := range leaves {
		authority, ok := minted[l.Authority]
		if !ok {
			authority, ok = b[l.Authority]
		}
		if !ok {
			return false, fmt.Errorf("certificate %s: there is no authority %q", l.Name, l.Authority)
		}
		good := func(pair KeyPair) bool {
			return pair.Fits(l, authority) && pair.hasOnly(l) && !pair.Due(authority, now)
		}
		into := minted
		if old, ok := b[l.Name]; ok {
			_, succeeded := next[l.Name]
			if good(old) {
				if succeeded {
					idle = append(idle, l.Name)
				}
				continue
			}
			if succeeded && good(next[l.Name]) {
				continue
			}
			into = successors
		}
		if into[l.Name], err = authority.Issue(l, now); err != nil {
			return false, err
		}
	}
	maps.Copy(b, minted)
	maps.Copy(next, successors)
	for _, name := range idle {
		delete(next, name)
	}
	return len(minted)+len(successors)+len(idle) > 0, nil
}

// ensureAuthorities creates those of the named authorities that b lacks, and puts them into minted.
// It returns an error if an authority in b is invalid, or if b lacks one but has a certificate of
// it.
func (b Bundle) ensureAuthorities(minted Bundle, now time.Time, authorities []string, leaves []Leaf) error {
	for _, name := range authorities {
		if ca, ok := b[name]; ok {
			if _, err := ca.Certificate(); err != nil {
				return fmt.Errorf("authority %s: %w: restore the keys from a backup", name, err)
			}
			continue
		}
		if i := slices.IndexFunc(leaves, func(l Leaf) bool { return l.Authority == name && len(b[l.Name].Cert) > 0 }); i >= 0 {
			return fmt.Errorf("authority %s is missing, but there is the certificate %s of it: restore the keys from a backup", name, leaves[i].Name)
		}
		pair, err := NewAuthority(name, now)
		if err != nil {
			return err
		}
		minted[name] = pair
	}
	return nil
}

// With returns a copy of b in which the pairs of next replace those of the same name, and to which
// the others of next are added: the certificates after a renewal. b must not be nil; next may be
// nil.
func (b Bundle) With(next Bundle) Bundle {
	all := maps.Clone(b)
	maps.Copy(all, next)
	return all
}
