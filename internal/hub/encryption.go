package hub

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/disk"
)

// Secrets are encrypted in etcd with a key that is kept in the data directory beside it: etcd's
// data, or a backup of it, reveals no Secrets without the key. The cipher is XSalsa20-Poly1305
// (the provider secretbox). It authenticates, which aescbc does not. Its nonces are long enough
// to be random for any number of writes, which those of aesgcm are not.

// encryption returns the path of the file with the keys, in the format of the API server.
func (d dataDir) encryption() string { return d.path("encryption.yaml") }

// secretKey is one key. Its name precedes each value that is encrypted with it. No two keys ever
// have the same name.
type secretKey struct{ name, secret string }

const (
	keySize = 32
	// keyTime is the format of the creation time in names of keys, which also sorts them.
	keyTime = "20060102t150405"
)

// newSecretKey returns a new key. Names sort by creation time.
func newSecretKey(now time.Time) secretKey {
	var name [4]byte
	var secret [keySize]byte
	// Neither fails, as crypto/rand documents.
	_, _ = rand.Read(name[:])
	_, _ = rand.Read(secret[:])
	return secretKey{
		name:   now.UTC().Format(keyTime) + "-" + hex.EncodeToString(name[:]),
		secret: base64.StdEncoding.EncodeToString(secret[:]),
	}
}

// encryption is how Secrets are stored: the first key encrypts them, all keys can decrypt them.
type encryption struct {
	keys []secretKey
	// plain is true if Secrets can be read that were stored before there was a key.
	plain bool
}

// readEncryption returns the keys in the file; no keys if there is no file.
func (d dataDir) readEncryption() (encryption, error) {
	text, err := os.ReadFile(d.encryption())
	if errors.Is(err, fs.ErrNotExist) {
		return encryption{}, nil
	}
	if err != nil {
		return encryption{}, fmt.Errorf("read the keys of Secrets: %w", err)
	}
	// Errors of the decoder may quote invalid parts, which may be keys.
	invalid := fmt.Errorf("%s is not a file of keys as orrery server writes it: restore it from its backup", d.encryption())
	var config apiserverv1.EncryptionConfiguration
	if err := yaml.UnmarshalStrict(text, &config); err != nil || len(config.Resources) != 1 {
		return encryption{}, invalid
	}
	var e encryption
	for _, p := range config.Resources[0].Providers {
		switch {
		case p.Secretbox != nil:
			for _, k := range p.Secretbox.Keys {
				e.keys = append(e.keys, secretKey{name: k.Name, secret: k.Secret})
			}
		case p.Identity != nil:
			e.plain = true
		default:
			return encryption{}, invalid
		}
	}
	if len(e.keys) == 0 {
		return encryption{}, invalid
	}
	return e, nil
}

