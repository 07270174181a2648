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

// Func handles a request. An error that it returns is the answer to the client; see Error.
type Func func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler.
func (f Func) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f(w, r); err != nil {
		Error(w, r, err)
	}
}

// JSON answers with an object as JSON. It returns an error only if it has written nothing.
func JSON(w http.ResponseWriter, code int, object any) error {
	return JSONAs(w, code, "application/json", object)
}

// JSONAs is JSON with a media type that is more specific than application/json.
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

// Tagged answers with a document and its ETag, or with 304 if the client has the document
// already. kubectl's cache of discovery uses that.
func Tagged(w http.ResponseWriter, r *http.Request, mediaType string, document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	tag := fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(body)))
	w.Header().Set("ETag", tag)
	// Callers with other rights get other documents.
	w.Header().Set("Cache-Control", "private")
	if slices.Contains(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return JSONAs(w, http.StatusOK, mediaType, json.RawMessage(body))
}

// Text answers with a line of text. It never returns an error.
func Text(w http.ResponseWriter, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // as in JSONAs
	return nil
}

// Error answers with err if it is a Status, and with 500 for any other error.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	status := Status(r.Context(), err, r.Method, r.URL.Path)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if err := JSON(w, int(status.Code), status); err != nil {
		http.Error(w, status.Message, int(status.Code))
	}
}

// Status returns the Status for an error. An error that is no Status becomes an internal error,
// and is logged unless the client is gone.
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
