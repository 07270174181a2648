package query

import (
	"bytes"
	"slices"
)

// field is a field of an object's JSON on the second level, such as inner nodeName in outer spec.
type field struct{ outer, inner string }

// asksFor has, by the key of a term, the JSON fields that decide the term. A key that is missing
// here, such as text, needs all fields of details.
var asksFor = map[string][]field{
	Node: {{"spec", "nodeName"}}, Replicas: {{"spec", "replicas"}}, Phase: {{"status", "phase"}}, Owner: {{"metadata", "ownerReferences"}},
	Is:       {{"status", "conditions"}, {"metadata", "deletionTimestamp"}},
	Restarts: {{"status", "containerStatuses"}, {"status", "initContainerStatuses"}},
	Has:      {{"metadata", "annotations"}, {"metadata", "finalizers"}, {"metadata", "ownerReferences"}, {"spec", "nodeName"}},
	// The fields of Object decide these keys, so no field of details is needed.
	Word: {}, Kind: {}, Cluster: {}, Namespace: {}, Name: {}, Label: {}, Image: {}, Age: {}, Created: {}, Uses: {},
}

// fields returns the JSON fields that the terms need, for pick. nil means all fields, and an empty
// list none.
func (q Query) fields() []field {
	out := []field{}
	for _, t := range q.Terms {
		some, known := asksFor[t.Key]
		if !known {
			return nil
		}
		out = append(out, some...)
	}
	return out
}

// pick returns a JSON object with only the given fields of the JSON object body; nil fields: all.
// Matches decodes the result in a fraction of the time, because pick skips other values without
// parsing them. If body is invalid, or has keys with escapes, pick returns body.
func pick(body []byte, fields []field) []byte {
	if fields == nil {
		return body
	}
	out := make([]byte, 1, 512)
	out[0] = '{'
	comma := func() {
		if last := out[len(out)-1]; last != '{' {
			out = append(out, ',')
		}
	}
	copied := func(key, value []byte) {
		comma()
		out = append(append(append(append(out, '"'), key...), `":`...), value...)
	}
	ok := members(body, func(key, value []byte) bool {
		if !slices.ContainsFunc(fields, func(f field) bool { return f.outer == string(key) }) {
			return true
		}
		if value[0] != '{' {
			copied(key, value)
			return true
		}
		comma()
		out = append(append(append(out, '"'), key...), `":{`...)
		ok := members(value, func(inner, value []byte) bool {
			if slices.ContainsFunc(fields, func(f field) bool { return f.outer == string(key) && f.inner == string(inner) }) {
				copied(inner, value)
			}
			return true
		})
		out = append(out, '}')
		return ok
	})
	if !ok {
		return body
	}
	return append(out, '}')
}

// members calls f with each key (without quotes) and value of a JSON object, until f returns false.
// Both are parts of object, and must not be changed. It returns true at the end of the object. It
// returns false if f did, for invalid JSON, and for a key with a backslash.
func members(object []byte, f func(key, value []byte) bool) bool {
	i := space(object, 0)
	if i == len(object) || object[i] != '{' {
		return false
	}
	if i = space(object, i+1); i < len(object) && object[i] == '}' {
		return true
	}
	for i < len(object) && object[i] == '"' {
		end := text(object, i)
		if end < 0 || bytes.IndexByte(object[i:end], '\\') >= 0 {
			return false
		}
		key := object[i+1 : end-1]
		if i = space(object, end); i == len(object) || object[i] != ':' {
			return false
		}
		from := space(object, i+1)
		to := value(object, from)
		if to <= from || !f(key, object[from:to]) { // invalid JSON has no value there
			return false
		}
		if i = space(object, to); i == len(object) {
			return false
		}
		if object[i] == '}' {
			return true
		}
		i = space(object, i+1) // after a comma
	}
	return false
}

// space returns the index of the first byte from i on that is not white space; len(b) if there is
// none.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// text returns the index after the JSON string whose opening quote is at i; -1 if the string does
// not end.
func text(b []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		from := i
		i += n
		escapes := 0
		for j := i - 1; j >= from && b[j] == '\\'; j-- {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// value returns the index after the JSON value that starts at i, without checking its syntax. It
// returns i before a comma, white space or a closing bracket, and -1 if the value does not end.
func value(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = text(b, i); i < 0 || depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return -1
}
