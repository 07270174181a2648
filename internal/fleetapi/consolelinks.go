package fleetapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// longestLink is the maximum size of a ConsoleLink in a request, in bytes.
const longestLink = 64 << 10

// serveConsoleLinks answers a POST of a ConsoleLink: it creates a link that opens the console as
// the caller. It is Forbidden for anonymous callers, and from a session of the console.
func (a *api) serveConsoleLinks(w http.ResponseWriter, r *http.Request, _, _ string) error {
	links := fleetv1alpha1.GroupVersion.WithResource("consolelinks")
	who, ok := request.UserFrom(r.Context())
	if !ok {
		return apierrors.NewUnauthorized("the request has no user")
	}
	if who.GetName() == user.Anonymous || slices.Contains(who.GetGroups(), user.AllUnauthenticated) {
		return apierrors.NewForbidden(links.GroupResource(), "", errors.New("nobody is logged in"))
	}
	if r.Header.Get(fleetv1alpha1.ConsoleHeader) != "" {
		return apierrors.NewForbidden(links.GroupResource(), "",
			errors.New("a session of the console makes no link, which would outlast it: run orrery console, or create the link with a kubeconfig"))
	}
	if r.URL.Query().Has("dryRun") {
		return apierrors.NewBadRequest("dryRun: a link that opens nothing is of no use; leave it out")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestLink))
	if err != nil {
		return apierrors.NewBadRequest("the ConsoleLink cannot be read: " + err.Error())
	}
	made := fleetv1alpha1.ConsoleLink{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "ConsoleLink"}}
	if len(body) > 0 {
		asked := fleetv1alpha1.ConsoleLink{TypeMeta: made.TypeMeta}
		if err := json.Unmarshal(body, &asked); err != nil {
			return apierrors.NewBadRequest("the ConsoleLink cannot be read as JSON: " + err.Error())
		}
		if asked.TypeMeta != made.TypeMeta {
			return apierrors.NewBadRequest(fmt.Sprintf("a %s of %s is no ConsoleLink of %s", asked.Kind, asked.APIVersion, made.APIVersion))
		}
		made.Name = asked.Name
	}
	if made.Status, err = a.link(who); err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return answer.JSON(w, http.StatusCreated, made)
}
