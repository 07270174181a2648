package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/selection"
)

// Step is one step of a FieldPath: to the field with the name Key or, if Key is "", to the elements
// of a list. Every means all elements, else it is the element at Index.
type Step struct {
	Key   string // of a field; "": elements
	Every bool   // every element, else the one at Index
	Index int
}

// FieldPath is a parsed path to a field in the body of an object. If it leads through all elements
// of a list, the field has several values. ParseFieldPath returns a path with at least one step.
type FieldPath []Step

// lists reports whether the path leads through all elements of a list, and so may have several
// values.
func (p FieldPath) lists() bool { return slices.ContainsFunc(p, func(s Step) bool { return s.Every }) }

// String returns the path as text that ParseFieldPath parses, such as spec.containers[].image.
func (p FieldPath) String() string {
	var out strings.Builder
	for i, s := range p {
		switch {
		case s.Every:
			out.WriteString("[]")
		case s.Key == "":
			fmt.Fprintf(&out, "[%d]", s.Index)
		case strings.ContainsFunc(s.Key, func(r rune) bool { return !word(r) }):
			out.WriteString("['" + s.Key + "']")
		case i > 0:
			out.WriteString("." + s.Key)
		default:
			out.WriteString(s.Key)
		}
	}
	return out.String()
}

// Limits of paths that ParseFieldPath accepts.
const (
	longestPath = 1024 // characters
	mostLists   = 3    // lists with every element: each is a nested loop
	mostIndex   = 100_000
)

// ParseFieldPath parses the path of a field. Examples are spec.nodeName,
// metadata.annotations['a.b/c'], spec.containers[].image (all elements) and
// spec.containers[0].image. The error is an ErrSelector for an invalid path.
func ParseFieldPath(path string) (out FieldPath, err error) {
	invalid := func(why string) (FieldPath, error) {
		return nil, fmt.Errorf("%w: field %q: %s", ErrSelector, path, why)
	}
	if len(path) > longestPath {
		return invalid("longer than 1024 characters")
	}
	lists := 0
	for rest := path; ; {
		var step Step
		switch {
		case strings.HasPrefix(rest, "['"):
			var ok bool
			if step.Key, rest, ok = strings.Cut(rest[2:], "']"); !ok {
				return invalid("[' is not closed")
			}
			if strings.ContainsAny(step.Key, "\"\\'\x00") {
				return invalid("a quote or backslash in a key")
			}
			if step.Key == "" {
				return invalid("a key is empty")
			}
		case strings.HasPrefix(rest, "[") && len(out) > 0:
			var ok bool
			if step, rest, ok = elementStep(rest); !ok {
				return invalid("in brackets must be nothing, the number of an element from 0 on, or a 'key' in quotes")
			}
		default:
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			step.Key, rest = rest[:end], rest[end:]
			if strings.ContainsFunc(step.Key, func(r rune) bool { return !word(r) }) {
				return invalid("write keys with other characters than letters, digits, _ and - as ['key']")
			}
			if step.Key == "" {
				return invalid("a key is empty")
			}
		}
		if out = append(out, step); step.Every {
			if lists++; lists > mostLists {
				return invalid(fmt.Sprintf("through more than %d lists", mostLists))
			}
		}
		switch {
		case rest == "":
			return out, nil
		case rest[0] == '.':
			if rest = rest[1:]; strings.HasPrefix(rest, "[") {
				return invalid("a key is empty")
			}
		case rest[0] != '[':
			return invalid("after a bracket comes a dot or another bracket")
		}
	}
}

// elementStep parses the brackets [] or [N] at the beginning of a path, and returns that step and
// the rest of the path. ok is false if the brackets are invalid. The path must begin with a
// bracket.
func elementStep(path string) (step Step, rest string, ok bool) {
	index, rest, ok := strings.Cut(path[1:], "]")
	if index == "" || !ok {
		return Step{Every: true}, rest, ok
	}
	n, err := strconv.ParseUint(index, 10, 31)
	return Step{Index: int(n)}, rest, err == nil && n <= mostIndex && index == strconv.FormatUint(n, 10)
}

// word reports whether a path may have the character in a key without quotes: ASCII letters,
// digits, _ and -.
func word(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}

// split cuts a path after each step to all elements of a list. lists are the paths to these lists:
// the first one in the body, each other in an element of the list before. rest is the path in an
// element of the last list, or the whole path without lists.
func (p FieldPath) split() (lists []FieldPath, rest FieldPath) {
	for i, s := range p {
		if s.Every {
			lists, rest = append(lists, rest), nil
			continue
		}
		rest = append(rest, p[i])
	}
	return lists, rest
}

// asked returns the meaning of the requirement's operator. values are the values to compare with.
// not means that the result is negated. exists means that the field must exist, and values is nil.
// The error is an ErrSelector for an unknown operator, and for in and notin without values.
func (f FieldRequirement) asked() (values []string, not, exists bool, err error) {
	switch f.Operator {
	case selection.Equals, selection.DoubleEquals:
		return []string{f.Value}, false, false, nil
	case selection.NotEquals:
		return []string{f.Value}, true, false, nil
	case selection.In, selection.NotIn:
		if len(f.Values) == 0 {
			return nil, false, false, fmt.Errorf("%w: field %s %s no values", ErrSelector, f.Path, f.Operator)
		}
		return f.Values, f.Operator == selection.NotIn, false, nil
	case selection.Exists, selection.DoesNotExist:
		return nil, f.Operator == selection.DoesNotExist, true, nil
	default:
		return nil, false, false, fmt.Errorf("%w: operator %q on field %s: use =, ==, !=, in, notin or whether it exists", ErrSelector, f.Operator, f.Path)
	}
}

// nodes returns the values that the path has in a decoded body; null is left out. If the body lacks
// the field, there are none.
func (p FieldPath) nodes(of any) []any {
	if len(p) == 0 {
		if of == nil {
			return nil
		}
		return []any{of}
	}
	switch one := p[0]; {
	case one.Key != "":
		if m, ok := of.(map[string]any); ok {
			return p[1:].nodes(m[one.Key])
		}
	case one.Every:
		var out []any
		if l, ok := of.([]any); ok {
			for _, e := range l {
				out = append(out, p[1:].nodes(e)...)
			}
		}
		return out
	default:
		if l, ok := of.([]any); ok && one.Index < len(l) {
			return p[1:].nodes(l[one.Index])
		}
	}
	return nil
}

// textOf returns the text of a decoded JSON value, with which requirements compare. The result is
// false if the value is a list or an object; its text is JSON.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	default:
		b, _ := json.Marshal(v) //nolint:errchkjson // it was JSON
		return string(b), false
	}
}

// holds reports whether the condition holds for a decoded body, as the SQL of write does in the
// database. Numbers in the body must be json.Number.
func (c fieldIs) holds(body any) bool {
	nodes := c.path.nodes(body)
	if c.exists {
		return len(nodes) > 0 != c.not
	}
	if !c.path.lists() && len(nodes) == 0 {
		nodes = []any{""}
	}
	return slices.ContainsFunc(nodes, func(n any) bool {
		text, scalar := textOf(n)
		return (scalar || !c.path.lists()) && slices.Contains(c.values, text)
	}) != c.not
}
