package search

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// narrowed collects, for one warning, the types in an answer that the caller may list only in some
// namespaces. The keys are the texts of enumerate for these namespaces.
type narrowed map[string][]schema.GroupResource

// add adds a type, once, if seen says that the caller may list the type only in some namespaces. n
// must not be nil.
func (n narrowed) add(gr schema.GroupResource, seen scope) {
	if in := enumerate(slices.Clone(seen.namespaces)); seen.refused != nil && !slices.Contains(n[in], gr) {
		n[in] = append(n[in], gr)
	}
}

// text returns the warning about the types in n, and about unlisted: types that the caller may list
// in no namespace. It is "" if there are neither.
func (n narrowed) text(unlisted []string) string {
	if len(n) == 0 {
		if len(unlisted) == 0 {
			return ""
		}
		return "left out, since you may not list them on the hub: " + enumerate(unlisted)
	}
	var groups []string
	types := 0
	for _, in := range slices.Sorted(maps.Keys(n)) {
		names := make([]string, 0, len(n[in]))
		for _, gr := range n[in] {
			names = append(names, gr.String())
		}
		types += len(names)
		groups = append(groups, in+", of "+enumerate(names))
	}
	if types == 1 && len(unlisted) == 0 {
		for in, of := range n {
			return fmt.Sprintf("only %s in the namespaces in which you may list them on the hub are shown: %s", of[0], in)
		}
	}
	text := "only objects in the namespaces in which you may list them on the hub are shown: " + strings.Join(groups, "; ")
	if len(unlisted) > 0 {
		text += "; left out, since you may not list them on the hub: " + enumerate(unlisted)
	}
	return text
}
