package console

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ours refuses requests that a page of the console's own origin would not send: browsers add
// cookies to requests that other sites cause, too.
//
// Reads need no proof, so that a user may open an answer in a tab. But no other site's page can
// read the answer, and no page at all can use it as a script, a style or a frame, not even the
// console's. Changes and upgrades must prove their origin.
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
	// Browsers differ in Sec-Fetch-Site for WebSockets, and all send an Origin.
	if origin := r.Header.Get("Origin"); (site == "" || upgrades) && origin != "" &&
		(strings.EqualFold(origin, c.origin) || strings.EqualFold(origin, "https://"+r.Host)) {
		return nil
	}
	return foreign("the request is not of a page of the console: its Origin is another, or missing. Behind a balancer that changes Host, start orrery server with --public-url")
}

func foreign(message string) error {
	return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(message))
}
