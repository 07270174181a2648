package console

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ours refuses what no page of the console's own origin sends: browsers add cookies to what others make them send, too.
//
// What reads needs nothing, so that somebody may open an answer in a tab, but nothing else's page reads it or takes it for a script, a style or
// a frame of its own; not even the console's. What changes something, and each upgrade, says where it comes from.
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
	// Of WebSockets browsers do not agree on the site, and all send an origin.
	if origin := r.Header.Get("Origin"); (site == "" || upgrades) && origin != "" &&
		(strings.EqualFold(origin, c.origin) || strings.EqualFold(origin, "https://"+r.Host)) {
		return nil
	}
	return foreign("the request is not of a page of the console: its Origin is another, or missing. Behind a balancer that changes Host, start orrery server with --public-url")
}

func foreign(message string) error {
	return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(message))
}
