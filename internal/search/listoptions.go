package search

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// checkListOptions returns the error (422) of API servers for options of a list or watch that
// contradict each other, such as resourceVersionMatch without resourceVersion. one is true for a
// request for one object: API servers ignore these options then, and the result is nil.
func (p *params) checkListOptions(one bool) error {
	if one {
		return nil
	}
	options := internalversion.ListOptions{
		Watch: p.watch, ResourceVersion: p.version, ResourceVersionMatch: metav1.ResourceVersionMatch(p.match), Continue: p.next,
	}
	if p.initialSaid {
		options.SendInitialEvents = &p.initial
	}
	if wrong := validation.ValidateListOptions(&options, true); len(wrong) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", wrong)
	}
	return nil
}

// beginsWithAll reports whether a watch sends the existing objects first. That is so if
// sendInitialEvents is true. Without this parameter it is so if the client accepts any
// resourceVersion.
func (p *params) beginsWithAll() bool {
	if p.initialSaid {
		return p.initial
	}
	return p.version == "" || p.version == "0"
}

// unchanged returns an Expired error if an object that the list selects has changed since
// p.version, or if the changes since then are unknown. The store does not have earlier states by
// version, so an exact version can only be answered without changes.
func (p *pager) unchanged() error {
	events, _, _, err := p.search.Store.Since(schema.GroupResource{Group: p.query.Group, Resource: p.query.Resource}, p.version)
	if err != nil {
		return expired()
	}
	selects := func(row *store.Row) bool { return row != nil && p.query.Selects(row) }
	for _, e := range events {
		if selects(e.Before) || selects(e.After) {
			return expired()
		}
	}
	return nil
}
