package render

import (
	"fmt"
	"strconv"
	"strings"
)

// changeText replaces the string at a JSON pointer (RFC 6901) in root by the result of change, in
// place. It is an error if the pointer leads to no string. If change returns an error, nothing is
// replaced.
func changeText(root map[string]any, pointer string, change func(string) (string, error)) error {
	parts := strings.Split(pointer, "/")
	if parts[0] != "" || len(parts) < 2 {
		return fmt.Errorf("path %s: a JSON pointer starts with /", pointer)
	}
	var (
		at    any = root
		store func(string)
	)
	for _, part := range parts[1:] {
		part = unescape(part)
		switch node := at.(type) {
		case map[string]any:
			v, ok := node[part]
			if !ok {
				return fmt.Errorf("path %s: there is no %s", pointer, part)
			}
			at, store = v, func(s string) { node[part] = s }
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(node) {
				return fmt.Errorf("path %s: there is no element %s in a list of %d", pointer, part, len(node))
			}
			at, store = node[i], func(s string) { node[i] = s }
		default:
			return fmt.Errorf("path %s: there is no %s", pointer, part)
		}
	}
	text, ok := at.(string)
	if !ok {
		return fmt.Errorf("path %s: it is not a string", pointer)
	}
	changed, err := change(text)
	if err != nil {
		return err
	}
	store(changed)
	return nil
}

// unescape decodes the escapes ~1 (a slash) and ~0 (a tilde) in one part of a JSON pointer. So ~01
// becomes ~1.
func unescape(part string) string {
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
}
