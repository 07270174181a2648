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

// encryption returns the path of the file with the keys that encrypt Secrets. The file is the
// EncryptionConfiguration of the API server.
func (d dataDir) encryption() string { return d.path("encryption.yaml") }

// secretKey is a key that encrypts Secrets in etcd. secret is in base64. The API server writes the
// key's name before each value that is encrypted with the key. No two keys ever have the same name.
type secretKey struct{ name, secret string }

const (
	// keySize is the size of a key in bytes, which the cipher requires.
	keySize = 32
	// keyTime is the format of the creation time at the begin of the names of keys. Sorted by name,
	// keys are sorted by time.
	keyTime = "20060102t150405"
)

// newSecretKey returns a new random key for the encryption of Secrets. Its name begins with now, so
// that names sort by creation time.
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

// encryption is how the API server stores Secrets in etcd: the first key encrypts them, and all
// keys can decrypt them. The zero value has no keys.
type encryption struct {
	keys []secretKey
	// plain is true if the API server can also read Secrets that are not encrypted, from before there
	// was a key.
	plain bool
}

// readEncryption returns the keys in the file that encryption names; the zero value if the file
// does not exist. A file without keys, or in another form than orrery writes, is an error. The
// error quotes nothing of the file.
func (d dataDir) readEncryption() (encryption, error) {
	text, err := os.ReadFile(d.encryption())
	if errors.Is(err, fs.ErrNotExist) {
		return encryption{}, nil
	}
	if err != nil {
		return encryption{}, fmt.Errorf("read the keys that encrypt Secrets: %w", err)
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

// marshal returns e as an EncryptionConfiguration of the API server, in YAML. The text contains the
// keys.
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
		return nil, fmt.Errorf("encode the keys that encrypt Secrets: %w", err)
	}
	return text, nil
}

// writeEncryption replaces the file with the keys that encrypt Secrets. The caller holds the lock
// of lockEncryption.
func (d dataDir) writeEncryption(e encryption) error {
	text, err := e.marshal()
	if err != nil {
		return err
	}
	return writeFile(d.encryption(), text)
}

// storedSecrets is the result of reading all Secrets in etcd: how they are encrypted.
type storedSecrets struct {
	// keys are the names of all keys with which Secrets are encrypted.
	keys []string
	// foreign is the name of a provider that orrery does not use and that encrypted some Secrets; "":
	// none.
	foreign string
	// plain is true if some Secrets are not encrypted.
	plain bool
}

// Prefixes of encrypted values in etcd. After secretboxPrefix follow the name of the key and a
// colon; after encryptedPrefix the name of the provider and a colon.
const (
	encryptedPrefix = "k8s:enc:"
	secretboxPrefix = encryptedPrefix + "secretbox:v1:"
)

// add records in s how one Secret is stored. value is the Secret's value in etcd.
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

// encrypt decides how Secrets must be stored. e has the present keys, and stored is how the Secrets
// in etcd are stored. rewrite is true if some Secrets are not encrypted, so that all must be
// written again. encrypt calls create, which returns a new key, only if there is no key and no
// Secret is encrypted. It is an error if etcd has Secrets that no key in e can read, or that
// another provider encrypted. file is the path of the keys, for the error. encrypt writes nothing.
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

// prepareEncryption writes the file with the keys that encrypt Secrets, before the API server
// starts. It requires that etcd is ready. It creates the first key if no Secret is encrypted yet.
// rewrite is true if some Secrets are not encrypted, so that the caller must call encryptSecrets
// when the API server is ready. It is an error if no key can read some Secret in etcd.
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

// encryptSecrets writes every Secret again, so that all are encrypted. Then it changes the file
// with the keys, so that the API server no longer accepts Secrets that are not encrypted.
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

// readStoredSecrets returns how the Secrets in etcd are stored. It waits until etcd answers or ctx
// ends. It reads from etcd directly, because without the key the API server cannot read Secrets.
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
	// The path of a Unix socket has at most 107 bytes, so it is given relative to the open directory.
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

// lockEncryption locks the file with the keys that encrypt Secrets, so that a starting server and
// orrery's command to replace the key do not write it concurrently. It does not wait: if another
// process holds the lock, it returns an error. The caller must call unlock soon.
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

// named returns the names of the keys, separated by commas, for messages.
func named(keys []secretKey) string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}
