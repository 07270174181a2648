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
)

const (
	// maxFailures in a row, without new data, end a download.
	maxFailures = 3
	// firstPause is the delay after the first failure of a server. It doubles with each failure.
	firstPause = 200 * time.Millisecond
)

// interruption is a failure of the network or server after which a retry makes sense.
type interruption struct{ error }

func (i interruption) Unwrap() error { return i.error }

// persist calls try until it succeeds, fails with another error than an interruption, or makes no
// progress maxFailures times. further reports whether a try made progress.
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

// client returns the HTTP client for requests.
func (s *Source) client() *http.Client {
	if s.Client != nil {
		return s.Client
	}
	return http.DefaultClient
}

// maxRedirects is the limit of net/http.
const maxRedirects = 10

// redirectError means that a redirect to an unencrypted URL was not followed.
type redirectError struct{ to string }

func (e *redirectError) Error() string {
	return "redirected to " + e.to + ", which comes unprotected: let the server redirect to https"
}

// protected returns a client that follows no redirect to an unencrypted URL.
func (s *Source) protected() *http.Client {
	client := *s.client()
	follow := client.CheckRedirect
	client.CheckRedirect = func(request *http.Request, via []*http.Request) error {
		switch {
		case unencrypted(request.URL):
			return &redirectError{ShownLocation(request.URL.String())}
		case follow != nil:
			return follow(request, via)
		case len(via) >= maxRedirects:
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		return nil
	}
	return &client
}

// get requests a file from a byte offset. The answer has status 200, 206, or 416 if the file ends
// there.
func (s *Source) get(ctx context.Context, client *http.Client, upstream string, from int64) (*http.Response, error) {
	ctx, watch := newWatch(ctx, cmp.Or(s.Idle, defaultIdle))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.locate(upstream), nil)
	if err != nil {
		watch.stop()
		return nil, fmt.Errorf("request %s: %w", s.shown(upstream), err)
	}
	// Digests are those of the file itself, not of an encoding in transit.
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
				err = fmt.Errorf("get %s: %w", ShownLocation(failed.URL), failed.Err) // may be a redirect
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

// watch cancels a request whose server sends nothing for the idle time.
type watch struct {
	ctx    context.Context //nolint:containedctx // it is the request's
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

func newWatch(ctx context.Context, idle time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	silence := interruption{fmt.Errorf("the server sent nothing for %s", idle)}
	return ctx, &watch{ctx: ctx, cancel: cancel, timer: time.AfterFunc(idle, func() { cancel(silence) }), idle: idle}
}

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain adds the reason to a network error, and makes it an interruption if a retry makes sense.
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

// watchedBody is the body of an answer. Only time spent in Read counts as idle.
type watchedBody struct {
	*watch
	body  io.ReadCloser
	shown string
}

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
