package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"orrery.dev/orrery/internal/neutral"
)

const (
	// maxFailures is the number of failures in a row, without new data between them, that end a
	// download.
	maxFailures = 3
	// firstPause is the delay after the first failure of a server. It doubles with each failure.
	firstPause = 200 * time.Millisecond
)

// interruption is an error of the network or of the server after which persist tries again.
type interruption struct{ error }

func (i interruption) Unwrap() error { return i.error }

// persist calls try until it succeeds or fails with an error that is no interruption. It waits
// between calls, and gives up after maxFailures interruptions in a row without progress, or when
// ctx ends. further reports whether a call made progress, such as new data.
func persist(ctx context.Context, try func() (further bool, err error)) error {
	pause := firstPause
	for failures := 1; ; failures++ {
		further, err := try()
		if _, ok := errors.AsType[interruption](err); !ok {
			return err
		}
		if further {
			failures, pause = 0, firstPause
			continue
		}
		if failures == maxFailures {
			return fmt.Errorf("%w (asked %d times)", err, failures)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; %w", context.Cause(ctx), err)
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// client returns s.Client, or the default client if that is nil.
func (s *Source) client() *http.Client {
	if s.Client != nil {
		return s.Client
	}
	return http.DefaultClient
}

// maxRedirects is how many redirects protected follows, as net/http does by default.
const maxRedirects = 10

// redirectError means that a redirect to an unencrypted URL was not followed. to is the URL for
// messages.
type redirectError struct{ to string }

func (e *redirectError) Error() string {
	return "redirected to " + e.to + ", which comes unprotected: let the server redirect to https"
}

// protected returns a client that follows no redirect to an unencrypted URL. It reads checksum
// files.
func (s *Source) protected() *http.Client {
	client := *s.client()
	follow := client.CheckRedirect
	client.CheckRedirect = func(request *http.Request, via []*http.Request) error {
		switch {
		case unencrypted(request.URL):
			return &redirectError{neutral.ShownLocation(request.URL.String())}
		case follow != nil:
			return follow(request, via)
		case len(via) >= maxRedirects:
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		return nil
	}
	return &client
}

// get requests a file, or its part from the byte offset from on. upstream is its URL upstream. The
// response has status 200 or 206, or 416 if the file has no byte at the offset. Other statuses are
// errors. The caller closes the body. An error after which a retry may help is an interruption.
func (s *Source) get(ctx context.Context, client *http.Client, upstream string, from int64) (*http.Response, error) {
	ctx, watch := newWatch(ctx, cmp.Or(s.Idle, defaultIdle))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.locate(upstream), nil)
	if err != nil {
		watch.stop()
		return nil, fmt.Errorf("request %s: %w", s.shown(upstream), err)
	}
	// The digest of the catalog is that of the file itself, and not of a compressed transfer.
	request.Header.Set("Accept-Encoding", "identity")
	if from > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	response, err := client.Do(request)
	if err != nil {
		if redirected, ok := errors.AsType[*redirectError](err); ok {
			err = fmt.Errorf("get %s: %w, or give the file's digest with --catalog", s.shown(upstream), redirected)
		} else {
			if failed, ok := errors.AsType[*url.Error](err); ok {
				// the URL may be that of a redirect
				err = fmt.Errorf("get %s: %w", neutral.ShownLocation(failed.URL), failed.Err)
			}
			err = watch.explain(err)
		}
		watch.stop()
		return nil, err
	}
	response.Body = &watchedBody{watch: watch, body: response.Body, shown: s.shown(upstream)}
	if err := s.check(response, upstream); err != nil {
		return nil, errors.Join(err, response.Body.Close())
	}
	return response, nil
}

// check returns nil for a response that get accepts, and otherwise an error that says what to do.
// It is an interruption if a retry may help.
func (s *Source) check(response *http.Response, upstream string) error {
	get := "get " + s.shown(upstream) + ": " + response.Status
	switch code := response.StatusCode; {
	case code == http.StatusOK, code == http.StatusPartialContent:
		if strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") {
			return fmt.Errorf("get %s: the answer is a web page, not the file: a proxy or a login page may be in the way, or %s", s.shown(upstream), s.advice("has no such file"))
		}
		return nil
	case code == http.StatusRequestedRangeNotSatisfiable:
		return nil
	case code == http.StatusNotFound, code == http.StatusGone:
		return fmt.Errorf("%s: %s; or choose a version that is there", get, s.advice("has no such file"))
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusProxyAuthRequired:
		return fmt.Errorf("%s: allow it there, or put user and password into the URL of the mirror or proxy", get)
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= http.StatusInternalServerError:
		return interruption{errors.New(get)}
	default:
		return errors.New(get)
	}
}

// watch cancels a request if the server sends nothing for the time idle.
type watch struct {
	ctx    context.Context //nolint:containedctx // it is the request's
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

// newWatch returns a watch, and the context for its request. The caller must call stop.
func newWatch(ctx context.Context, idle time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	silence := interruption{fmt.Errorf("the server sent nothing for %s", idle)}
	return ctx, &watch{ctx: ctx, cancel: cancel, timer: time.AfterFunc(idle, func() { cancel(silence) }), idle: idle}
}

// stop ends the watch and releases its context.
func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain returns err, an error of the request, as an interruption. If the watch has canceled the
// request, the result says so. If the caller's context has ended, the result is err as it is.
func (w *watch) explain(err error) error {
	switch cause, silent := errors.AsType[interruption](context.Cause(w.ctx)); {
	case silent:
		return fmt.Errorf("%w: %w", cause, err)
	case w.ctx.Err() != nil:
		return err
	default:
		return interruption{err}
	}
}

// watchedBody is the body of a response. Read fails if the server sends nothing for the time idle.
// The time between two calls of Read does not count. shown is the URL for messages.
type watchedBody struct {
	*watch
	body  io.ReadCloser
	shown string
}

// Read implements io.Reader. It cancels the request, and returns an interruption, if the server
// sends nothing for the time idle.
func (b *watchedBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.idle)
	n, err := b.body.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("get %s: %w", b.shown, b.explain(err))
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.stop()
	return b.body.Close()
}