// marshal returns the configuration of the API server.
func (e encryption) marshal() ([]byte, error) {
	var box apiserverv1.SecretboxConfiguration
	for _, k := range e.keys {
		box.Keys = append(box.Keys, apiserverv1.Key{Name: k.name, Secret: k.secret})
	}
	providers := []apiserverv1.ProviderConfiguration{{Secretbox: &box}}
	if e.plain {
		providers = append(providers, apiserverv1.ProviderConfiguration{Identity: &apiserverv1.IdentityConfiguration{}})
	}
	text, err := yaml.Marshal(apiserverv1.EncryptionConfiguration{
		TypeMeta:  metav1.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: "EncryptionConfiguration"},
		Resources: []apiserverv1.ResourceConfiguration{{Resources: []string{"secrets"}, Providers: providers}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the keys of Secrets: %w", err)
	}
	return text, nil
}

func (d dataDir) writeEncryption(e encryption) error {
	text, err := e.marshal()
	if err != nil {
		return err
	}
	return writeFile(d.encryption(), text)
}

// storedSecrets is how the Secrets in an etcd are stored.
type storedSecrets struct {
	// keys are the names of the keys that were used.
	keys []string
	// foreign is the name of another provider that encrypted some.
	foreign string
	// plain is true if some are not encrypted.
	plain bool
}

// Prefixes of values in etcd. The name of the key and a colon follow.
const (
	encryptedPrefix = "k8s:enc:"
	secretboxPrefix = encryptedPrefix + "secretbox:v1:"
)

func (s *storedSecrets) add(value []byte) {
	switch {
	case bytes.HasPrefix(value, []byte(secretboxPrefix)):
		name, _, _ := bytes.Cut(value[len(secretboxPrefix):], []byte(":"))
		if !slices.Contains(s.keys, string(name)) {
			s.keys = append(s.keys, string(name))
		}
	case bytes.HasPrefix(value, []byte(encryptedPrefix)):
		name, _, _ := bytes.Cut(value[len(encryptedPrefix):], []byte(":"))
		s.foreign = string(name)
	default:
		s.plain = true
	}
}

// encrypt returns how Secrets must be stored, for the present keys and the content of etcd, and
// whether they must be written again. It creates a key only if no Secret is encrypted: a new key
// could not read encrypted ones.
func encrypt(e encryption, stored storedSecrets, file string, create func() secretKey) (want encryption, rewrite bool, err error) {
	if stored.foreign != "" {
		return e, false, fmt.Errorf("etcd holds Secrets that are encrypted by provider %q, which is not orrery server's: restore a backup of this hub's etcd", stored.foreign)
	}
	for _, name := range stored.keys {
		if slices.ContainsFunc(e.keys, func(k secretKey) bool { return k.name == name }) {
			continue
		}
		what := "does not have"
		if len(e.keys) == 0 {
			what = "is missing and had"
		}
		return e, false, fmt.Errorf("etcd holds Secrets that are encrypted with key %s, which %s %s: restore %s from its backup; no other key can read them, and none is made",
			name, file, what, file)
	}
	want = encryption{keys: e.keys, plain: stored.plain}
	if len(want.keys) == 0 {
		want.keys = []secretKey{create()}
	}
	return want, stored.plain, nil
}

// prepareEncryption prepares the file with the keys. It is called when etcd is ready, before the
// API server starts. rewrite is true if some Secrets are not encrypted.
func (h *Hub) prepareEncryption(ctx context.Context, log logr.Logger) (rewrite bool, err error) {
	stored, err := h.dir.readStoredSecrets(ctx)
	if err != nil {
		return false, fmt.Errorf("look how etcd stores Secrets: %w", err)
	}
	unlock, err := h.dir.lockEncryption()
	if err != nil {
		return false, err
	}
	defer unlock()
	e, err := h.dir.readEncryption()
	if err != nil {
		return false, err
	}
	e, rewrite, err = encrypt(e, stored, h.dir.encryption(), func() secretKey {
		key := newSecretKey(h.options.now())
		log.Info("Made the key of Secrets. Back it up, apart from etcd", "name", key.name, "file", h.dir.encryption())
		return key
	})
	if err != nil {
		return false, err
	}
	return rewrite, h.dir.writeEncryption(e)
}

// encryptSecrets writes every Secret again, so that all are encrypted, then disables reading of
// others.
func (h *Hub) encryptSecrets(ctx context.Context, log logr.Logger) error {
	client, err := kubernetes.NewForConfig(h.Config())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	if err := rewriteSecrets(ctx, client); err != nil {
		return err
	}
	unlock, err := h.dir.lockEncryption()
	if err != nil {
		return err
	}
	defer unlock()
	e, err := h.dir.readEncryption()
	if err != nil {
		return err
	}
	e.plain = false
	log.Info("Every Secret is encrypted in etcd now")
	return h.dir.writeEncryption(e)
}

// readStoredSecrets reads from etcd directly: the API server cannot read Secrets without the
// key.
func (d dataDir) readStoredSecrets(ctx context.Context) (storedSecrets, error) {
	const (
		first, last = "/registry/secrets/", "/registry/secrets0"
		page        = 100
		largest     = 1 << 30
	)
	var stored storedSecrets
	dir, err := os.Open(d.etcd())
	if err != nil {
		return stored, err
	}
	defer dir.Close() //nolint:errcheck // nothing was written
	// The path of a socket has at most 107 bytes, so it is named by the open directory.
	socket := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), etcdSocket)
	conn, err := grpc.NewClient("passthrough:///etcd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return stored, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	etcd := etcdserverpb.NewKVClient(conn)
	for from := []byte(first); ; {
		resp, err := etcd.Range(ctx, &etcdserverpb.RangeRequest{Key: from, RangeEnd: []byte(last), Limit: page}, grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(largest))
		if err != nil {
			return stored, err
		}
		for _, kv := range resp.Kvs {
			stored.add(kv.Value)
		}
		if !resp.More {
			return stored, nil
		}
		from = slices.Concat(resp.Kvs[len(resp.Kvs)-1].Key, []byte{0})
	}
}

// lockEncryption prevents that a starting server and a command for the rotation write the keys
// concurrently. It is held for a short time.
func (d dataDir) lockEncryption() (unlock func(), err error) {
	f, err := disk.TryLock(filepath.Join(string(d), ".encryption.lock"))
	if errors.Is(err, disk.ErrLocked) {
		return nil, fmt.Errorf("%s is being written by another process: try again", d.encryption())
	}
	if err != nil {
		return nil, err
	}
	return func() { disk.Unlock(f) }, nil
}

// named returns the names of keys for messages.
func named(keys []secretKey) string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}
