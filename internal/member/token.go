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

// bearerToken is a token of a connection that can be replaced while the connection is open. Tokens
// may be renewed several times a day. Open streams, such as watches and execs, continue with their
// first token.
type bearerToken struct{ value atomic.Pointer[string] }

// newBearerToken returns a token with a first value. With "", requests are sent without a token.
func newBearerToken(value string) *bearerToken {
	t := &bearerToken{}
	t.value.Store(&value)
	return t
}

// tokenTransport is a transport that adds the current value of a bearerToken to requests. Requests
// with an Authorization header are sent as they are.
type tokenTransport struct {
	next  http.RoundTripper
	token *bearerToken
}

// RoundTrip implements http.RoundTripper. It sends a copy of the request with the token, unless the
// request has an Authorization header or the token is "".
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token := *t.token.value.Load()
	if token == "" || req.Header.Get("Authorization") != "" {
		return t.next.RoundTrip(req)
	}
	req = utilnet.CloneRequest(req)
	req.Header.Set("Authorization", "Bearer "+token)
	return t.next.RoundTrip(req)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t *tokenTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// renew switches the connection to the tokens of the Secrets, and stores the grant (the record of
// the token's issue and life). It returns false and changes nothing in these cases: the Secrets
// differ from those of the connection in more than the tokens, a Secret is unusable, or a token
// belongs to another user.
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

// withoutToken returns a copy of a Secret with credentials of a cluster, without its token, the
// record of that token (grant) and new credentials on trial (candidate). So two Secrets that
// differ only in these are equal. It is nil if secret is nil.
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

// withoutGrant returns a copy of the data of a Secret without the grant, the record of the issue
// and life of its token. So two Secrets with the same token are equal.
func withoutGrant(data map[string][]byte) map[string][]byte {
	rest := maps.Clone(data)
	delete(rest, keyGrant)
	return rest
}

// tokenLifeOf returns the life of a token that an agent sent. If the token has the times of its
// issue and expiry, the life is their difference. Otherwise it is the time from now until
// c.Expires, which is zero or negative if the token has expired. The token is not verified.
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

// sameSubject reports whether two tokens are equal, or claim the same user of the same issuer. It
// does not verify the tokens; the cluster does that. It is false for different tokens if one of
// them is no JSON Web Token with a subject.
func sameSubject(a, b string) bool {
	if a == b {
		return true
	}
	subjectA, errA := subject(a)
	subjectB, errB := subject(b)
	return errA == nil && errB == nil && subjectA == subjectB
}

// claims are the parts of a JSON Web Token that identify its user.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
}

// subject returns the issuer and the user that a JSON Web Token claims, without verification. A
// token without a subject is an error.
func subject(token string) (c claims, err error) {
	if err = read(token, &c); err == nil && c.Subject == "" {
		err = errors.New("the token says not whose it is")
	}
	return c, err
}

// read parses the claims of a JSON Web Token, such as that of a ServiceAccount, as JSON and stores
// them in the variable to which into points. It does not verify the token. Its errors do not
// contain the token.
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
