package pki

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"time"
)

// identity is the authority that a cluster is known by.
const identity = "ca"

// Bundle is all keys of a cluster by name, such as ca or host-1/kubelet. It is kept as JSON.
type Bundle map[string]KeyPair

// Ensure mints what is missing, and mints a leaf anew whose authority, subject, names or uses are not those asked for. What
// is not asked for stays. An authority is never replaced: all that trust it would have to learn of the new one, so one that
// is broken, or is gone while there are certificates of it, is an error. After an error the bundle is as it was.
func (b Bundle) Ensure(now time.Time, authorities, keys []string, leaves []Leaf) (changed bool, err error) {
	minted := Bundle{}
	if err := b.mint(minted, now, authorities, keys, leaves); err != nil {
		return false, err
	}
	maps.Copy(b, minted)
	return len(minted) > 0, nil
}

func (b Bundle) mint(minted Bundle, now time.Time, authorities, keys []string, leaves []Leaf) error {
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
	for _, name := range keys {
		if _, ok := b[name]; ok {
			continue
		}
		pair, err := NewKey()
		if err != nil {
			return fmt.Errorf("make key %s: %w", name, err)
		}
		minted[name] = pair
	}
	for _, l := range leaves {
		authority, ok := minted[l.Authority]
		if !ok {
			authority, ok = b[l.Authority]
		}
		if !ok {
			return fmt.Errorf("certificate %s: there is no authority %q", l.Name, l.Authority)
		}
		if pair := b[l.Name]; pair.Fits(l, authority) && pair.hasOnly(l) {
			continue
		}
		pair, err := authority.Issue(l, now)
		if err != nil {
			return err
		}
		minted[l.Name] = pair
	}
	return nil
}

// ID is the identity of the cluster: the SHA-256 of the certificate of its authority "ca", or nothing if there is none.
func (b Bundle) ID() string {
	block, _ := pem.Decode(b[identity].Cert)
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}
