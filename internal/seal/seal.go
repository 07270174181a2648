// Package seal encrypts data that is stored where others may read it, and binds it to an
// identity: data sealed with one identity does not open with another. It is pure.
//
// Sealed data is the identity of the key (8 bytes), a salt (32 bytes) and the output of
// AES-256-GCM. HKDF derives another key from each salt, because the random nonces of GCM are
// too short for the expected number of writes.
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
	// HeadSize is the size in bytes of the beginning of sealed data, which identifies the key.
	HeadSize = 8
)

// Errors of Open.
var (
	// ErrKey: the data was encrypted with a key that Keys does not have, or Keys is nil.
	ErrKey = errors.New("it was encrypted with a key that is not there")
	// ErrForeign: the data was altered or is too short, or was sealed with another identity.
	ErrForeign = errors.New("it was altered, or belongs to something else")
)

// Keys is an immutable list of keys, at least one. Seal uses the first one, and Open uses the one
// with which the data was sealed. If Keys is nil, Open returns ErrKey, and Seal must not be called.
type Keys struct{ keys []key }

type key struct {
	head   []byte
	secret []byte
}

// New returns a new random key as one line of text, in the format of Parse.
func New() string {
	var secret [keySize]byte
	_, _ = rand.Read(secret[:]) // never fails, see crypto/rand
	return base64.StdEncoding.EncodeToString(secret[:])
}

// Parse reads the keys in a text: 32 random bytes in base64 on each line, the newest key first.
// Empty lines, and lines that begin with #, are ignored. A text without a key is an error. Errors
// have the number of the line and nothing of its content.
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

// Newest returns the identity of the first key: the HeadSize bytes with which all data begins that
// Seal returns. k must not be nil.
func (k *Keys) Newest() []byte { return k.keys[0].head }

// Knows reports whether Open has the key for sealed data that begins with head, at least HeadSize
// bytes. It is false if k is nil.
func (k *Keys) Knows(head []byte) bool { return k != nil && k.find(head) != nil }

func (k *Keys) find(head []byte) *key {
	if i := slices.IndexFunc(k.keys, func(one key) bool { return bytes.HasPrefix(head, one.head) }); i >= 0 {
		return &k.keys[i]
	}
	return nil
}

// Seal encrypts data with the first key. identity is a list of names that say to what the data
// belongs; only Open with the same list decrypts the result. The result is different each time. k
// must not be nil.
func (k *Keys) Seal(plain []byte, identity ...string) ([]byte, error) {
	out := make([]byte, HeadSize+saltSize, HeadSize+saltSize+len(plain)+16)
	copy(out, k.keys[0].head)
	_, _ = rand.Read(out[HeadSize:]) // never fails, see crypto/rand
	aead, err := k.keys[0].aead(out[HeadSize:])
	if err != nil {
		return nil, err
	}
	return aead.Seal(out, make([]byte, aead.NonceSize()), plain, bound(identity)), nil //nolint:gosec // the key is of this message alone, by its salt
}

// Open decrypts data that Seal returned for the same identity. The error is ErrKey if k is nil or
// lacks the key. It is ErrForeign if the data is too short, was altered, or was sealed with another
// identity.
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

// aead returns the cipher for one message: its key is derived from k and the salt of the message.
// That key is used only once, so the nonce may be zero.
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

// bound encodes an identity for the cipher, so that two different lists of names have different
// encodings.
func bound(identity []string) []byte {
	b, _ := json.Marshal(identity) //nolint:errchkjson // strings
	return b
}
