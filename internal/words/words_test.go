package words

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	long := strings.Repeat("x", 100)
	for name, tc := range map[string]struct {
		s    Source
		want string
	}{
		"Nothing":   {Source{}, " "},
		"Name":      {Source{Name: "web-7d4f.x_Y"}, " web 7d4f x y . "},
		"Order":     {Source{Name: "n", Labels: map[string]string{"b": "2", "a": "1"}, Annotations: map[string]Text{"z": "A b"}, Images: []string{"r/i:1", "r/i:1"}, Reason: "R", Message: "m, n"}, " n . r i 1 . r . m n . a 1 . b 2 . z a b . "},
		"Unicode":   {Source{Name: "Été ЖЖ かな"}, " _e9_t_e9_ _436__436_ _304b__306a_ . "},
		"NotText":   {Source{Name: "a\xffb\x00c"}, " a b c . "},
		"LongWord":  {Source{Name: long}, " " + long[:60] + " . "},
		"LongOther": {Source{Name: strings.Repeat("é", 40) + "a"}, " " + strings.Repeat("_e9_", 15) + " . "},
		"Unread":    {Source{Name: "n", Annotations: map[string]Text{unread[0]: "secret", unread[1]: "x"}}, " n . "},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.s.Text()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestBounded: the size of the text is limited for any object and any field. A change of text
// beyond the limit does not change the fingerprint.
func TestBounded(t *testing.T) {
	s := Source{Name: "n", Annotations: map[string]Text{}}
	for i := range 26 {
		s.Annotations[string(rune('a'+i))] = Text(strings.Repeat("か ", 100_000))
	}
	text, fingerprint := s.Text(), s.Fingerprint()
	if len(text) > 4*most {
		t.Errorf("%d bytes", len(text))
	}
	if strings.Contains(text, " z ") || !strings.Contains(text, " d ") {
		t.Error("it is not the first ones that are read")
	}
	s.Annotations["z"] = "other"
	if s.Fingerprint() != fingerprint || s.Text() != text {
		t.Error("what is not read counts")
	}
	s.Annotations["a"] = "other"
	if s.Fingerprint() == fingerprint || s.Text() == text {
		t.Error("what is read does not count")
	}
}

// TestManyImages: long fields do not reduce the limit for images.
func TestManyImages(t *testing.T) {
	s := Source{Name: "n", Annotations: map[string]Text{"a": Text(strings.Repeat("x ", most))}, Message: strings.Repeat("y ", most)}
	for i := range 100 {
		s.Images = append(s.Images, fmt.Sprintf("registry.example.com/%s/image-%d:v1", strings.Repeat("long", 20), i))
	}
	text := s.Text()
	for _, image := range s.Images {
		p, err := Parse(image, false)
		if err != nil || !p.In(text) {
			t.Fatalf("%s is not in the text: %v", image, err)
		}
	}
}

func TestOf(t *testing.T) {
	of := func(group, resource string) string {
		return Of(group, resource, "n", nil, nil, nil, "BackOff", "it failed").Text()
	}
	for what, want := range map[string]string{
		"/pods": " n . ", "/events": " n . backoff . it failed . ", "events.k8s.io/events": " n . backoff . it failed . ", "other/events": " n . ",
		"coordination.k8s.io/leases": " ", "/endpoints": " ", "discovery.k8s.io/endpointslices": " ",
	} {
		group, resource, _ := strings.Cut(what, "/")
		if got := of(group, resource); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	if (Source{}).Fingerprint() != 0 || (Source{Name: "n"}).Fingerprint() == 0 {
		t.Error("a fingerprint tells whether there is a text")
	}
}

func TestInside(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil, "app": nil, "app-1": nil, "p-123-0": {"123"}, "-a.bc-": {"bc", "a"}, "x-a-a-": {"a"}, "x-É-y": {"_e9_"}, "--": nil,
	} {
		var got []string
		for _, w := range Inside(text) {
			got = append(got, w.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
		name := Of("", "pods", "before"+text+"after", nil, nil, nil, "", "").Text()
		for _, w := range got {
			if !strings.Contains(name, " "+w+" ") {
				t.Errorf("%q is no word of %q", w, name)
			}
		}
	}
}

func TestPhrases(t *testing.T) {
	text := Source{Name: "web-7d4f", Message: "Back-off restarting failed container=été", Labels: map[string]string{"app": "Web"}, Reason: "BackOff"}.Text()
	for asked, want := range map[string]bool{
		"web": true, "WEB": true, "we": false, "we*": true, "7d4f": true, "7d*": true, "web-7d4f": true, "web-7d": false, "web-7d*": true, "eb": false,
		"back off": true, "off back": false, "restarting failed": true, "restarting   FAILED, container": true, "app=web": true, "app web": true,
		"web backoff": false, "7d4f backoff": false, // in two fields
		"été": true, "ÉTÉ": true, "ét*": true, "é*": true, "t*": false, "te": false, "_e9_": false, "e9": false, ".": false, "backoff": true, "backof*": true,
	} {
		phrase, prefix := strings.CutSuffix(asked, "*")
		p, err := Parse(phrase, prefix)
		if got := err == nil && p.In(text); got != want {
			t.Errorf("%q: %t, want %t (%v)", asked, got, want, err)
		}
	}
	for asked, says := range map[string]string{"": "no word", "-": "no word", "*": "no word", "a*": "two characters, or one that is not in ASCII", "web-*": "beginning of a word", strings.Repeat("a ", 40): "more than"} {
		phrase, prefix := strings.CutSuffix(asked, "*")
		if _, err := Parse(phrase, prefix); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", asked, err, says)
		}
	}
}

// naive reports whether the words follow each other in a field, by comparing them one by one.
func naive(fields []string, asked string, prefix bool) bool {
	cut := func(text string) []string {
		return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) })
	}
	want := cut(asked)
	for _, field := range fields {
		have := cut(field)
		for i := range have {
			if len(have)-i < len(want) {
				break
			}
			all := true
			for j, w := range want {
				same := have[i+j] == w || prefix && j == len(want)-1 && strings.HasPrefix(have[i+j], w)
				all = all && same
			}
			if all {
				return true
			}
		}
	}
	return false
}

