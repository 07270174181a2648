package expression

import (
	"encoding/json"
	"errors"
	"fmt"

	casejson "sigs.k8s.io/json"
)

// tree is what is named of an object: keys, and what is named below each. A leaf is everything below.
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

// read is what is named of a JSON object. The rest is passed over, which takes a tenth of the time of reading it. The body is
// valid JSON, as the store holds it; of what is not, that may not be noticed.
func (t *tree) read(body []byte) (any, error) {
	r := reader{body: body}
	v, err := r.value(t)
	if err != nil {
		return nil, fmt.Errorf("%w at byte %d", err, r.at)
	}
	return v, nil
}

// reader goes through JSON.
type reader struct {
	body []byte
	at   int
}

func (r *reader) blank() {
	for r.at < len(r.body) && (r.body[r.at] == ' ' || r.body[r.at] == '\n' || r.body[r.at] == '\t' || r.body[r.at] == '\r') {
		r.at++
	}
}

// take passes over a character.
func (r *reader) take(c byte) bool {
	r.blank()
	if r.at < len(r.body) && r.body[r.at] == c {
		r.at++
		return true
	}
	return false
}

// value reads what is named of the value that follows. Of what is no object, but has something named in it, it is all.
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

// key reads a key and the colon.
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

// text passes over a string, and says whether there are escapes in it.
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

// skip passes over a value.
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
