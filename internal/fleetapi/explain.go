package fleetapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// questions are the virtual kinds, each with its path, its method, and the verb by which the
// hub's kube-apiserver authorizes the request.
var questions = map[string]struct {
	method, verb string
	serve        func(a *api, w http.ResponseWriter, r *http.Request) error
}{
	fleetv1alpha1.PlacementsPath:       {http.MethodGet, "list", (*api).servePlacement},
	fleetv1alpha1.WorksPath:            {http.MethodGet, "list", (*api).serveWorks},
	fleetv1alpha1.PlacementReviewsPath: {http.MethodPost, "create", (*api).serveReview},
	fleetv1alpha1.AccessPath:           {http.MethodGet, "list", (*api).serveAccess},
}

// serveQuestion answers one of the questions. It authorizes a request that did not come through
// the kube-apiserver in the same way.
func (a *api) serveQuestion(w http.ResponseWriter, r *http.Request, _ string) error {
	path := r.URL.EscapedPath()
	q, v := questions[path], fleetv1alpha1.GroupVersion
	resource := path[strings.LastIndex(path, "/")+1:]
	if r.Method != q.method && (q.method != http.MethodGet || r.Method != http.MethodHead) {
		return apierrors.NewMethodNotSupported(schema.GroupResource{Group: v.Group, Resource: resource}, r.Method)
	}
	if err := a.authorizer.resource(r.Context(), authorizationv1.ResourceAttributes{
		Verb: q.verb, Group: v.Group, Version: v.Version, Resource: resource,
	}); err != nil {
		return err
	}
	compressed(answer.Func(func(w http.ResponseWriter, r *http.Request) error { return q.serve(a, w, r) })).ServeHTTP(w, r)
	return nil
}

// parameters returns the parameters of a question, or an error for unknown ones.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	values := r.URL.Query()
	for name, given := range values {
		switch {
		case name == "timeout" || name == "pretty": // clients send these with every request
		case !slices.Contains(known, name):
			return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter %s: there is none such here; there is %s", name, strings.Join(known, ", ")))
		case len(given) > 1:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter %s: it is given %d times", name, len(given)))
		}
	}
	return values, nil
}

func (a *api) servePlacement(w http.ResponseWriter, r *http.Request) error {
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

func (a *api) serveWorks(w http.ResponseWriter, r *http.Request) error {
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

func (a *api) serveReview(w http.ResponseWriter, r *http.Request) error {
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
