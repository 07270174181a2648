package fleetapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// menu is a type that has a menu in user interfaces, with the verbs that the menu requires.
type menu struct {
	group, version, resource string
	namespaced               bool
	verbs                    []string
}

var (
	see    = []string{"list"}
	change = []string{"list", "create", "update", "patch", "delete"}
)

// menus are sorted by group and resource.
var menus = []menu{
	{"", "v1", "configmaps", true, change},
	{"", "v1", "events", true, see},
	{"", "v1", "namespaces", false, change},
	{"", "v1", "nodes", false, see},
	{"", "v1", "persistentvolumeclaims", true, change},
	{"", "v1", "pods", true, change},
	{"", "v1", "secrets", true, change},
	{"", "v1", "services", true, change},
	{"apps", "v1", "daemonsets", true, change},
	{"apps", "v1", "deployments", true, change},
	{"apps", "v1", "statefulsets", true, change},
	{"apps.orrery.dev", "v1alpha1", "workloadrebalancers", false, change},
	{"batch", "v1", "cronjobs", true, change},
	{"batch", "v1", "jobs", true, change},
	{"cluster.orrery.dev", "v1alpha1", "clusters", false, change},
	{"config.orrery.dev", "v1alpha1", "mirrorpolicies", false, change},
	{"fleet.orrery.dev", "v1alpha1", "clusters/mirror", false, []string{"get"}},
	{"fleet.orrery.dev", "v1alpha1", "clusters/proxy", false, []string{"get", "create"}},
	{"lifecycle.orrery.dev", "v1alpha1", "operations", false, change},
	{"policy.orrery.dev", "v1alpha1", "clusteraccesses", false, change},
	{"policy.orrery.dev", "v1alpha1", "clusteroverridepolicies", false, change},
	{"policy.orrery.dev", "v1alpha1", "clusterpropagationpolicies", false, change},
	{"policy.orrery.dev", "v1alpha1", "overridepolicies", true, change},
	{"policy.orrery.dev", "v1alpha1", "propagationpolicies", true, change},
	{"work.orrery.dev", "v1alpha2", "clusterresourcebindings", false, see},
	{"work.orrery.dev", "v1alpha2", "resourcebindings", true, see},
}

// askers is the number of concurrent questions to the hub about one caller.
const askers = 8

// serveAccess answers what the caller may see and change.
func (a *api) serveAccess(w http.ResponseWriter, r *http.Request) error {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		return apierrors.NewUnauthorized("the request has no user")
	}
	if _, err := parameters(r); err != nil {
		return err
	}
	all, err := a.everything(r.Context())
	if err != nil {
		return err
	}
	types := make([]fleetv1alpha1.TypeAccess, len(menus))
	g, ctx := errgroup.WithContext(r.Context())
	g.SetLimit(askers)
	for i, m := range menus {
		g.Go(func() (err error) {
			types[i] = fleetv1alpha1.TypeAccess{Group: m.group, Resource: m.resource}
			types[i].Verbs, err = a.verbs(ctx, m, all)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	access := fleetv1alpha1.FleetAccess{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "FleetAccess"}, User: who.GetName(),
		Types: slices.DeleteFunc(types, func(t fleetv1alpha1.TypeAccess) bool { return len(t.Verbs) == 0 }),
	}
	namespaces := sets.New[string]()
	for _, t := range access.Types {
		for _, v := range t.Verbs {
			namespaces.Insert(v.Namespaces...)
		}
	}
	access.Namespaces = slices.Sorted(maps.Keys(namespaces))
	return answer.JSON(w, http.StatusOK, access)
}

// everything reports whether the caller may do everything. Then no other right need be checked.
func (a *api) everything(ctx context.Context) (bool, error) {
	return a.may(ctx, authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Version: "*", Resource: "*"})
}

func (a *api) may(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	err := a.authorizer.resource(ctx, what)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}

// verbs returns the verbs that the caller may do with a type in any namespace.
func (a *api) verbs(ctx context.Context, m menu, all bool) ([]fleetv1alpha1.VerbAccess, error) {
	what := authorizationv1.ResourceAttributes{Verb: "*", Group: m.group, Version: m.version}
	what.Resource, what.Subresource, _ = strings.Cut(m.resource, "/")
	if !all {
		var err error
		if all, err = a.may(ctx, what); err != nil {
			return nil, err
		}
	}
	var verbs []fleetv1alpha1.VerbAccess
	for _, what.Verb = range m.verbs {
		v := fleetv1alpha1.VerbAccess{Verb: what.Verb, Everywhere: all}
		var err error
		if !all {
			v.Everywhere, err = a.may(ctx, what)
		}
		if err == nil && !v.Everywhere && m.namespaced {
			v.Namespaces, err = a.authorizer.namespaces(ctx, what)
		}
		if err != nil {
			return nil, err
		}
		if v.Everywhere || len(v.Namespaces) > 0 {
			verbs = append(verbs, v)
		}
	}
	return verbs, nil
}
