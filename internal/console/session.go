package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/listener"
)

// Limits on sessions.
const (
	sessionLifetime   = 12 * time.Hour
	reviewInterval    = time.Minute
	mostSessions      = 10_000
	mostSessionsOfOne = 50
	mostRequests      = 256 // of a session at once, streams included
	goodbyeTime       = 2 * time.Second
)

// cookieName has the prefix __Host-: browsers accept the cookie only from this host, over TLS, for
// every path.
const cookieName = "__Host-orrery-session"

// Reasons for the end of a session, which browsers get.
var (
	errLoggedOut = errors.New("logged out")
	errExpired   = errors.New("the session is over: it has lasted as long as one may")
	errCrowded   = errors.New("the session is over: the user has opened too many others")
	errReplaced  = errors.New("the session is over: another was opened in the same browser")
	errToken     = errors.New("the session is over: the hub does not accept its token any more")
	errStopped   = errors.New("the hub is stopping: a session of a link goes on when it is back")
)

// Session is the session of a user whom the hub authenticated. It lasts until its Context ends.
type Session struct {
	key     digest
	user    atomic.Pointer[user.DefaultInfo]
	expires time.Time
	token   string // it was opened with; "": with a link
	places  chan struct{}
	ctx     context.Context //nolint:containedctx // what is open of the session ends with it
	end     context.CancelCauseFunc
}

// User returns the user as the hub last saw it. The result must not be changed.
func (s *Session) User() user.Info { return s.user.Load() }

// Context ends with the session; its cause says why.
func (s *Session) Context() context.Context { return s.ctx }

// enter takes one of the session's slots for requests. leave frees it. If no slot is free, the
// error is TooManyRequests.
func (s *Session) enter() (leave func(), err error) {
	select {
	case s.places <- struct{}{}:
		return func() { <-s.places }, nil
	default:
		return nil, apierrors.NewTooManyRequests("the session has too many requests open: close pages of it", 1)
	}
}

// ownerOf returns the key that identifies a user.
func ownerOf(who user.Info) string { return who.GetName() + "\x00" + who.GetUID() }

// open creates and stores a session, and returns the secret that opens it.
func (c *Console) open(who *user.DefaultInfo, token string) (*Session, string) {
	secret, key := newSecret()
	s := c.begin(key, who, token, time.Now().Add(c.lifetime))
	c.keep()
	return s, secret
}

// begin registers a session until it expires or ends. The oldest sessions beyond the limits end.
func (c *Console) begin(key digest, who *user.DefaultInfo, token string, expires time.Time) *Session {
	s := &Session{key: key, token: token, places: make(chan struct{}, mostRequests), expires: expires}
	s.user.Store(who)
	s.ctx, s.end = context.WithCancelCause(c.ctx)
	timer := time.AfterFunc(time.Until(expires), func() { s.end(errExpired) })
	openSessions.Inc()
	context.AfterFunc(s.ctx, func() {
		timer.Stop()
		c.sessions.take(key)
		openSessions.Dec()
		c.log.Info("Console session ended", "user", who.GetName(), "reason", context.Cause(s.ctx).Error())
	})
	for _, gone := range c.sessions.put(key, ownerOf(who), s) {
		gone.end(errCrowded)
	}
	if s.ctx.Err() != nil {
		c.sessions.take(key) // the hub has just stopped
	}
	if token != "" {
		go c.review(s)
	}
	return s
}

// review repeats the TokenReview of a session, until the token is invalid or belongs to another
// user. A failed review does not end the session: the hub then answers no request either.
func (c *Console) review(s *Session) {
	tick := time.NewTicker(c.reviewInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		who, err := c.whoHas(s.ctx, s.token)
		switch {
		case apierrors.IsUnauthorized(err), err == nil && ownerOf(who) != ownerOf(s.User()):
			s.end(errToken)
			return
		case err == nil:
			s.user.Store(who)
		}
	}
}

// find returns the session of a request's cookie. Without a valid one the error is Unauthorized;
// while the hub stops it is ServiceUnavailable.
func (c *Console) find(r *http.Request) (*Session, error) {
	if c.ctx.Err() != nil {
		// Unauthorized would sign the user out.
		return nil, apierrors.NewServiceUnavailable(errStopped.Error())
	}
	cookies := r.CookiesNamed(cookieName)
	if len(cookies) == 1 {
		if s, ok := c.sessions.get(digestOf(cookies[0].Value)); ok && s.ctx.Err() == nil {
			// Wall clock: timers stop while a machine sleeps.
			if time.Now().Round(0).Before(s.expires) {
				listener.Claim(r.Context(), s.User().GetName())
				return s, nil
			}
			s.end(errExpired)
		}
	}
	return nil, apierrors.NewUnauthorized("there is no session: open the console with the link that the command orrery console prints, or with a token of the hub")
}

// described is the description of a session for its browser.
type described struct {
	User    string      `json:"user"`
	Groups  []string    `json:"groups"`
	Expires metav1.Time `json:"expires"`
	Version string      `json:"version"`
}

func (c *Console) describe(s *Session) described {
	who := s.User()
	return described{User: who.GetName(), Groups: append([]string{}, who.GetGroups()...), Expires: metav1.NewTime(s.expires), Version: c.options.Version}
}

// told returns the description of the request's session as JSON, for the page; nil if there is
// none.
func (c *Console) told(r *http.Request) []byte {
	if c.ours(r) != nil {
		return nil
	}
	s, err := c.find(r)
	if err != nil {
		return nil
	}
	text, _ := json.Marshal(c.describe(s)) //nolint:errchkjson // texts and a time
	return text
}

// serveSession returns the description of the session, or ends the session.
func (c *Console) serveSession(w http.ResponseWriter, r *http.Request, s *Session) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return answer.JSON(w, http.StatusOK, c.describe(s))
	case http.MethodDelete:
		s.end(errLoggedOut)
		c.sessions.take(s.key)
		c.keep() // before the answer
		setCookie(w, "", -1)
		w.WriteHeader(http.StatusNoContent)
		return nil
	default:
		return methodNotAllowed(r)
	}
}

func methodNotAllowed(r *http.Request) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the console does not take " + r.Method + " here",
	}}
}

// setCookie sets the cookie with the secret of a session; a negative maxAge deletes it. Browsers
// forget the cookie when they are closed.
func setCookie(w http.ResponseWriter, secret string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: secret, Path: "/", MaxAge: maxAge, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}
