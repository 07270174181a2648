// Package console serves the console: the page, its sessions, and a proxy to the hub as the user of
// a session (docs/design/0020-console.md). It authenticates users and authorizes nothing. Each
// request goes to the hub's API server as that user, and the API server authorizes it.
package console

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/slots"
)

// Paths on the listener at which browsers reach the hub. Below Path is the page, and below apiPath
// the console's API for sessions, live windows and requests to the hub.
const (
	Path        = "/console/"
	apiPath     = Path + "api/"
	sessionPath = apiPath + "session"
	livePath    = apiPath + "live"
	hubPath     = apiPath + "hub"
)

// Options configure a Console. Hub and HubID are required.
type Options struct {
	// Hub configures clients of the hub, as an administrator who may impersonate users.
	Hub *rest.Config
	// URL is the URL of the public listener, https://HOST; "" if it is unknown.
	URL string
	// Files are the built files of the page; nil: the files embedded in this program.
	Files fs.FS
	// Live serves the WebSocket by which the page gets the changes of the rows that it shows; nil:
	// there is none. The context of its requests has the session's user, as the hub last reported the
	// user. It is canceled when the session ends, with the reason as the cause.
	Live http.Handler
	// Authorize returns nil if the user in ctx may perform the action on the hub, else an error for
	// the user, Forbidden if RBAC refuses. If Authorize is nil, the rights to open requests are not
	// checked again.
	Authorize func(ctx context.Context, what authorizationv1.ResourceAttributes) error
	// SessionsFile is the path of the file that stores the sessions opened with links, for the next
	// process of this hub. "": they are not stored.
	SessionsFile string
	// HubID identifies this hub. Sessions that another hub stored are not restored.
	HubID string
	// Version is the version of the hub, which the page shows.
	Version string
	Log     logr.Logger
}

// Console is the http.Handler of the console. It serves the page in the browser, and an API by
// which the page sends requests to the hub as the user of a session. It may be used concurrently.
// Its sessions end when Run returns.
type Console struct {
	options  Options
	origin   string
	files    *files
	reviews  authenticationclient.TokenReviewInterface
	passage  *passage
	links    *vault[link]
	sessions *vault[*Session]
	keeping  sync.Mutex   // guards SessionsFile
	tokens   *slots.Rates // limits exchanges of tokens, which the hub must review
	log      logr.Logger

	ctx  context.Context //nolint:containedctx // sessions end with it
	stop context.CancelCauseFunc

	// Constants of this package that tests replace by other values.
	lifetime, linkLifetime, reviewInterval, rightsInterval, bodyTime, writeTime time.Duration
}

// New returns a Console, with the sessions that an earlier process stored in Options.SessionsFile.
// If that file cannot be read or is invalid, no session is restored, and the log has the error. An
// error means that the configuration of the hub or the files of the page are invalid.
func New(o Options) (*Console, error) {
	client, err := kubernetes.NewForConfig(o.Hub)
	if err != nil {
		return nil, fmt.Errorf("create a client of the hub: %w", err)
	}
	hub, err := newPassage(o.Hub)
	if err != nil {
		return nil, err
	}
	content := o.Files
	if content == nil {
		if content, err = fs.Sub(dist, "dist"); err != nil {
			return nil, fmt.Errorf("read the console's files: %w", err)
		}
	}
	page, err := newFiles(content)
	if err != nil {
		return nil, fmt.Errorf("read the console's files: %w", err)
	}
	c := &Console{
		options: o, files: page, reviews: client.AuthenticationV1().TokenReviews(), passage: hub, log: o.Log,
		links: newVault[link](mostLinks, mostLinksOfOne), sessions: newVault[*Session](mostSessions, mostSessionsOfOne),
		tokens:   slots.NewRates(tokensOfAll, tokensOfAddress),
		lifetime: sessionLifetime, linkLifetime: linkLifetime, reviewInterval: reviewInterval, rightsInterval: rightsInterval,
		bodyTime: bodyTime, writeTime: writeTime,
	}
	if u, err := url.Parse(o.URL); err == nil && u.Host != "" {
		c.origin = u.Scheme + "://" + u.Host
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.resume()
	return c, nil
}

// Run waits until ctx ends, then ends every session and returns nil. Options.SessionsFile keeps the
// sessions that were opened with links.
func (c *Console) Run(ctx context.Context) error {
	<-ctx.Done()
	c.stop(errStopped)
	return nil
}

// ServeHTTP implements http.Handler for all paths below Path. Those below apiPath are the console's
// API. All other paths are files of the page, which need no session.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.EscapedPath(), apiPath) {
		// The page is public, so a client that reads too slowly loses the answer.
		deadline := http.NewResponseController(w)
		_ = deadline.SetWriteDeadline(time.Now().Add(c.writeTime)) // every connection supports it
		c.files.serve(w, r, func() []byte { return c.sessionJSON(r) })
		_ = deadline.SetWriteDeadline(time.Time{})
		return
	}
	inert(w.Header())
	answer.Func(c.api).ServeHTTP(w, r)
}

// inert sets headers of an answer so that a browser treats it as data: it runs no script of it, and
// other origins cannot use it. Answers may contain data of members, which are not trusted. The
// headers also forbid caching.
func inert(h http.Header) {
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// api serves a request below apiPath. If it returns an error, it has written nothing, and the
// caller answers with the error.
func (c *Console) api(w http.ResponseWriter, r *http.Request) error {
	if err := c.ours(r); err != nil {
		return err
	}
	path := r.URL.EscapedPath()
	if path == sessionPath && r.Method == http.MethodPost {
		return c.exchange(w, r)
	}
	session, err := c.find(r)
	if err != nil {
		return err
	}
	rest, below := strings.CutPrefix(path, hubPath)
	switch {
	case path == sessionPath:
		return c.serveSession(w, r, session)
	case path == livePath:
		return c.serveLive(w, r, session)
	case below && strings.HasPrefix(rest, "/"):
		return c.serveHub(w, r, session, rest)
	default:
		return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	}
}

// serveLive forwards a request of a session to Options.Live, until the session ends. Without
// Options.Live the error is NotFound. If the session has too many open requests, it is
// TooManyRequests.
func (c *Console) serveLive(w http.ResponseWriter, r *http.Request, s *Session) error {
	if c.options.Live == nil {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	}
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	cut := &cutWriter{ResponseWriter: w, over: s.ctx, grace: goodbyeTime}
	defer cut.done()
	ctx, over := context.WithCancelCause(request.WithUser(r.Context(), liveUser{s}))
	defer over(nil)
	defer context.AfterFunc(s.ctx, func() { over(context.Cause(s.ctx)) })() //nolint:contextcheck // the session ends it, too
	c.options.Live.ServeHTTP(cut, r.WithContext(ctx))
	return nil
}

// liveUser is the user.Info of a session. Each call returns the user as the hub last reported the
// user, so that a long request sees a change of groups.
type liveUser struct{ *Session }

func (u liveUser) GetName() string               { return u.User().GetName() }
func (u liveUser) GetUID() string                { return u.User().GetUID() }
func (u liveUser) GetGroups() []string           { return u.User().GetGroups() }
func (u liveUser) GetExtra() map[string][]string { return u.User().GetExtra() }
