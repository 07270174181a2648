package fleetapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// authorizer asks the hub with SubjectAccessReviews what users may do. It caches the answers for a
// short time, because a kubectl command causes the same question several times. Several goroutines
// may use it. (The authorizer of k8s.io/apiserver does the same, but depends on CEL and
// OpenTelemetry.)
type authorizer struct {
	reviews  authorizationclient.SubjectAccessReviewInterface
	verdicts *cache.LRUExpireCache
	roles    *roles
	// alone is true if RBAC is the only authorizer of the hub.
	alone bool
	// changes counts the changes of the hub's RBAC by subject. A change invalidates the cached answers
	// about its subjects.
	changes *subjectChanges
}

const (
	// verdictLifetime is how long an answer is cached that may change without notice. Such answers are
	// all of a hub with other authorizers than RBAC, and those from before the hub's RBAC was read.
	// Answers within changeSettles after a change of the user's rights are such answers, too, because
	// the hub's authorizer may not know the change.
	verdictLifetime = 5 * time.Second
	// verdictLifetimeSeen is how long all other answers are cached. A change of the user's roles
	// invalidates an answer earlier.
	verdictLifetimeSeen = time.Minute
	// verdictsKept is the maximum number of cached answers.
	verdictsKept = 4096
)

// newAuthorizer returns an authorizer that sends its questions to reviews. r is the hub's RBAC;
// nil: it is set later. alone is true if RBAC is the only authorizer of the hub.
func newAuthorizer(reviews authorizationclient.SubjectAccessReviewInterface, r *roles, alone bool) *authorizer {
	return &authorizer{reviews: reviews, verdicts: cache.NewLRUExpireCache(verdictsKept), roles: r, alone: alone, changes: newSubjectChanges()}
}

// lifetime returns how long the hub's answer about a user may be cached. changed is the time of the
// last known change of the user's rights.
func (a *authorizer) lifetime(changed time.Time) time.Duration {
	if !a.alone || a.roles == nil || !a.roles.known() || a.changes.now().Sub(changed) < changeSettles {
		return verdictLifetime
	}
	return verdictLifetimeSeen
}

// resource returns nil if the user of ctx may do what on the hub. The error is Forbidden, with a
// message for the user, if the user may not. It is Unauthorized if ctx has no user. Any other error
// means that the hub did not answer.
func (a *authorizer) resource(ctx context.Context, what authorizationv1.ResourceAttributes) error {
	who, verdict, err := a.review(ctx, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &what})
	if err != nil || verdict.Allowed {
		return err
	}
	gr := schema.GroupResource{Group: what.Group, Resource: strings.TrimSuffix(what.Resource+"/"+what.Subresource, "/")}
	scope := "at the cluster scope"
	if what.Namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", what.Namespace)
	}
	message := fmt.Sprintf("User %q cannot %s resource %q in API group %q %s of the hub, whose roles say what of the fleet may be seen",
		who.GetName(), what.Verb, gr.Resource, gr.Group, scope)
	if verdict.Reason != "" {
		message += ": " + verdict.Reason
	}
	return apierrors.NewForbidden(gr, what.Name, errors.New(message))
}

// namespaces returns the namespaces of the hub in which roles allow the user of ctx to do what. The
// result may be empty. Roles for all namespaces do not count. If the hub has other authorizers than
// RBAC, the hub is asked about each of these namespaces, and those that it denies are left out.
// Namespaces that only another authorizer allows are not found. While the roles of the hub are
// unknown, it returns an error.
func (a *authorizer) namespaces(ctx context.Context, what authorizationv1.ResourceAttributes) ([]string, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewUnauthorized("the request has no user")
	}
	if !a.roles.known() {
		return nil, apierrors.NewServiceUnavailable("which roles the hub has is not known yet: ask again in a moment")
	}
	names := a.roles.Namespaces(who.GetName(), who.GetGroups(), what)
	if a.alone {
		return names, nil
	}
	allowed := make([]string, 0, len(names))
	for _, what.Namespace = range names {
		err := a.resource(ctx, what)
		if err == nil {
			allowed = append(allowed, what.Namespace)
		} else if !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
	return allowed, nil
}

// path returns nil if the user of ctx may get the non-resource path, such as /metrics, on the hub.
// The error is Forbidden if the user may not, and Unauthorized if ctx has no user. Any other error
// means that the hub did not answer.
func (a *authorizer) path(ctx context.Context, path string) error {
	who, verdict, err := a.review(ctx, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	})
	if err != nil || verdict.Allowed {
		return err
	}
	message := fmt.Sprintf("User %q cannot get path %q", who.GetName(), path)
	return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(message))
}

// review returns the user of ctx, and the hub's answer whether that user may do what spec
// describes. The answer may come from the cache. review sets the user in spec. An answer with an
// evaluation error is not cached. The error is Unauthorized if ctx has no user.
func (a *authorizer) review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (user.Info, authorizationv1.SubjectAccessReviewStatus, error) {
	var verdict authorizationv1.SubjectAccessReviewStatus
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, verdict, apierrors.NewUnauthorized("the request has no user")
	}
	spec.User, spec.UID, spec.Groups = who.GetName(), who.GetUID(), who.GetGroups()
	spec.Extra = make(map[string]authorizationv1.ExtraValue, len(who.GetExtra()))
	for k, v := range who.GetExtra() {
		spec.Extra[k] = v
	}
	key, err := json.Marshal(spec)
	if err != nil {
		return who, verdict, fmt.Errorf("encode access review: %w", err)
	}
	// The number of the user's last change is part of the key, and is read before the question. If a
	// change happens during the question, later calls have another key and do not find this answer.
	last := a.changes.of(who.GetName(), who.GetGroups())
	lifetime := a.lifetime(last.at)
	remembered := strconv.FormatUint(last.number, 10) + string(key)
	if known, ok := a.verdicts.Get(remembered); ok {
		return who, known.(authorizationv1.SubjectAccessReviewStatus), nil //nolint:forcetypeassert // nothing else is put in
	}
	answered, err := a.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return who, verdict, fmt.Errorf("ask the hub what user %q may do: %w", who.GetName(), err)
	}
	if answered.Status.EvaluationError == "" {
		a.verdicts.Add(remembered, answered.Status, lifetime)
	}
	return who, answered.Status, nil
}
