package search

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// checkListOptions refuses the options of a list or a watch that API servers refuse. For one
// object they ignore these options.
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

// beginsWithAll reports whether a watch sends the existing objects first: if the client asks for
// it, or does not say and accepts any version.
func (p *params) beginsWithAll() bool {
	if p.initialSaid {
		return p.initial
	}
	return p.version == "" || p.version == "0"
}

// unchanged returns an error if an object that the list selects changed since the version, or
// may have changed: the earlier state is not available by version.
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
