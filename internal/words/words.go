// Package words implements full text search: it extracts the words of an object, and finds
// words and phrases in them. It is pure.
//
// A word is a run of letters and digits of any script. Case does not matter. Only the first 60
// characters of a word are compared, or fewer in scripts other than Latin. The text of an
// object has the words of its fields, one field after the other, in ASCII. So every database
// splits it into the same words and compares it by bytes.
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

// Limits of the text of an object, in bytes.
const (
	most       = 4 << 10  // of all fields together, without images
	mostImages = 16 << 10 // of all images: a search for an image must find all objects that have it
	mostField  = 1 << 10  // of one field
	mostWord   = 60       // of one word in the text
)

// mostPhrase is the maximum number of words in a phrase, 32. Parse refuses longer phrases.
const mostPhrase = 32

// End is the word that Source.Text puts after each field. No phrase contains End, so no phrase
// matches across two fields.
const End = "."

// Text is a string field of a JSON object that may have another JSON type. Decoding such a value is
// no error and gives "".
type Text string

// UnmarshalJSON implements json.Unmarshaler. A value that is not a JSON string is no error, and
// does not change t.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '"' {
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// unread are the annotations that full text search ignores. They mean nothing to users, and change
// all the time or repeat the object.
var unread = []string{
	"kubectl.kubernetes.io/last-applied-configuration", "control-plane.alpha.kubernetes.io/leader", "endpoints.kubernetes.io/last-change-trigger-time",
}

// Source has the fields of one object in which full text search looks for words. Of makes it. The
// zero value has no words: it is the Source of an object that is not searched.
type Source struct {
	Name        string
	Images      []string // may have duplicates
	Reason      string   // of an Event, as is Message
	Message     string
	Labels      map[string]string
	Annotations map[string]Text
}

// Of returns the Source of an object of the API type group/resource. images are the images of its
// pods; reason and message are used for Events only. Of the annotations of Secrets, only the keys
// are used. Leases, Endpoints and EndpointSlices get the zero Source, without words: they are many,
// change all the time and have little content.
func Of(group, resource, name string, labels map[string]string, annotations map[string]Text, images []string, reason, message Text) Source {
	s := Source{Name: name, Images: images, Labels: labels, Annotations: annotations}
	switch group + "/" + resource {
	case "/secrets": // tools store applied Secrets with their data in annotations
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

// each calls f with the text of each field, in a fixed order. Empty fields, duplicate images and
// the annotations in unread are left out. A label or an annotation is one field, KEY=VALUE. Fields
// are cut at the limits above, in bytes.
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
	add(s.Name, most) // without the limit mostField, so that all words of the name are found
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

// Fingerprint returns a hash of the fields, and 0 for a Source without a name. The store compares
// hashes to see whether the words of an object have changed. Different fields rarely have the same
// hash.
func (s Source) Fingerprint() int64 {
	if s.Name == "" {
		return 0
	}
	h := fnv.New64a()
	s.each(func(field string) {
		_, _ = h.Write([]byte(field)) // a hash never fails
		_, _ = h.Write([]byte{0})
	})
	return cmp.Or(int64(h.Sum64()), 1) //nolint:gosec // any number but 0 will do, which means without a name
}

// Text returns the words of all fields, in lower case, each with a space on both sides. The word
// End follows each field: " web . nginx 1 25 . ". Without fields the result is " ". The store saves
// this text. An object contains a phrase if its text contains the string Phrase.Piece.
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

// split calls f with each word of a text, in lower case, until f returns false. It writes a
// character outside of ASCII as its hexadecimal number between underscores, so that words are
// ASCII. It cuts words at mostWord bytes, at the end of a character.
func split(text string, f func(word string) bool) {
	word := make([]byte, 0, mostWord)
	full := false // true: the rest of the word is dropped
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

// inWord reports whether a character belongs to a word: a letter, a digit or a combining mark.
func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) }

// Phrase is a sequence of words that must follow each other in one field of an object. The last
// word may be the beginning of a longer word. Parse makes it from the query of a user.
type Phrase struct {
	words  []string
	prefix bool // the last word is only the beginning of a word
}

// Parse reads a phrase from the text that a user typed. If prefix is true, its last word is only
// the beginning of a word. The error, which is for the user, says that the text has no word, or
// more than mostPhrase words. With prefix it may also say that the text does not end with a word,
// or that the last word is a single ASCII character. One character of another script may be a word,
// and few words begin with it.
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
		return p, errors.New("what stands before the star is the beginning of a word, and has at least two characters, or one that is not in ASCII")
	}
	return p, nil
}

// Piece returns the words of the phrase with single spaces around them. Only the Text of an object
// that has the phrase contains this string. If the last word is a prefix, no space follows it.
func (p Phrase) Piece() string {
	if p.prefix {
		return " " + strings.Join(p.words, " ")
	}
	return " " + strings.Join(p.words, " ") + " "
}

// In reports whether text, as Source.Text returns it, contains the phrase.
func (p Phrase) In(text string) bool { return strings.Contains(text, p.Piece()) }

// Word is one word that an object must have to match a phrase. If Prefix is true, Text is only the
// beginning of that word.
type Word struct {
	Text   string
	Prefix bool
}

// Words returns the words of the phrase, the longest first. Callers search for them in an index,
// and longer words occur in fewer objects. Words may repeat.
func (p Phrase) Words() []Word {
	out := make([]Word, len(p.words))
	for i, word := range p.words {
		out[i] = Word{word, p.prefix && i == len(p.words)-1}
	}
	slices.SortStableFunc(out, func(a, b Word) int { return len(b.Text) - len(a.Text) })
	return slices.Compact(out)
}

// Inside returns the complete words in a piece of text, the longest first. Every text that contains
// the piece has these words. The letters and digits at both ends of the piece are ignored, because
// they may belong to longer words. The result is nil if no other word remains. The store finds
// names by a part of them with it.
func Inside(text string) (out []Word) {
	inner := strings.TrimFunc(text, inWord)
	split(inner, func(word string) bool {
		out = append(out, Word{Text: word})
		return true
	})
	slices.SortStableFunc(out, func(a, b Word) int { return len(b.Text) - len(a.Text) })
	return slices.Compact(out)
}

// Distinct returns the words of a text that Source.Text returned, sorted, without duplicates and
// without End.
func Distinct(text string) []string {
	out := slices.DeleteFunc(strings.Fields(text), func(word string) bool { return word == End })
	slices.Sort(out)
	return slices.Compact(out)
}
