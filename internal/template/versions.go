package template

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// OtherVersionError is the error of a version that the hub does not serve, although it serves the
// kind in other versions. The cache watches Served instead, the preferred one of these: it has the
// same objects.
type OtherVersionError struct {
	Served schema.GroupVersionKind
	err    *meta.NoKindMatchError
}

// Error implements error.
func (e *OtherVersionError) Error() string {
	return fmt.Sprintf("the hub does not serve %s of %s; it is taken as %s: write that",
		e.err.GroupKind.Kind, schema.GroupVersion{Group: e.err.GroupKind.Group, Version: e.err.SearchedVersions[0]}, e.Served.GroupVersion())
}

// Unwrap returns the NoKindMatchError of the version that is not served, so that
// meta.IsNoMatchError is true.
func (e *OtherVersionError) Unwrap() error { return e.err }

// unserved returns the error for a version of a kind that the hub does not serve. It is an
// OtherVersionError if the hub serves the kind in another version, else a NoKindMatchError. If
// discovery fails, it is the error of discovery.
func (c *Cache) unserved(gvk schema.GroupVersionKind) error {
	none := &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	groups, err := c.discovery.ServerGroups()
	if err != nil {
		return fmt.Errorf("discover the versions of %s: %w", gvk.GroupKind(), err)
	}
	for _, group := range groups.Groups {
		if group.Name != gvk.Group {
			continue
		}
		versions := append([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions...)
		for _, v := range versions {
			if v.Version == gvk.Version {
				continue
			}
			list, err := c.discovery.ServerResourcesForGroupVersion(v.GroupVersion)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("discover %s: %w", v.GroupVersion, err)
			}
			if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return isOf(r, gvk.Kind) }) {
				return &OtherVersionError{Served: gvk.GroupKind().WithVersion(v.Version), err: none}
			}
		}
	}
	return none
}

// isOf reports whether a resource is that of the kind. A subresource, such as deployments/scale, is
// not, even if it has the same kind.
func isOf(r metav1.APIResource, kind string) bool {
	return r.Kind == kind && !slices.Contains([]byte(r.Name), '/')
}

// ListedAs returns the version of a kind whose templates the cache has listed: the version of gvk
// if it is listed, else the first listed version by name. If none is listed, it returns gvk and
// false.
func (c *Cache) ListedAs(gvk schema.GroupVersionKind) (schema.GroupVersionKind, bool) {
	if c.Listed(gvk) {
		return gvk, true
	}
	for _, v := range c.Versions(gvk.GroupKind()) {
		if c.Listed(v) {
			return v, true
		}
	}
	return gvk, false
}
