package search

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// narrowed collects the types of an answer that the caller may list in some namespaces only, so
// that one warning names them all.
type narrowed map[string][]schema.GroupResource // by the namespaces, as enumerate prints them

// add adds a type, unless the caller may list it in all namespaces.
func (n narrowed) add(gr schema.GroupResource, seen scope) {
	if in := enumerate(slices.Clone(seen.namespaces)); seen.refused != nil && !slices.Contains(n[in], gr) {
		n[in] = append(n[in], gr)
	}
}

// text returns the warning; "" if there is none. unlisted are types that the caller may not list
// in any namespace.
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
