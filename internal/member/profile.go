package member

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// nowhere is a namespace in which the profile of an agent (which limits the hub's rights in its
// cluster) grants nothing. A type that the hub may read in this namespace may be read in all. The
// namespace need not exist.
const nowhere = "orrery-nowhere"

// readable asks the cluster which rights the hub has in every namespace. It reviews the rights in a
// namespace without special ones. placed are the namespaces in which the hub has additional rights,
// which are not in the result.
func (c *connection) readable(ctx context.Context, placed []string) ([]authorizationv1.ResourceRule, error) {
	client, err := authorizationv1client.NewForConfigAndClient(&rest.Config{Host: c.base.String(), QPS: -1}, &http.Client{Transport: c.transport})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	namespace := nowhere
	for slices.Contains(placed, namespace) {
		namespace += "-"
	}
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	if review, err = client.SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("review what may be read: %w", err)
	}
	return review.Status.ResourceRules, nil
}

// bounded returns a copy of the API list in which Within of each type has the namespaces in which
// the hub may read the type. That is nil (all) if rules allow to list and watch the type. Otherwise
// it is namespaces, where the hub has all rights, for a namespaced type, and empty for any other.
func (a *APIs) bounded(rules []authorizationv1.ResourceRule, namespaces []string) *APIs {
	all := slices.Clone(a.all)
	within := append([]string{}, namespaces...) // not nil, which means everywhere
	slices.Sort(within)
	for i := range all {
		api := &all[i]
		api.Verbs = slices.Clone(api.Verbs)
		api.Within = nil
		if may(rules, *api, "list") && may(rules, *api, "watch") {
			continue
		}
		if api.Within = within; !api.Namespaced {
			api.Within = []string{}
		}
	}
	return newAPIs(all, slices.Clone(a.stale), a.failure)
}

// may reports whether rules allow the verb for all objects of the type api. Rules for named objects
// do not count.
func may(rules []authorizationv1.ResourceRule, api API, verb string) bool {
	return slices.ContainsFunc(rules, func(r authorizationv1.ResourceRule) bool {
		names := func(list []string, name string) bool {
			return slices.Contains(list, name) || slices.Contains(list, "*")
		}
		return len(r.ResourceNames) == 0 && names(r.Verbs, verb) && names(r.APIGroups, api.GroupVersionKind.Group) && names(r.Resources, api.Resource)
	})
}
