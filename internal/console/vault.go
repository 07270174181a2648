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

// digest is what is kept of a secret.
type digest [sha256.Size]byte

// secretBytes are as many as nobody guesses.
const secretBytes = 32

// newSecret returns a secret, and what is kept of it.
func newSecret() (string, digest) {
	var random [secretBytes]byte
	_, _ = rand.Read(random[:]) // it never fails
	secret := base64.RawURLEncoding.EncodeToString(random[:])
	return secret, digestOf(secret)
}

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// vault keeps what secrets open, so many in all and of one owner. Where there is no room the oldest goes.
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

// put keeps something, and returns what went for it.
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

// full drops the oldest of some, if there are as many as there may be.
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

// all is what is kept, the oldest first.
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

// take is get, once.
func (v *vault[T]) take(key digest) (T, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h, ok := v.held[key]
	delete(v.held, key)
	return h.what, ok
}
