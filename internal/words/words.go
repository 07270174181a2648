// Package words is full text: which words an object has, and whether those that are asked for are among them. It is pure.
//
// A word is a run of letters and digits of any script. Case does not matter; of a word the first 60 characters are compared (fewer of scripts
// other than Latin). The text of an object is the words of its fields, one field after the other, in ASCII, so that every database
// cuts it into the same words and compares it by its bytes.
package words

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Bounds of what is read of an object, in bytes.
const (
	most       = 4 << 10  // of all fields together, but for images
	mostImages = 16 << 10 // of all images: whoever asks for an image by its words wants all that have it
	mostField  = 1 << 10  // of one
	mostWord   = 60       // of a word, as the text has it
)

// mostPhrase is how many words a phrase has at most.
const mostPhrase = 32

// End is what stands between the fields of a text: no phrase has it.
const End = "."

// Text is a string; of everything else it is "".
type Text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '"' {
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// unread are annotations that say nothing to people, and change all the time or repeat the object.
var unread = []string{
	"kubectl.kubernetes.io/last-applied-configuration", "control-plane.alpha.kubernetes.io/leader", "endpoints.kubernetes.io/last-change-trigger-time",
}

// Source is where the words of an object are from. The zero value has none.
type Source struct {
	Name        string
	Images      []string // may be repeated
	Reason      string   // of an Event, and its message
	Message     string
	Labels      map[string]string
	Annotations map[string]Text
}

// Of is the source of an object, of which images are those of its pods. Leases, Endpoints and EndpointSlices have no words: they are many, change all the time, and
// say little. Of Secrets annotations are read by their keys alone.
func Of(group, resource, name string, labels map[string]string, annotations map[string]Text, images []string, reason, message Text) Source {
	s := Source{Name: name, Images: images, Labels: labels, Annotations: annotations}
	switch group + "/" + resource {
	case "/secrets": // tools keep copies of what they applied in annotations, data and all
		s.Annotations = make(map[string]Text, len(annotations))
		for key := range annotations {
			s.Annotations[key] = ""
		}
	case "coordination.k8s.io/leases", "/endpoints", "discovery.k8s.io/endpointslices":
		return Source{}
	case "/events", "events.k8s.io/events":
		s.Reason, s.Message = string(reason), string(message)
	}
	return s
}

// each calls f with the fields, until they are as much as is read of an object.
func (s Source) each(f func(field string)) {
	some := func(left int) func(field string, most int) {
		return func(field string, most int) {
			if field = field[:min(len(field), most, left)]; field != "" {
				left -= len(field)
				f(field)
			}
		}
	}
	add, addImage := some(most), some(mostImages)
	add(s.Name, most) // whole, so that its words lead to whatever is in a name
	for i, image := range s.Images {
		if !slices.Contains(s.Images[:i], image) {
			addImage(image, mostField)
		}
	}
	add(s.Reason, mostField)
	add(s.Message, mostField)
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		add(key+"="+s.Labels[key], mostField)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		if !slices.Contains(unread, key) {
			value := string(s.Annotations[key])
			add(key+"="+value[:min(len(value), mostField)], mostField)
		}
	}
}

// Fingerprint is another for another text, as a rule; 0: there is none.
func (s Source) Fingerprint() int64 {
	if s.Name == "" {
		return 0
	}
	h := fnv.New64a()
	s.each(func(field string) {
		_, _ = h.Write([]byte(field)) // a hash takes everything
		_, _ = h.Write([]byte{0})
	})
	return cmp.Or(int64(h.Sum64()), 1) //nolint:gosec // any number will do
}

// Text is the text of the object: " web . nginx 1 25 . ". A phrase is in it, or is not, as a piece of it.
func (s Source) Text() string {
	var out strings.Builder
	out.WriteByte(' ')
	s.each(func(field string) {
		split(field, func(word string) bool {
			out.WriteString(word)
			out.WriteByte(' ')
			return true
		})
		out.WriteString(End + " ")
	})
	return out.String()
}

// split calls f with each word of a text, until it says that it is enough. Characters other than those of ASCII are written as their number between underscores, which no word has.
func split(text string, f func(word string) bool) {
	word := make([]byte, 0, mostWord)
	full := false // nothing more of the word is taken
	for _, r := range text {
		if !inWord(r) {
			if len(word) > 0 && !f(string(word)) {
				return
			}
			word, full = word[:0], false
			continue
		}
		if full {
			continue
		}
		before := len(word)
		if r = unicode.ToLower(r); r < unicode.MaxASCII {
			word = append(word, string(r)...)
		} else {
			word = append(strconv.AppendInt(append(word, '_'), int64(r), 16), '_')
		}
		if len(word) > mostWord {
			word, full = word[:before], true
		}
	}
	if len(word) > 0 {
		f(string(word))
	}
}

// inWord says whether a character is one of words, and not between them.
func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) }

// Phrase is words that stand one after another in a field.
type Phrase struct {
	words  []string
	prefix bool // the last one is the beginning of a word
}

// Parse reads a phrase from a text; with prefix its last word is the beginning of one.
func Parse(text string, prefix bool) (p Phrase, err error) {
	p.prefix = prefix
	split(text, func(word string) bool {
		p.words = append(p.words, word)
		return len(p.words) <= mostPhrase
	})
	last := []rune(text)
	switch {
	case len(p.words) == 0:
		return p, fmt.Errorf("%q has no letter or digit, and so no word that could be looked for", text)
	case len(p.words) > mostPhrase:
		return p, fmt.Errorf("a phrase of more than %d words", mostPhrase)
	case prefix && (len(p.words[len(p.words)-1]) < 2 || !unicode.In(last[len(last)-1], unicode.L, unicode.N, unicode.M)):
		return p, errors.New("what stands before the star is the beginning of a word, and has at least two characters")
	}
	return p, nil
}

// Piece is what a text has in it if the phrase is in it.
func (p Phrase) Piece() string {
	if p.prefix {
		return " " + strings.Join(p.words, " ")
	}
	return " " + strings.Join(p.words, " ") + " "
}

// In says whether the phrase is in a text.
func (p Phrase) In(text string) bool { return strings.Contains(text, p.Piece()) }

// Word is one that a text must have, or with Prefix one that begins so.
type Word struct {
	Text   string
	Prefix bool
}

// Words are those of the phrase, the longest first: an index leads from them, and the longer ones to less.
func (p Phrase) Words() []Word {
	out := make([]Word, len(p.words))
	for i, word := range p.words {
		out[i] = Word{word, p.prefix && i == len(p.words)-1}
	}
	slices.SortStableFunc(out, func(a, b Word) int { return len(b.Text) - len(a.Text) })
	return slices.Compact(out)
}

// Inside are the words that a text has which has this in it, the longest first: the first and the last of it may be parts of words.
func Inside(text string) (out []Word) {
	inner := strings.TrimFunc(text, inWord)
	split(inner, func(word string) bool {
		out = append(out, Word{Text: word})
		return true
	})
	slices.SortStableFunc(out, func(a, b Word) int { return len(b.Text) - len(a.Text) })
	return slices.Compact(out)
}

// Distinct are the words of a text, once each.
func Distinct(text string) []string {
	out := slices.DeleteFunc(strings.Fields(text), func(word string) bool { return word == End })
	slices.Sort(out)
	return slices.Compact(out)
}
