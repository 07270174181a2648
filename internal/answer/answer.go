// Package answer writes answers as a Kubernetes API server does: objects as JSON and errors as
// Status, so that clients show the message instead of raw bytes.
package answer

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Func is an http.Handler that may return an error: ServeHTTP then answers with that error, by the
// func Error. So a Func must return an error only if it has written nothing.
type Func func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler. If f returns an error, the answer is the Status of that error.
func (f Func) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f(w, r); err != nil {
		Error(w, r, err)
	}
}

// JSON answers with an object as JSON, with the status code. It returns an error only if the object
// cannot be encoded; nothing is written then. A client that is gone is no error.
func JSON(w http.ResponseWriter, code int, object any) error {
	return JSONAs(w, code, "application/json", object)
}

// JSONAs answers with an object as JSON under a media type that is more specific than
// application/json. It returns an error only if the object cannot be encoded; nothing is written
// then.
func JSONAs(w http.ResponseWriter, code int, mediaType string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client has gone, and cannot get the error
	return nil
}

// Tagged answers with a document as JSON and an ETag, which is the digest of the JSON. If the
// request's If-None-Match has that ETag, the answer is 304 without the document. Documents of
// discovery need that, because kubectl caches them. Tagged returns an error only if the document
// cannot be encoded; nothing is written then.
func Tagged(w http.ResponseWriter, r *http.Request, mediaType string, document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	tag := fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(body)))
	w.Header().Set("ETag", tag)
	// Shared caches must not store the answer: callers with other rights get another document.
	w.Header().Set("Cache-Control", "private")
	if slices.Contains(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return JSONAs(w, http.StatusOK, mediaType, json.RawMessage(body))
}

// Text answers with a line of plain text and status 200. The error is always nil, so that a Func
// can return the call.
func Text(w http.ResponseWriter, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // the client has gone, as in JSONAs
	return nil
}

// Error answers with the Status of err as JSON, under the HTTP code in that Status; see the func
// Status. It sets the header Retry-After if the Status has retryAfterSeconds.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	status := Status(r.Context(), err, r.Method, r.URL.Path)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if err := JSON(w, int(status.Code), status); err != nil {
		http.Error(w, status.Message, int(status.Code))
	}
}

// Status returns the API object Status that describes err to a client. If a deadline was exceeded,
// it is a timeout (504). If err is or wraps an API status, it is that status. Any other err becomes
// an internal error (500) with the text of err. Such an err is also logged with method and path,
// unless ctx has ended, which means that the client is gone.
func Status(ctx context.Context, err error, method, path string) *metav1.Status {
	if errors.Is(err, context.DeadlineExceeded) {
		err = apierrors.NewTimeoutError("the request took too long: ask for less, with a limit or a selector", 0)
	}
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "request failed", "method", method, "path", path)
		}
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status
}
