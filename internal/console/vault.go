package console

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"sync"
)

// digest is the SHA-256 hash of a secret. The console stores only hashes of secrets.
type digest [sha256.Size]byte

// secretBytes is the length of a secret in random bytes, 32: too many to guess.
const secretBytes = 32

// newSecret returns a new random secret, as text for a URL or a cookie, and its digest.
func newSecret() (string, digest) {
	var random [secretBytes]byte
	_, _ = rand.Read(random[:]) // it never fails
	secret := base64.RawURLEncoding.EncodeToString(random[:])
	return secret, digestOf(secret)
}

// digestOf returns the digest of a secret.
func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// vault stores links or sessions by the digest of the secret that opens them. It limits their
// number in total and for each user, the owner. A new value beyond a limit removes the oldest, of
// all or of that owner. It is safe for concurrent use.
type vault[T any] struct {
	most, mostOfOne int

	mu   sync.Mutex
	made uint64
	held map[digest]held[T]
}

// held is a value in a vault. made is its number in the order of creation.
type held[T any] struct {
	owner string
	made  uint64
	what  T
}

// newVault returns an empty vault. most limits all values, mostOfOne those of one owner.
func newVault[T any](most, mostOfOne int) *vault[T] {
	return &vault[T]{most: most, mostOfOne: mostOfOne, held: map[digest]held[T]{}}
}

// put stores a value under a new key for an owner. It returns the values that it removed: ofOwner
// because of the limit for the owner, which it checks first, and others because of that for all.
func (v *vault[T]) put(key digest, owner string, what T) (ofOwner, others []T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.full(func(h held[T]) bool { return h.owner == owner }, v.mostOfOne, &ofOwner) {
		continue
	}
	for v.full(func(held[T]) bool { return true }, v.most, &others) {
		continue
	}
	v.made++
	v.held[key] = held[T]{owner, v.made, what}
	return ofOwner, others
}

// full reports whether the vault has at least most of the values that of selects. If it has, full
// removes the oldest of these and appends it to gone. v.mu must be held.
func (v *vault[T]) full(of func(held[T]) bool, most int, gone *[]T) bool {
	var oldest digest
	count := 0
	for key, h := range v.held {
		if !of(h) {
			continue
		}
		if count == 0 || h.made < v.held[oldest].made {
			oldest = key
		}
		count++
	}
	if count < most {
		return false
	}
	*gone = append(*gone, v.held[oldest].what)
	delete(v.held, oldest)
	return true
}

// all returns all stored values, the oldest first.
func (v *vault[T]) all() []T {
	v.mu.Lock()
	defer v.mu.Unlock()
	kept := slices.SortedFunc(maps.Values(v.held), func(a, b held[T]) int { return cmp.Compare(a.made, b.made) })
	all := make([]T, 0, len(kept))
	for _, h := range kept {
		all = append(all, h.what)
	}
	return all
}

// get returns the value under a key, which stays stored; false if there is none.
func (v *vault[T]) get(key digest) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h, ok := v.held[key]
	return h.what, ok
}

// take removes and returns the value under a key; false if there is none.
func (v *vault[T]) take(key digest) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h, ok := v.held[key]
	delete(v.held, key)
	return h.what, ok
}
