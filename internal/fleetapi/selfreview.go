package fleetapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/search"
)

// readable are the verbs that callers may use on the mirrored objects of all clusters.
var readable = []string{"get", "list", "watch"}

// Limits on the bodies of reviews, in bytes. A PlacementReview may contain an object.
const (
	longestReview     = 1 << 20
	longestSelfReview = 16 << 10
)

// reviewCodecs decodes the reviews that clients send.
var reviewCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, authenticationv1.SchemeGroupVersion)
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme)
}()

// reviews answers the questions of callers about themselves: who they are, and what they may do in
// the fleet. kubectl auth and user interfaces ask them. The answer is that of the hub, restricted
// to the verbs of the fleet, which is read-only.
type reviews struct {
	hub        *rest.Config
	authorizer *authorizer
}

// answer answers a review of the caller about itself. It returns false, and does nothing, if path
// is not that of such a review. path is relative to the root of the fleet. names is
// search.Qualified for the fleet in which namespaces name their cluster; it requires another right.
// The error is for the client.
func (s *reviews) answer(w http.ResponseWriter, r *http.Request, path string, names search.Names) (bool, error) {
	review, ok := map[string]func(context.Context, runtime.Object, user.Info) error{
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": s.access,
		"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews":  s.rules,
		"/apis/authentication.k8s.io/v1/selfsubjectreviews":      identity,
	}[path]
	if !ok {
		return false, nil
	}
	if r.Method != http.MethodPost {
		return true, apierrors.NewMethodNotSupported(authorizationv1.Resource(path[strings.LastIndex(path, "/")+1:]), r.Method)
	}
	who, ok := request.UserFrom(r.Context())
	if !ok {
		return true, apierrors.NewUnauthorized("the request has no user")
	}
	may := throughProxy // as the kube-apiserver of the hub requires of requests through it
	if may.Verb = "create"; names == search.Qualified {
		may.Name = "qualified"
	}
	if err := s.authorizer.resource(r.Context(), may); err != nil {
		return true, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestSelfReview))
	if err != nil {
		return true, apierrors.NewBadRequest("the review cannot be read: " + err.Error())
	}
	// clients may send protobuf
	o, _, err := reviewCodecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return true, apierrors.NewBadRequest("the review cannot be read: " + err.Error())
	}
	if err := review(r.Context(), o, who); err != nil {
		return true, err
	}
	return true, answer.JSON(w, http.StatusCreated, o)
}

// another returns the error for a client that sent a review of another kind, o, than its path
// requires.
func another(o runtime.Object) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the review is a %s, and another kind is asked for here", o.GetObjectKind().GroupVersionKind().Kind))
}

// access sets the status of a SelfSubjectAccessReview: whether the caller may do one thing. All
// verbs but those in readable are denied. Another kind of object is an error.
func (s *reviews) access(ctx context.Context, o runtime.Object, _ user.Info) error {
	review, ok := o.(*authorizationv1.SelfSubjectAccessReview)
	if !ok {
		return another(o)
	}
	what := review.Spec.ResourceAttributes
	if (what == nil) == (review.Spec.NonResourceAttributes == nil) {
		return apierrors.NewBadRequest("spec: exactly one of resourceAttributes and nonResourceAttributes must be set")
	}
	if what != nil && !slices.Contains(readable, what.Verb) || what == nil && review.Spec.NonResourceAttributes.Verb != "get" {
		review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "the fleet is read-only"}
		return nil
	}
	_, verdict, err := s.authorizer.review(ctx, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: unqualified(what), NonResourceAttributes: review.Spec.NonResourceAttributes,
	})
	review.Status = verdict
	return err
}

// unqualified returns a copy of the attributes with the namespace of the hub. If their field
// Namespace names a cluster, too (NAMESPACE@CLUSTER), the copy has NAMESPACE only. It is nil for
// nil.
func unqualified(what *authorizationv1.ResourceAttributes) *authorizationv1.ResourceAttributes {
	if what == nil {
		return nil
	}
	out := *what
	out.Namespace, _, _ = strings.Cut(out.Namespace, "@")
	return &out
}

// rules sets the status of a SelfSubjectRulesReview: what the caller who may do in a namespace,
// restricted to the verbs in readable. Another kind of object is an error.
func (s *reviews) rules(ctx context.Context, o runtime.Object, who user.Info) error {
	review, ok := o.(*authorizationv1.SelfSubjectRulesReview)
	if !ok {
		return another(o)
	}
	// The hub answers a SelfSubjectRulesReview only to the user itself, so the request impersonates
	// the caller.
	config := rest.CopyConfig(s.hub)
	config.Impersonate = rest.ImpersonationConfig{UserName: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for user %q: %w", who.GetName(), err)
	}
	asked := &authorizationv1.SelfSubjectRulesReview{Spec: review.Spec}
	asked.Spec.Namespace, _, _ = strings.Cut(asked.Spec.Namespace, "@")
	answered, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, asked, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the hub what user %q may do: %w", who.GetName(), err)
	}
	review.Status = answered.Status
	review.Status.ResourceRules, review.Status.NonResourceRules = nil, nil
	for _, rule := range answered.Status.ResourceRules {
		if rule.Verbs = onlyReadable(rule.Verbs); len(rule.Verbs) > 0 {
			review.Status.ResourceRules = append(review.Status.ResourceRules, rule)
		}
	}
	for _, rule := range answered.Status.NonResourceRules {
		if rule.Verbs = onlyReadable(rule.Verbs); len(rule.Verbs) > 0 {
			review.Status.NonResourceRules = append(review.Status.NonResourceRules, rule)
		}
	}
	return nil
}

// onlyReadable returns those verbs that are in readable; all of readable for "*".
func onlyReadable(verbs []string) []string {
	if slices.Contains(verbs, "*") {
		return readable
	}
	return slices.DeleteFunc(slices.Clone(verbs), func(v string) bool { return !slices.Contains(readable, v) })
}

// identity sets the status of a SelfSubjectReview: who the caller is. Another kind of object is an
// error.
func identity(_ context.Context, o runtime.Object, who user.Info) error {
	review, ok := o.(*authenticationv1.SelfSubjectReview)
	if !ok {
		return another(o)
	}
	review.Status.UserInfo = authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	for k, v := range who.GetExtra() {
		if review.Status.UserInfo.Extra == nil {
			review.Status.UserInfo.Extra = map[string]authenticationv1.ExtraValue{}
		}
		review.Status.UserInfo.Extra[k] = v
	}
	return nil
}
