package member

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/tunnel"
)

// bearerToken is a token that can be replaced while connections are open. Tokens are renewed
// several times a day. Open streams, such as watches and execs, continue with their first token.
type bearerToken struct{ value atomic.Pointer[string] }

func newBearerToken(value string) *bearerToken {
	t := &bearerToken{}
	t.value.Store(&value)
	return t
}

// bearing is a transport that sends the current token with requests that have no Authorization
// header.
type bearing struct {
	next  http.RoundTripper
	token *bearerToken
}

// RoundTrip implements http.RoundTripper.
func (b *bearing) RoundTrip(req *http.Request) (*http.Response, error) {
	token := *b.token.value.Load()
	if token == "" || req.Header.Get("Authorization") != "" {
		return b.next.RoundTrip(req)
	}
	req = utilnet.CloneRequest(req)
	req.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(req)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (b *bearing) WrappedRoundTripper() http.RoundTripper { return b.next }

// renew switches the connection to the tokens of the Secrets. It returns false, and changes
// nothing, if the Secrets differ in more, or a token belongs to another user.
func (c *connection) renew(cluster *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret) bool {
	fixed, err := connectionKey(&cluster.Spec, withoutToken(secret), withoutToken(impersonator))
	if err != nil || fixed != c.fixed {
		return false
	}
	ours, err := restConfig(&cluster.Spec, secret)
	users := ours
	if err == nil && impersonator != nil {
		users, err = restConfig(&cluster.Spec, impersonator)
	}
	if err != nil || !sameSubject(*c.ours.value.Load(), ours.BearerToken) || !sameSubject(*c.users.value.Load(), users.BearerToken) {
		return false
	}
	c.ours.value.Store(&ours.BearerToken)
	c.users.value.Store(&users.BearerToken)
	c.grant.Store(grantOf(secret))
	return true
}

// withoutToken returns a copy of a Secret without its token and grant.
func withoutToken(secret *corev1.Secret) *corev1.Secret {
	if secret == nil {
		return nil
	}
	rest := *secret
	rest.Data = present(secret)
	delete(rest.Data, keyToken)
	delete(rest.Data, keyGrant)
	return &rest
}

// withoutGrant returns the data of a Secret without the grant.
func withoutGrant(data map[string][]byte) map[string][]byte {
	rest := maps.Clone(data)
	delete(rest, keyGrant)
	return rest
}

// tokenLifeOf returns the life of a token of an agent: by the cluster's clock if the token has
// it, otherwise until its end.
func tokenLifeOf(c tunnel.Credentials, now time.Time) time.Duration {
	var says struct {
		Issued  int64 `json:"iat"`
		Expires int64 `json:"exp"`
	}
	if err := read(c.Token, &says); err == nil && says.Expires > says.Issued {
		return time.Duration(says.Expires-says.Issued) * time.Second
	}
	return c.Expires.Sub(now)
}

// sameSubject reports whether two tokens are equal, or claim the same user of the same issuer.
// The cluster verifies that.
func sameSubject(a, b string) bool {
	if a == b {
		return true
	}
	subjectA, errA := subject(a)
	subjectB, errB := subject(b)
	return errA == nil && errB == nil && subjectA == subjectB
}

// claims are those parts of a token that identify its user.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
}

// subject returns the user that a token claims, without verification.
func subject(token string) (c claims, err error) {
	if err = read(token, &c); err == nil && c.Subject == "" {
		err = errors.New("the token says not whose it is")
	}
	return c, err
}

// read parses the claims of a ServiceAccount's token, without verification.
func read(token string, into any) error {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return errors.New("the token is none of a ServiceAccount")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(raw, into) != nil {
		return errors.New("the token cannot be read")
	}
	return nil
}
