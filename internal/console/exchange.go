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

// Bounds of links and exchanges.
const (
	linkLifetime    = 30 * time.Second
	mostLinks       = 10_000
	mostLinksOfOne  = 20
	longestExchange = 32 << 10
	bodyTime        = 10 * time.Second
	reviewTime      = 10 * time.Second
)

// How often tokens are tried, which the hub must review. Attempts with links are not limited: they
// cost one lookup, and links cannot be guessed.
var (
	tokensOfAll     = slots.Rate{PerSecond: 20, Burst: 40}
	tokensOfAddress = slots.Rate{PerSecond: 10, Burst: 20}
)

// link allows a user to open one session.
type link struct {
	who     *user.DefaultInfo
	expires time.Time
}

// Link creates a link that opens the console as the user, once. The error says why there is no
// console.
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

func unavailable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: fleetv1alpha1.ReasonNoConsole, Message: message,
	}}
}

func copyOf(who user.Info) *user.DefaultInfo {
	return &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}
}

// exchange opens a session for a link or a token. The session is always new, so that nobody is led
// into a session whose secret somebody else has.
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

// resultOf returns the metric label of a failed exchange.
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

// exchanged returns the user of the link or token in a request. token is "" for a link. The error
// for an invalid link does not say why it is invalid.
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

// whoHas returns the user of a token by a TokenReview. Only an Unauthorized error means that the
// token is invalid.
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
