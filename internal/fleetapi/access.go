package fleetapi

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// menu is a type that user interfaces can show, with the verbs that they need to know about.
// serveAccess answers for each menu which of the verbs the caller may use.
type menu struct {
	group, version, resource string
	namespaced               bool
	verbs                    []string
	of                       *schema.GroupVersionResource // as in kind
}

var (
	// Verbs of a menu: see is for types that are only shown, change for types that users also change.
	see    = []string{"list"}
	change = []string{"list", "create", "update", "patch", "delete"}
)

// newMenus returns the menus of all types: those of the list below, and those of kinds, sorted by
// group and resource.
func newMenus() []menu {
	all := []menu{
		{"", "v1", "configmaps", true, change, nil},
		{"", "v1", "events", true, see, nil},
		{"", "v1", "namespaces", false, change, nil},
		{"", "v1", "nodes", false, see, nil},
		{"", "v1", "persistentvolumeclaims", true, change, nil},
		{"", "v1", "pods", true, change, nil},
		{"", "v1", "secrets", true, change, nil},
		{"", "v1", "services", true, change, nil},
		{"apps", "v1", "daemonsets", true, change, nil},
		{"apps", "v1", "deployments", true, change, nil},
		{"apps", "v1", "statefulsets", true, change, nil},
		{"apps.orrery.dev", "v1alpha1", "workloadrebalancers", false, change, nil},
		{"batch", "v1", "cronjobs", true, change, nil},
		{"batch", "v1", "jobs", true, change, nil},
		{"cluster.orrery.dev", "v1alpha1", "clusters", false, change, nil},
		{"config.orrery.dev", "v1alpha1", "mirrorpolicies", false, change, nil},
		{"lifecycle.orrery.dev", "v1alpha1", "operations", false, change, nil},
		{"policy.orrery.dev", "v1alpha1", "clusteraccesses", false, change, nil},
		{"policy.orrery.dev", "v1alpha1", "clusteroverridepolicies", false, change, nil},
		{"policy.orrery.dev", "v1alpha1", "clusterpropagationpolicies", false, change, nil},
		{"policy.orrery.dev", "v1alpha1", "clustertaintpolicies", false, change, nil},
		{"policy.orrery.dev", "v1alpha1", "overridepolicies", true, change, nil},
		{"policy.orrery.dev", "v1alpha1", "propagationpolicies", true, change, nil},
		{"work.orrery.dev", "v1alpha2", "clusterresourcebindings", false, see, nil},
		{"work.orrery.dev", "v1alpha2", "resourcebindings", true, see, nil},
	}
	for _, k := range kinds {
		if len(k.menu) > 0 {
			all = append(all, menu{fleetv1alpha1.GroupVersion.Group, fleetv1alpha1.GroupVersion.Version, k.resource, false, k.menu, k.of})
		}
	}
	slices.SortFunc(all, func(a, b menu) int {
		return cmp.Or(strings.Compare(a.group, b.group), strings.Compare(a.resource, b.resource))
	})
	return all
}

// rights returns the rights that a caller needs for a verb of m.
func (m menu) rights(verb string) []authorizationv1.ResourceAttributes {
	return rightsTo(verb, schema.GroupVersionResource{Group: m.group, Version: m.version, Resource: m.resource}, m.of, "")
}

// askers is the number of concurrent requests to the hub about the rights of one caller.
const askers = 8

// serveAccess answers a GET of access with a FleetAccess: the types that the caller may see or
// change, with verbs and namespaces. User interfaces show only these. An error is one for the
// client.
func (a *api) serveAccess(w http.ResponseWriter, r *http.Request, _, _ string) error {
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
	types := make([]fleetv1alpha1.TypeAccess, len(a.menus))
	g, ctx := errgroup.WithContext(r.Context())
	g.SetLimit(askers)
	for i, m := range a.menus {
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

// everything reports whether the caller may do everything on the hub. Then no other right need be
// checked.
func (a *api) everything(ctx context.Context) (bool, error) {
	return a.may(ctx, authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Version: "*", Resource: "*"})
}

// may reports whether the user of ctx has all of rights on the hub. An error means that the hub did
// not answer, or that ctx has no user.
func (a *api) may(ctx context.Context, rights ...authorizationv1.ResourceAttributes) (bool, error) {
	for _, right := range rights {
		if err := a.authorizer.resource(ctx, right); err != nil {
			if apierrors.IsForbidden(err) {
				err = nil
			}
			return false, err
		}
	}
	return true, nil
}

// verbs returns the verbs of m that the caller may use on the type in at least one namespace, with
// these namespaces. It leaves out all other verbs. all means that the caller may do everything on
// the hub.
func (a *api) verbs(ctx context.Context, m menu, all bool) ([]fleetv1alpha1.VerbAccess, error) {
	if !all {
		var err error
		if all, err = a.may(ctx, m.rights("*")...); err != nil {
			return nil, err
		}
	}
	var verbs []fleetv1alpha1.VerbAccess
	for _, verb := range m.verbs {
		v, rights := fleetv1alpha1.VerbAccess{Verb: verb, Everywhere: all}, m.rights(verb)
		var err error
		if !all {
			v.Everywhere, err = a.may(ctx, rights...)
		}
		if err == nil && !v.Everywhere && m.namespaced {
			v.Namespaces, err = a.authorizer.namespaces(ctx, rights[0])
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
