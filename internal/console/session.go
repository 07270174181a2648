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

// Limits on sessions and their requests.
const (
	sessionLifetime   = 12 * time.Hour
	reviewInterval    = time.Minute
	mostSessions      = 10_000
	mostSessionsOfOne = 50
	mostRequests      = 256 // of one session at the same time, streams included
	goodbyeTime       = 2 * time.Second
)

// cookieName is the name of the cookie that has the secret of a session. Because of its prefix
// __Host-, browsers accept it only from this host, over TLS and for every path.
const cookieName = "__Host-orrery-session"

// Causes of the end of a session. The page shows their texts.
var (
	errLoggedOut       = errors.New("logged out")
	errExpired         = errors.New("the session is over: it has lasted as long as one may")
	errTooManySessions = errors.New("the session is over: the user has opened too many others")
	errConsoleFull     = errors.New("the session is over: the hub has too many sessions of all users, and this was the oldest")
	errReplaced        = errors.New("the session is over: another was opened in the same browser")
	errToken           = errors.New("the session is over: the hub does not accept its token any more")
	errStopped         = errors.New("the hub is stopping: a session of a link goes on when it is back")
)

// Session is one login to the console, of a user whom the hub authenticated. It lasts until its
// Context ends. It may be used from several goroutines.
type Session struct {
	key     digest
	user    atomic.Pointer[user.DefaultInfo]
	expires time.Time
	token   string // token that opened it and is reviewed again; "": a link opened it
	places  chan struct{}
	ctx     context.Context //nolint:containedctx // what is open of the session ends with it
	end     context.CancelCauseFunc
}

// User returns the user as the hub last reported the user. The caller must not change the result.
func (s *Session) User() user.Info { return s.user.Load() }

// Context returns the context that ends with the session. Its cause is the reason, in words for the
// user.
func (s *Session) Context() context.Context { return s.ctx }

// enter counts a new request of the session. The caller must call leave once when the request has
// ended. If mostRequests are open already, enter returns the error TooManyRequests at once.
func (s *Session) enter() (leave func(), err error) {
	select {
	case s.places <- struct{}{}:
		return func() { <-s.places }, nil
	default:
		return nil, apierrors.NewTooManyRequests("the session has too many requests open: close pages of it", 1)
	}
}

// ownerOf returns a string that identifies a user, made of name and UID, for the limits on sessions
// and links.
func ownerOf(who user.Info) string { return who.GetName() + "\x00" + who.GetUID() }

// open creates a session for a user, and stores the sessions that must be stored. It returns the
// session and the secret for the cookie of the browser. token is the token that opened the session;
// "": a link did. If the user has too many sessions, the oldest ends.
func (c *Console) open(who *user.DefaultInfo, token string) (*Session, string) {
	secret, key := newSecret()
	s := c.begin(key, who, token, time.Now().Add(c.lifetime))
	c.keep()
	return s, secret
}

// begin registers a session under key, the digest of its secret, until the session expires or ends.
// token is "" for a session that a link opened; otherwise begin starts its reviews in the
// background. If there are too many sessions, the oldest one ends. begin does not write
// Options.SessionsFile. If the console has stopped, the context of the result has already ended.
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
	ofUser, others := c.sessions.put(key, ownerOf(who), s)
	for _, gone := range ofUser {
		gone.end(errTooManySessions)
	}
	for _, gone := range others {
		gone.end(errConsoleFull)
	}
	if s.ctx.Err() != nil {
		c.sessions.take(key) // the hub has just stopped
	}
	if token != "" {
		go c.review(s)
	}
	return s
}

// review sends a TokenReview for the token of s every c.reviewInterval, until the session ends, and
// sets the session's user to the result. It ends the session if the token is invalid or belongs to
// another user. A review that fails does not end the session, because the hub then answers no other
// request either.
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

// find returns the session to which the cookie of a request belongs. It counts the connection for
// the session's user; see listener.Claim. Without a valid session the error is Unauthorized, while
// the hub stops ServiceUnavailable. A session that has expired ends.
func (c *Console) find(r *http.Request) (*Session, error) {
	if c.ctx.Err() != nil {
		// With Unauthorized the page would sign the user out.
		return nil, apierrors.NewServiceUnavailable(errStopped.Error())
	}
	cookies := r.CookiesNamed(cookieName)
	if len(cookies) == 1 {
		if s, ok := c.sessions.get(digestOf(cookies[0].Value)); ok && s.ctx.Err() == nil {
			// Compare the wall clock, because timers stop while a machine sleeps.
			if time.Now().Round(0).Before(s.expires) {
				listener.Claim(r.Context(), s.User().GetName())
				return s, nil
			}
			s.end(errExpired)
		}
	}
	return nil, apierrors.NewUnauthorized("there is no session: open the console with the link that the command orrery console prints, or with a token of the hub")
}

// described is the description of a session that the page gets, as JSON.
type described struct {
	User    string      `json:"user"`
	Groups  []string    `json:"groups"`
	Expires metav1.Time `json:"expires"`
	Version string      `json:"version"`
}

// describe returns the description of a session for the page.
func (c *Console) describe(s *Session) described {
	who := s.User()
	return described{User: who.GetName(), Groups: append([]string{}, who.GetGroups()...), Expires: metav1.NewTime(s.expires), Version: c.options.Version}
}

// sessionJSON returns the description of the request's session as JSON, for index.html. It is nil
// if there is no session, or if a page of another origin caused the request; see ours.
func (c *Console) sessionJSON(r *http.Request) []byte {
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

// serveSession serves the session s itself: GET returns its description, DELETE logs the user out.
// DELETE ends the session, also in Options.SessionsFile, and deletes the cookie. Other methods are
// an error with status 405.
func (c *Console) serveSession(w http.ResponseWriter, r *http.Request, s *Session) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return answer.JSON(w, http.StatusOK, c.describe(s))
	case http.MethodDelete:
		s.end(errLoggedOut)
		c.sessions.take(s.key)
		c.keep() // the file must be correct before the browser gets the answer
		setCookie(w, "", -1)
		w.WriteHeader(http.StatusNoContent)
		return nil
	default:
		return methodNotAllowed(r)
	}
}

// methodNotAllowed returns the error, an API status 405, for a request with a method that the
// console does not serve.
func methodNotAllowed(r *http.Request) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the console does not take " + r.Method + " here",
	}}
}

// setCookie sets the cookie with the secret of a session. The browser forgets the cookie when it is
// closed (maxAge 0) or at once (negative maxAge).
func setCookie(w http.ResponseWriter, secret string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: secret, Path: "/", MaxAge: maxAge, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}
