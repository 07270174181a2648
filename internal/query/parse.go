package query

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/words"
)

// ErrSyntax means that a query is invalid. All errors of Parse wrap it. Their text is for users and
// begins with the text of ErrSyntax.
var ErrSyntax = errors.New("the query is not understood")

// Limits of a query: mostBytes of its text, mostTerms terms, and mostValues values of all terms
// together.
const (
	mostBytes  = 4096
	mostTerms  = 50
	mostValues = 100
)

// Parse parses a query. A text without terms gives the zero Query, which every object matches. An
// error wraps ErrSyntax, and says what is invalid and what to write instead.
func Parse(text string) (Query, error) {
	switch {
	case len(text) > mostBytes:
		return Query{}, wrong("it has %d bytes, and at most %d are read", len(text), mostBytes)
	case !utf8.ValidString(text) || strings.Contains(text, "\x00"):
		return Query{}, wrong("it is not text")
	}
	var q Query
	p := parser{rest: text}
	values := 0
	for p.skip(); p.rest != ""; p.skip() {
		t, err := p.term()
		if err != nil {
			return Query{}, err
		}
		values += len(t.Values)
		if q.Terms = append(q.Terms, t); len(q.Terms) > mostTerms || values > mostValues {
			return Query{}, wrong("it has more than %d terms or %d values", mostTerms, mostValues)
		}
	}
	return q, nil
}

// wrong returns an error that wraps ErrSyntax and adds a reason.
func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSyntax, fmt.Sprintf(format, args...))
}

// parser parses a query from left to right. rest is the text that is not parsed yet: each method
// removes from its beginning what the method has parsed. All errors wrap ErrSyntax.
type parser struct{ rest string }

// skip removes the white space at the beginning of rest.
func (p *parser) skip() { p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace) }

