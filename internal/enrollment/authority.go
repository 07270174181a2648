package enrollment

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hpke"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/tunnel"
)

// certificateLife is the lifetime of an agent's certificate. The agent renews the certificate after
// a third of it.
const certificateLife = 90 * 24 * time.Hour

// agents is the organization (O) in the subject of agents' certificates.
const agents = "orrery:agents"

// Keys of the Secret with the certificate authority for agents.
const (
	authorityPairs   = "authorities.json" // a pki.Authority
	authoritySealing = "sealing-key"
)

// authority signs the certificates of agents, and decrypts the credentials that agents send
// encrypted (sealed). It is the form in which the Secret stores both keys.
type authority struct {
	pairs   pki.Authority // newest first; the first one signs, all are trusted
	sealing []byte        // private key that decrypts
}

// next returns the authority with what must be renewed at now. It drops expired pairs of
// certificate and key. It adds a new pair when the newest has less than a third of its life left,
// and a sealing key (for decryption) if there is none. The boolean is true if something changed.
// next does not change a, and writes nothing. A stored pair that cannot be parsed is an error.
func (a authority) next(now time.Time) (authority, bool, error) {
	changed := false
	if len(a.sealing) == 0 {
		key, err := tunnel.NewSealingKey()
		if err != nil {
			return a, false, fmt.Errorf("make the key that agents seal with: %w", err)
		}
		if a.sealing, err = key.Bytes(); err != nil {
			return a, false, fmt.Errorf("encode the key that agents seal with: %w", err)
		}
		changed = true
	}
	kept := make(pki.Authority, 0, len(a.pairs)+1)
	due := true
	for i, pair := range a.pairs {
		certificate, err := pair.Certificate()
		if err != nil {
			return a, false, fmt.Errorf("read authority %d in secret %s/%s: %w; restore the Secret from a backup, or delete it: every agent then has to rejoin", i, namespace, authoritySecret, err)
		}
		if !now.Before(certificate.NotAfter) {
			changed = true
			continue
		}
		if len(kept) == 0 {
			due = certificate.NotAfter.Sub(now) < certificate.NotAfter.Sub(certificate.NotBefore)/3
		}
		kept = append(kept, pair)
	}
	if due {
		pair, err := pki.NewAuthority("agents", now)
		if err != nil {
			return a, false, err
		}
		kept, changed = slices.Insert(kept, 0, pair), true
	}
	a.pairs = kept
	return a, changed, nil
}

// readAuthority parses the authority in a Secret. An empty Secret gives the zero value. Invalid
// JSON is an error; the certificates and keys themselves are not checked.
func readAuthority(s *corev1.Secret) (authority, error) {
	a := authority{sealing: s.Data[authoritySealing]}
	if text := s.Data[authorityPairs]; len(text) > 0 && json.Unmarshal(text, &a.pairs) != nil {
		return a, fmt.Errorf("%s in secret %s/%s cannot be read: restore the Secret from a backup, or delete it: every agent then has to rejoin", authorityPairs, namespace, authoritySecret)
	}
	return a, nil
}

// keeper has the parsed keys of an authority. It issues and verifies the certificates of agents,
// and decrypts what agents send. It does not change, so several goroutines may use it.
type keeper struct {
	signer  pki.KeyPair
	trusted *x509.CertPool
	sealing hpke.PrivateKey
}

// in parses the certificates and keys of an authority into a keeper. The authority must have at
// least one pair of certificate and key. It is an error if one of them is invalid.
func (a authority) in() (*keeper, error) {
	k := &keeper{signer: a.pairs[0], trusted: x509.NewCertPool()}
	for _, pair := range a.pairs {
		certificate, err := pair.Certificate()
		if err != nil {
			return nil, fmt.Errorf("read an authority of agents: %w", err)
		}
		k.trusted.AddCert(certificate)
	}
	var err error
	if k.sealing, err = tunnel.ReadSealingKey(a.sealing); err != nil {
		return nil, fmt.Errorf("%s in secret %s/%s cannot be read: restore the Secret from a backup, or delete it: every agent then has to rejoin", authoritySealing, namespace, authoritySecret)
	}
	return k, nil
}

