package pki

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Bundle has keys of a cluster by name, such as ca or host-1/kubelet. For an authority it has the
// result of Authority.Pair.
type Bundle map[string]KeyPair

// Ensure creates missing authorities, keys and certificates in b. A certificate that does not fit
// its leaf, or is due, stays in b, because hosts use it. Its successor is created in next. A good
// successor stays, and an unneeded one is removed. Entries that are not requested stay. An
// authority is never replaced, because all that trust it would need the new one. So an invalid
// authority is an error, and so is a missing one that has certificates. After an error b and next
// are unchanged.
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

// With returns the pairs of b, replaced by those of next with the same name.
func (b Bundle) With(next Bundle) Bundle {
	all := maps.Clone(b)
	maps.Copy(all, next)
	return all
}
