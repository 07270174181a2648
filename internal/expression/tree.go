package expression

import (
	"encoding/json"
	"errors"
	"fmt"

	casejson "sigs.k8s.io/json"
)

// tree has the keys of an object that an expression reads, and below each key the same. A leaf
// stands for the whole value.
type tree struct {
	below map[string]*tree
	whole bool
}

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

var errJSON = errors.New("it is not JSON")

// read returns the named parts of a JSON object. Skipping the rest takes a tenth of the time of
// parsing it. The body must be valid JSON, as in the store: errors in skipped parts may not be
// detected.
func (t *tree) read(body []byte) (any, error) {
	r := reader{body: body}
	v, err := r.value(t)
	if err != nil {
		return nil, fmt.Errorf("%w at byte %d", err, r.at)
	}
	return v, nil
}

// reader reads JSON from at on.
type reader struct {
	body []byte
	at   int
}

func (r *reader) blank() {
	for r.at < len(r.body) && (r.body[r.at] == ' ' || r.body[r.at] == '\n' || r.body[r.at] == '\t' || r.body[r.at] == '\r') {
		r.at++
	}
}

// take consumes the character c, after blanks. It returns false if another one follows.
func (r *reader) take(c byte) bool {
	r.blank()
	if r.at < len(r.body) && r.body[r.at] == c {
		r.at++
		return true
	}
	return false
}

// value reads the named parts of the next value. A value that is not an object is returned
// whole.
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

// key reads a key and the colon after it.
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

// text skips a string and reports whether it has escapes.
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

// skip skips a value.
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