// TestRandom: a text has a phrase exactly if the phrase's words follow each other in one field.
// It compares random phrases with naive.
func TestRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		return []string{"a", "ab", "abc", "ABC", "é", "éa", "b1", "_", "x.y", "ßß", "か", "٣"}[random.IntN(12)]
	}
	some := func(n int) string {
		out := make([]string, 1+random.IntN(n))
		for i := range out {
			out[i] = word()
		}
		return strings.Join(out, []string{" ", "-", " _ ", "/"}[random.IntN(4)])
	}
	matched := 0
	for range 20_000 {
		s := Source{Name: some(3), Message: some(5), Reason: some(2)}
		asked, prefix := some(3), random.IntN(3) == 0
		p, err := Parse(asked, prefix)
		if err != nil {
			continue
		}
		got, want := p.In(s.Text()), naive([]string{s.Name, s.Message, s.Reason}, asked, prefix)
		if got != want {
			t.Fatalf("%q (prefix %t) in %+v: %t, want %t", asked, prefix, s, got, want)
		}
		if want {
			matched++
			for _, w := range p.Words() { // each of them must be in an index
				found := false
				for _, have := range Distinct(s.Text()) {
					found = found || have == w.Text || w.Prefix && strings.HasPrefix(have, w.Text)
				}
				if !found {
					t.Fatalf("%+v of %q is not among the words of %q", w, asked, s.Text())
				}
			}
		}
	}
	if matched < 1000 {
		t.Errorf("%d matched", matched)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"web", "a b", `"' OR 1=1`, "NEAR(a b)", "a\x00b", "été*", "-", "_12", strings.Repeat("w ", 5000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, w := range Distinct(Source{Name: s}.Text()) {
			if len(w) > mostWord || strings.Trim(w, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Errorf("%q has the word %q", s, w)
			}
		}
		p, err := Parse(s, false)
		if err == nil && len(s) <= mostField && !p.In(Source{Name: s}.Text()) {
			t.Errorf("%q does not have itself", s)
		}
	})
}

func TestTextOfJSON(t *testing.T) {
	var got map[string]Text
	if err := json.Unmarshal([]byte(`{"a":"b","c":1,"d":null,"e":{"f":"g"}}`), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]Text{"a": "b", "c": "", "d": "", "e": ""}, got); diff != "" {
		t.Error(diff)
	}
}