// special reports whether a value that contains the character must be quoted.
func special(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,"\*`, r) }

// ofKey reports whether the character may be in the key of a term, such as kind, or in the key of a
// label.
func ofKey(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./", r)
}

// operators are tried in this order at the beginning of a text. An operator that begins with
// another stands before it, as <= before <.
var operators = []string{"!=", "<=", ">=", ":", "=", "<", ">"}

// term parses the term at the beginning of rest, with its minus, operator and values. rest must not
// begin with white space.
func (p *parser) term() (Term, error) {
	var t Term
	if rest, ok := strings.CutPrefix(p.rest, "-"); ok {
		if t.Not, p.rest = true, rest; rest == "" || unicode.IsSpace(first(rest)) {
			return t, wrong("a minus stands before nothing; write -kind:Pod, or quote it")
		}
	}
	if strings.HasPrefix(p.rest, `"`) {
		v, err := p.value()
		t.Op, t.Values = Equal, []Value{v}
		if err == nil && v.Text == "" {
			err = wrong("an empty word is in every name")
		}
		if err != nil {
			return t, err
		}
		return t, p.ended()
	}
	end := strings.IndexFunc(p.rest, func(r rune) bool { return !ofKey(r) })
	if end < 0 {
		end = len(p.rest)
	}
	key, after := p.rest[:end], p.rest[end:]
	op := ""
	for _, o := range operators {
		if strings.HasPrefix(after, o) {
			op = o
			break
		}
	}
	if op == "" {
		return p.word(t)
	}
	if key == "" {
		return t, wrong("nothing stands before %q; quote a word that has it", op)
	}
	p.rest = after[len(op):]
	known := canonical(key)
	switch {
	case op == "=" || op == "!=":
		if known != "" {
			return t, wrong("%s%s: write %s:VALUE%s, or label:%s%sVALUE if a label is meant", key, op, known, map[bool]string{true: " with a minus before it"}[op == "!="], key, op)
		}
		return p.label(t, key, op)
	case known == "":
		return t, wrong("there is no key %q%s; the keys are %s; quote a word that has %q in it", key, nearest(key), strings.Join(names(), ", "), op)
	case known == Label && op == ":":
		return p.labelled(t)
	}
	t.Key, t.Op = known, Op(op)
	if err := p.values(&t); err != nil {
		return t, err
	}
	return t.check()
}

// word parses a term without a key, such as nginx or web-*. t has what was parsed before: Not.
func (p *parser) word(t Term) (Term, error) {
	end := strings.IndexFunc(p.rest, func(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == ',' })
	if end < 0 {
		end = len(p.rest)
	}
	text := p.rest[:end]
	p.rest = p.rest[end:]
	if strings.ContainsAny(text, ":=<>") {
		return t, wrong("%q is neither a word nor a key with a value; quote it", text)
	}
	t.Op, t.Values = Equal, []Value{{text, strings.Contains(text, "*")}}
	if text == "" {
		return t, wrong("nothing stands before %q", p.rest)
	}
	return t, p.ended()
}

// ended returns an error unless rest is empty or begins with white space, so that the term ends
// here.
func (p *parser) ended() error {
	if p.rest != "" && !unicode.IsSpace(first(p.rest)) {
		return wrong("a blank is missing before %q", p.rest)
	}
	return nil
}

// first returns the first character of s; utf8.RuneError if s is empty.
func first(s string) rune {
	r, _ := utf8.DecodeRuneInString(s)
	return r
}

// labelled parses the rest of a term that begins with label: as KEY, KEY=VALUES or KEY!=VALUES. A
// KEY alone means that the label exists. t has what was parsed before: Not.
func (p *parser) labelled(t Term) (Term, error) {
	end := strings.IndexFunc(p.rest, func(r rune) bool { return !ofKey(r) })
	if end < 0 {
		end = len(p.rest)
	}
	key := p.rest[:end]
	p.rest = p.rest[end:]
	for _, op := range []string{"!=", "="} {
		if rest, ok := strings.CutPrefix(p.rest, op); ok {
			p.rest = rest
			return p.label(t, key, op)
		}
	}
	t.Key, t.Label, t.Op = Label, key, Equal
	if key == "" {
		return t, wrong("label: needs a key, as label:app or label:app=web")
	}
	return t, p.ended()
}

// label parses the values of a term about the label key, after the operator op: = or !=. Without a
// value (app=) the label must be empty, as in selectors of Kubernetes. The operator != inverts
// t.Not.
func (p *parser) label(t Term, key, op string) (Term, error) {
	if key == "" {
		return t, wrong("label: needs a key, as label:app or label:app=web")
	}
	t.Key, t.Label, t.Op = Label, key, Equal
	if op == "!=" {
		t.Not = !t.Not
	}
	if p.rest == "" || unicode.IsSpace(first(p.rest)) { // an empty value, as in selectors
		t.Values = []Value{{}}
		return t, nil
	}
	return t, p.values(&t)
}

// values parses values that are separated by commas, and appends them to t.Values. At least one is
// required, and the term must end after them.
func (p *parser) values(t *Term) error {
	for {
		v, err := p.value()
		if err != nil {
			return err
		}
		t.Values = append(t.Values, v)
		rest, more := strings.CutPrefix(p.rest, ",")
		if !more {
			return p.ended()
		}
		p.rest = rest
	}
}

// value parses one value. A value in quotes is taken literally, and may be empty. Without quotes, *
// makes it a pattern, and no character is an error.
func (p *parser) value() (Value, error) {
	if rest, ok := strings.CutPrefix(p.rest, `"`); ok {
		var text strings.Builder
		for i, escaped := 0, false; i < len(rest); i++ {
			switch c := rest[i]; {
			case !escaped && c == '\\':
				escaped = true
				continue
			case !escaped && c == '"':
				p.rest = rest[i+1:]
				return Value{Text: text.String()}, nil
			default:
				text.WriteByte(c)
			}
			escaped = false
		}
		return Value{}, wrong("a quote is not closed: %q", p.rest)
	}
	end := strings.IndexFunc(p.rest, func(r rune) bool { return unicode.IsSpace(r) || r == ',' || r == '"' })
	if end < 0 {
		end = len(p.rest)
	}
	text := p.rest[:end]
	p.rest = p.rest[end:]
	if text == "" {
		return Value{}, wrong(`a value is missing; nothing is written as ""`)
	}
	return Value{text, strings.Contains(text, "*")}, nil
}

// canonical returns the name of a key as the constants have it: in lower case, and namespace for
// ns. It is "" for an unknown key.
func canonical(key string) string {
	key = strings.ToLower(key)
	if key == "ns" {
		return Namespace
	}
	if slices.Contains(names(), key) {
		return key
	}
	return ""
}

// names returns the names of all keys, in the order of the variable keys.
func names() []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k.name
	}
	return out
}

// nearest returns " (did you mean KEY?)" with the known key that differs least from a mistyped one.
// It is "" if every known key differs in more than two characters, or in as many as the key has.
func nearest(key string) string {
	const typos = 2
	best, meant := typos+1, ""
	for _, k := range append(names(), "ns") {
		if d := distance(strings.ToLower(key), k); d < best && d < len(k) {
			best, meant = d, k
		}
	}
	if meant == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", meant)
}

// distance returns how many bytes must be added, removed or replaced to turn a into b
// (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}

