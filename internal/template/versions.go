package template

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// OtherVersionError is of a kind that the hub serves in other versions alone. The preferred one of these is watched in its place, for the
// objects are the same.
type OtherVersionError struct {
	Served schema.GroupVersionKind
	err    *meta.NoKindMatchError
}

// Error implements error.
func (e *OtherVersionError) Error() string {
	return fmt.Sprintf("the hub does not serve %s of %s; it is taken as %s: write that",
		e.err.GroupKind.Kind, schema.GroupVersion{Group: e.err.GroupKind.Group, Version: e.err.SearchedVersions[0]}, e.Served.GroupVersion())
}

// Unwrap returns the error of a version that is not served.
func (e *OtherVersionError) Unwrap() error { return e.err }

// unserved returns why the hub does not serve a kind in its version: an OtherVersionError if it serves it in another.
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

// isOf reports whether a resource is that of a kind. A subresource may have the kind, too.
func isOf(r metav1.APIResource, kind string) bool {
	return r.Kind == kind && !slices.Contains([]byte(r.Name), '/')
}

// ListedAs returns the version in which the templates of a kind are listed: its own, if that is, else the first of the others.
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
