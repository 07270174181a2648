package expression

import (
	"encoding/json"
	"errors"
	"fmt"

	casejson "sigs.k8s.io/json"
)

// tree says which parts of an object an expression reads: a subtree for each key. If whole is true,
// the value at this place is read as a whole. The zero tree reads no key.
type tree struct {
	below map[string]*tree
	whole bool
}

// add adds the value at a path of keys to the parts that are read. The empty path is the whole
// object.
func (t *tree) add(path []string) {
	for _, key := range path {
		if t.below == nil {
			t.below = map[string]*tree{}
		}
		if t.below[key] == nil {
			t.below[key] = &tree{}
		}
		t = t.below[key]
	}
	t.whole = true
}

// errJSON is the error of read for a body that is not JSON.
var errJSON = errors.New("it is not JSON")

// read returns the parts of a JSON object that the tree names; a body with another JSON value is
// returned whole. Skipping the rest takes a tenth of the time of parsing it. The body should be
// valid JSON, as the store has it: errors in skipped parts may not be detected.
func (t *tree) read(body []byte) (any, error) {
	r := reader{body: body}
	v, err := r.value(t)
	if err != nil {
		return nil, fmt.Errorf("%w at byte %d", err, r.at)
	}
	return v, nil
}

// reader reads the JSON in body, from the position at on.
type reader struct {
	body []byte
	at   int
}

// blank skips white space.
func (r *reader) blank() {
	for r.at < len(r.body) && (r.body[r.at] == ' ' || r.body[r.at] == '\n' || r.body[r.at] == '\t' || r.body[r.at] == '\r') {
		r.at++
	}
}

// take skips white space, and then the character c. It returns false, without skipping a character,
// if another one or nothing follows.
func (r *reader) take(c byte) bool {
	r.blank()
	if r.at < len(r.body) && r.body[r.at] == c {
		r.at++
		return true
	}
	return false
}

// value returns the parts of the next value that the tree t names. A value that is not an object is
// returned whole. Keys that the object lacks are left out of the result.
func (r *reader) value(t *tree) (any, error) {
	r.blank()
	if t.whole || r.at >= len(r.body) || r.body[r.at] != '{' {
		from := r.at
		if err := r.skip(); err != nil {
			return nil, err
		}
		var v any
		if err := casejson.UnmarshalCaseSensitivePreserveInts(r.body[from:r.at], &v); err != nil {
			return nil, errJSON
		}
		return v, nil
	}
	r.at++
	out := map[string]any{}
	if r.take('}') {
		return out, nil
	}
	for {
		key, err := r.key()
		if err != nil {
			return nil, err
		}
		if below := t.below[key]; below == nil {
			err = r.skip()
		} else {
			out[key], err = r.value(below)
		}
		switch {
		case err != nil:
			return nil, err
		case r.take(','):
		case r.take('}'):
			return out, nil
		default:
			return nil, errJSON
		}
	}
}

// key reads a key and the colon after it, and returns the key without its escapes.
func (r *reader) key() (string, error) {
	r.blank()
	from := r.at
	escaped, err := r.text()
	if err != nil {
		return "", err
	}
	quoted := r.body[from:r.at]
	if !r.take(':') {
		return "", errJSON
	}
	if !escaped {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var key string
	if json.Unmarshal(quoted, &key) != nil {
		return "", errJSON
	}
	return key, nil
}

// text skips a string in quotes, and reports whether it has escapes.
func (r *reader) text() (escaped bool, err error) {
	if r.at >= len(r.body) || r.body[r.at] != '"' {
		return false, errJSON
	}
	for r.at++; r.at < len(r.body); r.at++ {
		switch r.body[r.at] {
		case '\\':
			escaped = true
			r.at++
		case '"':
			r.at++
			return escaped, nil
		}
	}
	return false, errJSON
}

// skip skips the next value without checking the syntax within it.
func (r *reader) skip() error {
	r.blank()
	depth := 0
	for r.at < len(r.body) {
		switch c := r.body[r.at]; c {
		case '"':
			if _, err := r.text(); err != nil {
				return err
			}
		case '{', '[':
			depth++
			r.at++
			continue
		case '}', ']':
			depth--
			r.at++
		case ',', ':', ' ', '\n', '\t', '\r':
			r.at++
			continue
		default: // a number or word
			from := r.at
			for r.at < len(r.body) && c != ',' && c != '}' && c != ']' && c > ' ' {
				if r.at++; r.at < len(r.body) {
					c = r.body[r.at]
				}
			}
			if r.at == from {
				return errJSON
			}
		}
		if depth == 0 {
			return nil
		}
		if depth < 0 {
			return errJSON
		}
	}
	return errJSON
}
