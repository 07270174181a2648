package fleetapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// parameters returns the query parameters of a question. Unknown parameters, which are not in
// known, and repeated ones are an error for the client. timeout and pretty are ignored.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	values := r.URL.Query()
	for name, given := range values {
		switch {
		case name == "timeout" || name == "pretty": // clients send these with every request
		case !slices.Contains(known, name):
			there := "this path has no parameters"
			if len(known) > 0 {
				there = "there is " + strings.Join(known, ", ")
			}
			return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter %s: there is none such here; %s", name, there))
		case len(given) > 1:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter %s: it is given %d times", name, len(given)))
		}
	}
	return values, nil
}

// servePlacement answers a GET of placements: why the object in parameter "of" is placed where it
// is.
func (a *api) servePlacement(w http.ResponseWriter, r *http.Request, _, _ string) error {
	asked, err := parameters(r, "of")
	if err != nil {
		return err
	}
	explained, err := a.explainer.Placement(r.Context(), a.authorizer.resource, asked.Get("of"))
	if err != nil {
		return err
	}
	return answer.JSON(w, http.StatusOK, explained)
}

// serveWorks answers a GET of works: the state of the object in parameter "of" in its clusters, or
// only in the one in parameter "cluster".
func (a *api) serveWorks(w http.ResponseWriter, r *http.Request, _, _ string) error {
	asked, err := parameters(r, "of", "cluster")
	if err != nil {
		return err
	}
	works, err := a.explainer.Works(r.Context(), a.authorizer.resource, asked.Get("of"), asked.Get("cluster"))
	if err != nil {
		return err
	}
	return answer.JSON(w, http.StatusOK, works)
}

// serveReview answers a POST of a PlacementReview: where an object would be placed by a policy that
// need not exist.
func (a *api) serveReview(w http.ResponseWriter, r *http.Request, _, _ string) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestReview))
	if err != nil {
		return apierrors.NewBadRequest("the review cannot be read: " + err.Error())
	}
	var review fleetv1alpha1.PlacementReview
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&review); err != nil {
		return apierrors.NewBadRequest("the review cannot be read: " + err.Error())
	}
	if is := (metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "PlacementReview"}); review.TypeMeta != is && review.TypeMeta != (metav1.TypeMeta{}) {
		return apierrors.NewBadRequest(fmt.Sprintf("the review is a %s %s: a %s %s is asked for here", review.APIVersion, review.Kind, is.APIVersion, is.Kind))
	}
	answered, err := a.explainer.Review(r.Context(), a.authorizer.resource, review)
	if err != nil {
		return err
	}
	return answer.JSON(w, http.StatusCreated, answered)
}
