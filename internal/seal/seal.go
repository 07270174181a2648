// Package seal encrypts what is kept where others may read it, and binds it to what it belongs to: what was sealed as one
// thing does not open as another. It is pure.
//
// What is sealed is: the identity of the key (8 bytes), a salt (32 bytes), and AES-256-GCM's output. Each time another key is
// derived from the salt, with HKDF: random nonces of GCM are too short for as many writes as there will ever be.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sizes in bytes.
const (
	keySize  = 32
	saltSize = 32
	// HeadSize is how many bytes at the beginning say with which key something was sealed.
	HeadSize = 8
)

// Errors of Open.
var (
	// ErrKey: it was sealed with a key that is not among these.
	ErrKey = errors.New("it was encrypted with a key that is not there")
	// ErrForeign: it was altered, or belongs to something else.
	ErrForeign = errors.New("it was altered, or belongs to something else")
)

// Keys seal with the first of them, and open with each. They do not change.
type Keys struct{ keys []key }

type key struct {
	head   []byte
	secret []byte
}

// New makes a key, as a line of what Parse reads.
func New() string {
	var secret [keySize]byte
	_, _ = rand.Read(secret[:]) // never fails, as crypto/rand documents
	return base64.StdEncoding.EncodeToString(secret[:])
}

// Parse reads keys: 32 random bytes in base64 on each line, the newest first. Empty lines, and lines that begin with #, count
// for nothing. Errors say the line, and nothing of what is in it.
func Parse(text []byte) (*Keys, error) {
	k := &Keys{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(secret) != keySize {
			return nil, fmt.Errorf("line %d is no key of %d bytes in base64; make one with: openssl rand -base64 %d", n, keySize, keySize)
		}
		head, err := hkdf.Key(sha256.New, secret, nil, "orrery mirror: identity", HeadSize)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		k.keys = append(k.keys, key{head, secret})
	}
	if len(k.keys) == 0 {
		return nil, fmt.Errorf("there is no key; make one with: openssl rand -base64 %d", keySize)
	}
	return k, nil
}

// Newest is how everything begins that is sealed now.
func (k *Keys) Newest() []byte { return k.keys[0].head }

// Knows says whether the key is there of what begins so.
func (k *Keys) Knows(head []byte) bool { return k != nil && k.find(head) != nil }

func (k *Keys) find(head []byte) *key {
	if i := slices.IndexFunc(k.keys, func(one key) bool { return bytes.HasPrefix(head, one.head) }); i >= 0 {
		return &k.keys[i]
	}
	return nil
}

// Seal encrypts what belongs to something, whose identity is a list of names.
func (k *Keys) Seal(plain []byte, identity ...string) ([]byte, error) {
	out := make([]byte, HeadSize+saltSize, HeadSize+saltSize+len(plain)+16)
	copy(out, k.keys[0].head)
	_, _ = rand.Read(out[HeadSize:]) // as above
	aead, err := k.keys[0].aead(out[HeadSize:])
	if err != nil {
		return nil, err
	}
	return aead.Seal(out, make([]byte, aead.NonceSize()), plain, bound(identity)), nil //nolint:gosec // the key is of this message alone, by its salt
}

// Open is the reverse of Seal.
func (k *Keys) Open(sealed []byte, identity ...string) ([]byte, error) {
	if len(sealed) < HeadSize+saltSize {
		return nil, ErrForeign
	}
	if k == nil {
		return nil, ErrKey
	}
	one := k.find(sealed)
	if one == nil {
		return nil, ErrKey
	}
	aead, err := one.aead(sealed[HeadSize : HeadSize+saltSize])
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed[HeadSize+saltSize:], bound(identity))
	if err != nil {
		return nil, ErrForeign
	}
	return plain, nil
}

// aead is of a key that is used once, so that its nonce may be zero.
func (k *key) aead(salt []byte) (cipher.AEAD, error) {
	once, err := hkdf.Key(sha256.New, k.secret, salt, "orrery mirror: body", keySize)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	block, err := aes.NewCipher(once)
	if err != nil {
		return nil, fmt.Errorf("use key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use key: %w", err)
	}
	return aead, nil
}

// bound is an identity in one way only.
func bound(identity []string) []byte {
	b, _ := json.Marshal(identity) //nolint:errchkjson // strings
	return b
}
