package console

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/slots"
)

// Limits on links, and on exchanges: requests that exchange a link or a token for a session.
const (
	linkLifetime    = 30 * time.Second
	mostLinks       = 10_000
	mostLinksOfOne  = 20
	longestExchange = 32 << 10
	bodyTime        = 10 * time.Second
	reviewTime      = 10 * time.Second
)

// How many tokens may be tried, from all addresses and from one. The hub must review each token.
// Attempts with links are not limited: they cost one lookup, and links cannot be guessed.
var (
	tokensOfAll     = slots.Rate{PerSecond: 20, Burst: 40}
	tokensOfAddress = slots.Rate{PerSecond: 10, Burst: 20}
)

// link is a right to open one session as the user who, until it expires. The vault links stores it
// by the digest of the secret in its URL.
type link struct {
	who     *user.DefaultInfo
	expires time.Time
}

// Link creates a link that opens the console as the user who: once, and within linkLifetime. The
// fleet API calls it for "orrery console". A user has at most mostLinksOfOne links, and all users
// together mostLinks: a further link invalidates the oldest. The error says why this hub has no
// console: the page was not built, or the URL of the hub is unknown.
func (c *Console) Link(who user.Info) (fleetv1alpha1.ConsoleLinkStatus, error) {
	var none fleetv1alpha1.ConsoleLinkStatus
	switch {
	case !c.files.built():
		return none, unavailable(notBuilt)
	case c.options.URL == "":
		return none, unavailable("the hub does not know by which URL it is reached from outside: start orrery server with --public-url, or with a --public-address that is one address")
	}
	secret, key := newSecret()
	expires := time.Now().Add(c.linkLifetime)
	c.links.put(key, ownerOf(who), link{copyOf(who), expires})
	return fleetv1alpha1.ConsoleLinkStatus{URL: c.options.URL + Path + "#link=" + secret, Expires: metav1.NewTime(expires)}, nil
}

// unavailable returns the error that this hub has no console, and why: an API status 501 with the
// reason NoConsole.
func unavailable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: fleetv1alpha1.ReasonNoConsole, Message: message,
	}}
}

// copyOf returns the user as a DefaultInfo. The slices and maps of groups and extras are not
// copied.
func copyOf(who user.Info) *user.DefaultInfo {
	return &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}
}

// exchange serves the POST that opens a session. It checks the link or token in the body, and sets
// the cookie of a new session. It ends the session that the request's cookie belongs to. It never
// continues that session, because an attacker could have placed a cookie of his own in the browser.
func (c *Console) exchange(w http.ResponseWriter, r *http.Request) error {
	who, token, err := c.exchanged(w, r)
	if err != nil {
		exchanges.WithLabelValues(resultOf(err)).Inc()
		return err
	}
	if old, err := c.find(r); err == nil {
		old.end(errReplaced)
	}
	s, secret := c.open(who, token)
	exchanges.WithLabelValues("Opened").Inc()
	by := "link"
	if token != "" {
		by = "token"
	}
	c.log.Info("Console session opened", "user", who.GetName(), "by", by, "address", r.RemoteAddr)
	setCookie(w, secret, 0)
	return answer.JSON(w, http.StatusCreated, c.describe(s))
}

// resultOf returns the label "result" of the metric for an exchange that failed with err: Refused,
// Invalid, Busy or Failed.
func resultOf(err error) string {
	switch {
	case apierrors.IsUnauthorized(err):
		return "Refused"
	case apierrors.IsBadRequest(err), apierrors.IsUnsupportedMediaType(err):
		return "Invalid"
	case apierrors.IsTooManyRequests(err):
		return "Busy"
	default:
		return "Failed"
	}
}

// exchanged returns the user to whom the link or the token in the body of a request belongs. token
// is "" for a link. A link cannot be used again after that. An invalid link or token is
// Unauthorized, an invalid body BadRequest. Attempts with tokens beyond the limits are
// TooManyRequests. If the hub cannot review the token, the error is ServiceUnavailable.
func (c *Console) exchanged(w http.ResponseWriter, r *http.Request) (who *user.DefaultInfo, token string, err error) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, "", apierrors.NewBadRequest("want application/json: {\"link\": …} or {\"token\": …}")
	}
	body, err := io.ReadAll(newBoundedBody(w, r.Body, longestExchange, c.bodyTime))
	var asked struct {
		Link  string `json:"link"`
		Token string `json:"token"`
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		err = d.Decode(&asked)
	}
	if err != nil || (asked.Link == "") == (asked.Token == "") { // the error could quote the secret
		return nil, "", apierrors.NewBadRequest("want {\"link\": …} or {\"token\": …}")
	}
	if asked.Link != "" {
		l, ok := c.links.take(digestOf(asked.Link))
		if !ok || !time.Now().Round(0).Before(l.expires) {
			return nil, "", apierrors.NewUnauthorized("the link opens nothing: it is good once, for half a minute, until the hub is restarted; the command orrery console prints another")
		}
		return l.who, "", nil
	}
	if !c.tokens.Allow(r.RemoteAddr) {
		return nil, "", apierrors.NewTooManyRequests("too many tokens are being tried: try again in a second, or use the link that the command orrery console prints", 1)
	}
	if who, err = c.whoHas(r.Context(), asked.Token); err != nil {
		return nil, "", err
	}
	return who, asked.Token, nil
}

// whoHas returns the user of a bearer token, by a TokenReview on the hub that takes at most
// reviewTime. Unauthorized means that the hub does not accept the token. If the hub does not
// answer, the error is ServiceUnavailable, and nothing is known of the token.
func (c *Console) whoHas(ctx context.Context, token string) (*user.DefaultInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	review, err := c.reviews.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		c.log.V(1).Info("The hub did not say who has a token", "cause", err.Error())
		return nil, apierrors.NewServiceUnavailable("the hub's API server does not say now who has the token: try again in a moment")
	}
	if who := review.Status.User; review.Status.Authenticated && who.Username != "" {
		extra := map[string][]string{}
		for k, v := range who.Extra {
			extra[k] = v
		}
		return &user.DefaultInfo{Name: who.Username, UID: who.UID, Groups: who.Groups, Extra: extra}, nil
	}
	return nil, apierrors.NewUnauthorized("the hub does not accept the token")
}