// ensure creates or renews the certificate authority for agents in its Secret, and publishes what
// agents need in a ConfigMap (publish). Then the hub uses the authority. Until the first success of
// ensure, agents are refused. It may be called again at any time.
func (e *Enrollment) ensure(ctx context.Context) error {
	var now authority
	err := write(ctx, e.reader, e.hub, authoritySecret, func(s *corev1.Secret) (changed bool, err error) {
		if now, err = readAuthority(s); err != nil {
			return false, err
		}
		if now, changed, err = now.next(e.now()); err != nil || !changed {
			return false, err
		}
		text, err := json.Marshal(now.pairs)
		if err != nil {
			return false, fmt.Errorf("encode the authorities of agents: %w", err)
		}
		s.Data = map[string][]byte{authorityPairs: text, authoritySealing: now.sealing}
		return true, nil
	})
	if err != nil {
		return err
	}
	k, err := now.in()
	if err != nil {
		return err
	}
	if err := e.publish(ctx, k); err != nil {
		return err
	}
	e.keeper.Store(k)
	return nil
}

// publish writes the ConfigMap listener.orrery.dev, if its content differs: the URL of the hub's
// listener for agents, the authorities of its certificate, and the public key with which agents
// encrypt. The command line puts these values into the manifest of an agent.
func (e *Enrollment) publish(ctx context.Context, k *keeper) error {
	ca, err := e.options.Authorities()
	if err != nil {
		return err
	}
	want := map[string]string{
		listenerURL: e.options.URL, listenerCA: string(ca), listenerKey: base64.StdEncoding.EncodeToString(k.sealing.PublicKey().Bytes()),
	}
	m := &corev1.ConfigMap{}
	err = e.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: listenerConfigMap}, m)
	switch {
	case apierrors.IsNotFound(err):
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: listenerConfigMap}, Data: want}
		err = e.hub.Create(ctx, m)
	case err == nil && !maps.Equal(m.Data, want):
		m.Data = want
		err = e.hub.Update(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("write configmap %s/%s: %w", namespace, listenerConfigMap, err)
	}
	return nil
}

// identity is what an agent's certificate says: the name and the UID of its Cluster, the
// fingerprint of its public key, and its end.
type identity struct {
	cluster string
	uid     types.UID
	key     string // fingerprint
	ends    time.Time
}

// fingerprint returns the SHA-256 of a public key (SubjectPublicKeyInfo in DER), in
// hexadecimal.
func fingerprint(spki []byte) string {
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:])
}

// certify issues a certificate, in DER, for an agent's key, with the cluster and the UID in who;
// the other fields are ignored. The certificate is valid from now for certificateLife.
func (k *keeper) certify(who identity, key *ecdsa.PublicKey, now time.Time) ([]byte, error) {
	subject := pkix.Name{CommonName: who.cluster, Organization: []string{agents}, SerialNumber: string(who.uid)}
	return k.signer.Certify(subject, key, certificateLife, now) //nolint:wrapcheck // it says what it was about
}

// identify returns the identity in an agent's certificate. It is an error if this hub did not issue
// the certificate for an agent; that error is sent to the agent. Expired and revoked certificates
// are no error here, because judge refuses them.
func (k *keeper) identify(c *x509.Certificate, now time.Time) (identity, error) {
	who := identity{cluster: c.Subject.CommonName, uid: types.UID(c.Subject.SerialNumber), key: fingerprint(c.RawSubjectPublicKeyInfo), ends: c.NotAfter}
	if now.After(c.NotAfter) {
		now = c.NotAfter
	}
	_, err := c.Verify(x509.VerifyOptions{Roots: k.trusted, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil || !slices.Equal(c.Subject.Organization, []string{agents}) || who.cluster == "" || who.uid == "" {
		return identity{}, errors.New("the certificate is not one of this hub's for agents; run orrery cluster rejoin where the hub is administered")
	}
	return who, nil
}

// requested returns the public key in an agent's certificate request (PKCS #10 in DER), and the
// fingerprint of that key. It is an error if the request is not signed with the key, or if the key
// is not ECDSA on P-256. The subject of the request is ignored.
func requested(der []byte) (key *ecdsa.PublicKey, name string, err error) {
	r, err := x509.ParseCertificateRequest(der)
	if err != nil || r.CheckSignature() != nil {
		return nil, "", errors.New("the request for a certificate cannot be read, or is not signed with its key")
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, "", errors.New("the request for a certificate has a key that is not one of ECDSA on P-256")
	}
	return key, fingerprint(r.RawSubjectPublicKeyInfo), nil
}
