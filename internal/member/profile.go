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

// nowhere is a namespace in which an agent's profile grants nothing. What may be read there may
// be read everywhere. It need not exist.
const nowhere = "orrery-nowhere"

// readable asks the cluster which rights the hub has in every namespace. placed are the
// namespaces with additional rights.
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

// bounded returns the list with the namespaces in which the hub may read each type: all if rules
// allow that, otherwise the given ones, where it has all rights.
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

// may reports whether rules allow a verb for all objects of a type.
func may(rules []authorizationv1.ResourceRule, api API, verb string) bool {
	return slices.ContainsFunc(rules, func(r authorizationv1.ResourceRule) bool {
		names := func(list []string, name string) bool {
			return slices.Contains(list, name) || slices.Contains(list, "*")
		}
		return len(r.ResourceNames) == 0 && names(r.Verbs, verb) && names(r.APIGroups, api.GroupVersionKind.Group) && names(r.Resources, api.Resource)
	})
}
