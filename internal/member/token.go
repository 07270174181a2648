package member

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// bearerToken is a token that may be replaced while connections are open. Tokens are renewed several times a day, and what is open, such as
// watches and execs, goes on with the one that it began with.
type bearerToken struct{ value atomic.Pointer[string] }

func newBearerToken(value string) *bearerToken {
	t := &bearerToken{}
	t.value.Store(&value)
	return t
}

// bearing is a transport that sends the token of the day, unless a request says itself who it is of.
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

// renew has the connection use the tokens of Secrets, and says whether that is all that it takes: nothing else differs, and each token is of
// whom the old one was of.
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
	return true
}

// withoutToken is a Secret but for its token.
func withoutToken(secret *corev1.Secret) *corev1.Secret {
	if secret == nil {
		return nil
	}
	rest := *secret
	rest.Data = present(secret)
	delete(rest.Data, keyToken)
	return &rest
}

// sameSubject is true of tokens that say to be of the same user of the same issuer, and of equal ones. Whether they are is judged by the cluster.
func sameSubject(a, b string) bool {
	if a == b {
		return true
	}
	subjectA, errA := subject(a)
	subjectB, errB := subject(b)
	return errA == nil && errB == nil && subjectA == subjectB
}

// claims of a token that say whose it is.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
}

// subject reads whose a token says to be, without verifying it.
func subject(token string) (c claims, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errors.New("the token is none of a ServiceAccount")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil || c.Subject == "" {
		return c, errors.New("the token cannot be read")
	}
	return c, nil
}
