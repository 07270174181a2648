package console

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ours returns nil if a page of the console's own origin, or a user in the address bar, may have
// sent the request. Otherwise the error is Forbidden. It protects against pages of other sites:
// browsers add the cookie to requests that those pages cause, too.
//
// Reads without proof of their origin are accepted, so that a user can open an answer in a tab. A
// page of another site cannot read such an answer. No page, not even the console's, can use an
// answer as a script, a style or a frame. Writes and upgrades must prove their origin by the
// headers Sec-Fetch-Site or Origin.
func (c *Console) ours(r *http.Request) error {
	site := r.Header.Get("Sec-Fetch-Site")
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "", "empty", "websocket", "document":
	default:
		return foreign("answers of the console's API are data")
	}
	upgrades := r.Header.Get("Upgrade") != ""
	if reads := r.Method == http.MethodGet || r.Method == http.MethodHead; reads && !upgrades {
		if site == "" || site == "none" || site == "same-origin" {
			return nil
		}
		return foreign("pages of other origins read nothing here")
	}
	if site == "same-origin" {
		return nil
	}
	// Browsers send different values of Sec-Fetch-Site for WebSockets, but all send an Origin.
	if origin := r.Header.Get("Origin"); (site == "" || upgrades) && origin != "" &&
		(strings.EqualFold(origin, c.origin) || strings.EqualFold(origin, "https://"+r.Host)) {
		return nil
	}
	return foreign("the request is not of a page of the console: its Origin is another, or missing. Behind a balancer that changes Host, start orrery server with --public-url")
}

// foreign returns a Forbidden error with the message, as an API status.
func foreign(message string) error {
	return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(message))
}