// check verifies that the operator and the values of a parsed term suit its key. It returns the
// term with its values in the form for Matches: number, age, moment, phrases or, for uses, other
// Values. The error wraps ErrSyntax.
func (t Term) check() (Term, error) {
	compares := t.Key == Age || t.Key == Created || t.Key == Restarts || t.Key == Replicas
	switch {
	case !compares && t.Op != Equal:
		return t, wrong("%s is not compared: write %s:VALUE", t.Key, t.Key)
	case !compares && t.Key != Has && t.Key != Is:
		for _, v := range t.Values {
			if v.Text == "" {
				return t, wrong("%s: a value is empty", t.Key)
			}
		}
		if t.Key == Uses {
			return t.used()
		}
		if t.Key == Text || t.Key == Image {
			return t.phrased()
		}
		return t, nil
	case len(t.Values) != 1 && compares:
		return t, wrong("%s is compared with one value", t.Key)
	case compares && t.Op == Equal && (t.Key == Age || t.Key == Created):
		return t, wrong("%s is compared: write %s<VALUE or %s>VALUE", t.Key, t.Key, t.Key)
	}
	text := t.Values[0].Text
	var err error
	switch t.Key {
	case Has, Is:
		for _, v := range t.Values {
			if !slices.Contains(ValuesOf(t.Key), v.Text) {
				return t, wrong("%s:%s: it is one of %s", t.Key, v.Text, strings.Join(ValuesOf(t.Key), ", "))
			}
		}
	case Age:
		t.age, err = duration(text)
	case Created:
		t.moment, err = moment(text)
	default:
		if t.number, err = strconv.ParseInt(text, 10, 64); err != nil {
			err = fmt.Errorf("%q is not a number", text)
		}
	}
	if err != nil {
		return t, wrong("%s: %v", t.Key, err)
	}
	return t, nil
}

// used returns a term with the key uses, such as uses:secret/db-pass, with its values as graph.Term
// writes references: KIND.GROUP/NAME. The error wraps ErrSyntax. It is for another form, an unknown
// kind, and images and nodes, which have keys of their own.
func (t Term) used() (Term, error) {
	values := slices.Clone(t.Values)
	for i, v := range values {
		kind, name, ok := strings.Cut(v.Text, "/")
		switch {
		case !ok || kind == "" || name == "" || len(name) > 253 || strings.Contains(kind, "*"):
			return t, wrong("uses:%s: write uses:KIND/NAME, as in uses:secret/db-pass", v.Text)
		case strings.EqualFold(kind, Image), strings.EqualFold(kind, Node):
			return t, wrong("uses:%s: write %s:%s", v.Text, strings.ToLower(kind), name)
		}
		of, known := graph.ParseKind(kind)
		if !known {
			return t, wrong("uses:%s: %q is no kind to which objects refer; these are %s, and others as KIND.GROUP", v.Text, kind, strings.Join(graph.Names(), ", "))
		}
		values[i].Text = graph.Term(of, name)
	}
	t.Values = values
	return t, nil
}

// phrased returns a term with the key text or image, with the words of each value in phrases.
// Patterns of images get no phrase. A value of text may have one *, at its end. Another * or a
// value without words is an error that wraps ErrSyntax.
func (t Term) phrased() (Term, error) {
	for _, v := range t.Values {
		text, star := v.Text, false
		if v.Glob && t.Key == Image {
			continue
		}
		if v.Glob {
			if text, star = strings.CutSuffix(text, "*"); !star || strings.Contains(text, "*") {
				return t, wrong("%s:%s: a star stands at the end, for the rest of a word", t.Key, v.Text)
			}
		}
		p, err := words.Parse(text, star)
		if err != nil {
			return t, wrong("%s: %v", t.Key, err)
		}
		t.phrases = append(t.phrases, p)
	}
	return t, nil
}

// duration parses an age such as 90s, 15m, 1h30m, 7d, 2w or 1y, up to 200 years. A day has 24
// hours, and a year 365 days. The error does not wrap ErrSyntax.
func duration(text string) (sum time.Duration, err error) {
	bad := fmt.Errorf("%q is not a time such as 90s, 15m, 1h30m, 7d, 2w or 1y", text)
	if text == "" {
		return 0, bad
	}
	const day, longest = 24 * time.Hour, 200 * 365 * 24 * time.Hour
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': day, 'w': 7 * day, 'y': 365 * day}
	for rest := text; rest != ""; {
		end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if end < 1 || end > 11 {
			return 0, bad
		}
		n, err := strconv.ParseInt(rest[:end], 10, 64)
		unit := units[rest[end]]
		if err != nil || unit == 0 || n > int64(longest/unit) {
			return 0, bad
		}
		if sum += time.Duration(n) * unit; sum > longest {
			return 0, bad
		}
		rest = rest[end+1:]
	}
	return sum, nil
}

// moment parses a creation time: a day (2026-11-20), or a day with a time (2026-11-20T10:00Z), in
// UTC unless it has a zone. A time before 1970 is an error. The error does not wrap ErrSyntax.
func moment(text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			if t.Unix() <= 0 {
				return t, fmt.Errorf("%q: nothing was created before 1970", text)
			}
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a day or time such as 2026-11-20 or 2026-11-20T10:00Z", text)
}
