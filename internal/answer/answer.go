// Package answer writes what a Kubernetes API server writes: objects as JSON and errors
// as Status, so that clients show the message and not the bytes.
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

// Func handles a request, or returns the error that the client is told.
type Func func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler.
func (f Func) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f(w, r); err != nil {
		Error(w, r, err)
	}
}

// JSON answers with an object.
func JSON(w http.ResponseWriter, code int, object any) error {
	return JSONAs(w, code, "application/json", object)
}

// JSONAs answers with an object whose media type says more than JSON.
func JSONAs(w http.ResponseWriter, code int, mediaType string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client has gone: there is nobody to tell
	return nil
}

// Tagged answers with a document, or that the client has it already, as kubectl's cache of what is served asks.
func Tagged(w http.ResponseWriter, r *http.Request, mediaType string, document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	tag := fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(body)))
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "private") // callers with other rights get other documents
	if slices.Contains(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return JSONAs(w, http.StatusOK, mediaType, json.RawMessage(body))
}

// Text answers with a line of text.
func Text(w http.ResponseWriter, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // as above
	return nil
}

// Error answers with the Status that err is, or with 500 for any other error.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	status := Status(r.Context(), err, r.Method, r.URL.Path)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if err := JSON(w, int(status.Code), status); err != nil {
		http.Error(w, status.Message, int(status.Code))
	}
}

// Status is what a client is told of an error. One that is no Status is logged, unless nobody waits for the answer any more.
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
