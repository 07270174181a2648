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

// digest is the hash of a secret. Only the hash is stored.
type digest [sha256.Size]byte

// secretBytes is the length of a secret, too long to guess.
const secretBytes = 32

// newSecret returns a random secret and its digest.
func newSecret() (string, digest) {
	var random [secretBytes]byte
	_, _ = rand.Read(random[:]) // it never fails
	secret := base64.RawURLEncoding.EncodeToString(random[:])
	return secret, digestOf(secret)
}

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// vault stores values by the digest of the secret that opens them. It has a limit in all and a
// limit for each owner. A new value beyond a limit removes the oldest one. It is safe for
// concurrent use.
type vault[T any] struct {
	most, mostOfOne int

	mu   sync.Mutex
	made uint64
	held map[digest]held[T]
}

type held[T any] struct {
	owner string
	made  uint64
	what  T
}

func newVault[T any](most, mostOfOne int) *vault[T] {
	return &vault[T]{most: most, mostOfOne: mostOfOne, held: map[digest]held[T]{}}
}

// put stores a value, and returns the values that it removed.
func (v *vault[T]) put(key digest, owner string, what T) (gone []T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.full(func(held[T]) bool { return true }, v.most, &gone) || v.full(func(h held[T]) bool { return h.owner == owner }, v.mostOfOne, &gone) {
		continue
	}
	v.made++
	v.held[key] = held[T]{owner, v.made, what}
	return gone
}

// full removes the oldest of the matching values if there are at least most of them.
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

// all returns the stored values, the oldest first.
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

func (v *vault[T]) get(key digest) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h, ok := v.held[key]
	return h.what, ok
}

// take returns a value and removes it.
func (v *vault[T]) take(key digest) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h, ok := v.held[key]
	delete(v.held, key)
	return h.what, ok
}
