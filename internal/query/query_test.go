package query

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orrery.dev/orrery/internal/words"
)

var sameTerms = cmp.Options{cmpopts.EquateEmpty(), cmp.AllowUnexported(Term{}, words.Phrase{})}

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"Empty":            {" \t ", ""},
		"Words":            {"web  shop", "web shop"},
		"WordGlob":         {"web-*", "web-*"},
		"QuotedWord":       {`"nginx:1.25"`, `"nginx:1.25"`},
		"QuotedForNothing": {`"web"`, "web"},
		"Keys":             {"kind:Pod PHASE:Pending ns:shop", "kind:Pod phase:Pending namespace:shop"},
		"Not":              {"-kind:Pod -web", "-kind:Pod -web"},
		"NotMinus":         {"--web", `--web`},
		"Values":           {"phase:Pending,Failed", "phase:Pending,Failed"},
		"QuotedValues":     {`name:"a b","c,d","*"`, `name:"a b","c,d","*"`},
		"Escapes":          {`name:"a\"b\\c"`, `name:"a\"b\\c"`},
		"Label":            {"app=web", "label:app=web"},
		"LabelOfKey":       {"label:name=web", "label:name=web"},
		"LabelKey":         {"app.kubernetes.io/name=web", "label:app.kubernetes.io/name=web"},
		"LabelNot":         {"app!=web", "-label:app=web"},
		"LabelNotNot":      {"-app!=web", "label:app=web"},
		"LabelThere":       {"label:app -label:team", "label:app -label:team"},
		"LabelEmpty":       {`app= team=""`, `label:app="" label:team=""`},
		"LabelValues":      {"app=a,b*", "label:app=a,b*"},
		"Compared":         {"age<1h30m age>=2d restarts>3 replicas:0 created>2026-11-20", "age<1h30m age>=2d restarts>3 replicas:0 created>2026-11-20"},
		"Moment":           {"created<2026-11-20T10:00Z", "created<2026-11-20T10:00Z"},
		"Has":              {"has:owner,node -is:ready", "has:owner,node -is:ready"},
		"Uses":             {"uses:cm/app,Secrets/db-* -uses:sc/fast uses:Rollout.argoproj.io/web", "uses:ConfigMap/app,Secret/db-* -uses:StorageClass.storage.k8s.io/fast uses:Rollout.argoproj.io/web"},
		"KindOfGroup":      {"kind:apps/Deployment,po", "kind:apps/Deployment,po"},
		"ValueWithColon":   {"image:repo:5000/a:1", "image:repo:5000/a:1"},
		"Text":             {`-text:back-off,web* text:"a \"b"`, `-text:back-off,web* text:"a \"b"`},
		"Unicode":          {"имя:x", ""},
		"UnicodeValue":     {"label:app=größe", "label:app=größe"},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := Parse(tc.text)
			if tc.want == "" && strings.TrimSpace(tc.text) != "" {
				if !errors.Is(err, ErrSyntax) {
					t.Errorf("%v, want an error", err)
				}
				return
			}
			if err != nil || q.String() != tc.want {
				t.Errorf("%q, %v, want %q", q, err, tc.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct{ text, says string }{
		"UnknownKey":     {"knd:Pod", "did you mean kind?"},
		"FarKey":         {"colour:red", "the keys are"},
		"KeyAsLabel":     {"name=web", "write name:VALUE, or label:name=VALUE"},
		"NoValue":        {"kind:", "a value is missing"},
		"NoValueInList":  {"phase:a,,b", "a value is missing"},
		"EmptyValue":     {`kind:""`, "empty"},
		"EmptyWord":      {`""`, "every name"},
		"EmptyWordInOne": {`""web`, "every name"},
		"TextStar":       {"text:*web", "a star stands at the end"},
		"TextShort":      {"text:w*", "at least two"},
		"TextNoWord":     {`text:"--"`, "no letter or digit"},
		"TextLong":       {`text:"` + strings.Repeat("a ", 40) + `"`, "more than 32 words"},
		"TextCompared":   {"text>a", "is not compared"},
		"Open":           {`name:"web`, "not closed"},
		"OpenWord":       {`"web`, "not closed"},
		"NoBlank":        {`"a"b`, "a blank is missing"},
		"NoBlankInValue": {`name:a"b"`, "a blank is missing"},
		"LoneMinus":      {"kind:Pod - web", "a minus stands before nothing"},
		"NoKey":          {":web", "nothing stands before"},
		"NotCompared":    {"phase>3", "is not compared"},
		"AgeIs":          {"age:1h", "is compared"},
		"BadAge":         {"age<1x", "is not a time"},
		"HugeAge":        {"age<99999999999y", "is not a time"},
		"BadMoment":      {"created>yesterday", "is not a day"},
		"BadNumber":      {"restarts>many", "is not a number"},
		"HugeNumber":     {"restarts>99999999999999999999", "is not a number"},
		"TwoNumbers":     {"restarts:1,2", "one value"},
		"UnknownHas":     {"has:wings", "it is one of"},
		"UsesNoName":     {"uses:secret", "write uses:KIND/NAME"},
		"UsesNoKind":     {"uses:/a", "write uses:KIND/NAME"},
		"UsesAnyKind":    {"uses:s*/a", "write uses:KIND/NAME"},
		"UsesLongName":   {"uses:secret/" + strings.Repeat("a", 254), "write uses:KIND/NAME"},
		"UsesUnknown":    {"uses:unicorn/a", "others as KIND.GROUP"},
		"UsesImage":      {"uses:image/nginx", "write image:nginx"},
		"UsesNode":       {"uses:Node/n1", "write node:n1"},
		"Operators":      {"a<b", "there is no key"},
		"NoLabel":        {"label:=x", "needs a key"},
		"Comma":          {"a,b", "a blank is missing"},
		"Long":           {strings.Repeat("a", mostBytes+1), "bytes"},
		"ManyTerms":      {strings.Repeat("a ", mostTerms+1), "more than"},
		"ManyValues":     {"name:a" + strings.Repeat(",a", mostValues), "more than"},
		"NUL":            {"a\x00b", "not text"},
		"NoText":         {"\xff", "not text"},
	} {
		t.Run(name, func(t *testing.T) {
			if q, err := Parse(tc.text); !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%q, %v, want an error that says %q", q, err, tc.says)
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("several reasons: %v", err)
			}
		})
	}
}

// FuzzParse: the text of a parsed query parses to the same query.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"kind:Pod phase:Pending cluster:eu-* age<1h image:nginx", `-name:"a \"b\\",c* app!=web label:x=,`, "--x", `"-x" "*"`, "a*b", "label:a", "age>=1d2h", `text:a-b,"c d",ef*`,
		`"a`, "-", "x:", "=", `name:a\`, "restarts<=-1",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(q.String())
		if err != nil {
			if len(q.String()) > mostBytes {
				return
			}
			t.Fatalf("%q as %q: %v", text, q, err)
		}
		if diff := cmp.Diff(q, again, sameTerms); diff != "" {
			t.Errorf("%q as %q: %s", text, q, diff)
		}
		q.Matches(Object{Name: text, Body: []byte(`{"spec":{"replicas":1}}`)}, time.Unix(1, 0))
	})
}

const aPod = `{"metadata":{"name":"web-1","namespace":"shop","annotations":{"a":"b"},"ownerReferences":[{"kind":"ReplicaSet","name":"web-5d"}]},
 "spec":{"nodeName":"n1","containers":[{"image":"docker.io/nginx:1.25"}],"initContainers":[{"image":"init"}]},
 "status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"restartCount":3},{"restartCount":1}]}}`

func TestMatches(t *testing.T) {
	now := time.Date(2026, 11, 20, 10, 0, 0, 500, time.UTC)
	o := Object{
		Cluster: "eu-1", Kind: "Pod", Resource: "pods", Namespace: "shop", Name: "web-1", Aliases: []string{"pods", "pod", "po"},
		Labels: map[string]string{"app": "web", "empty": ""}, Created: now.Add(-time.Hour).Truncate(time.Second), Body: []byte(aPod),
	}
	for text, want := range map[string]bool{
		"": true, "web": true, "eb-": true, "Web": false, "we*": true, "eb*": false, "-web": false,
		"kind:Pod": true, "kind:po": true, "kind:PODS": true, "kind:Service": false, "-kind:Service": true, "kind:P*": true, "kind:apps/Pod": false,
		"cluster:eu-*": true, "cluster:us-1,eu-1": true, "-cluster:eu-1": false, "ns:shop": true, "ns:s*p": true, "ns:s": false,
		"name:web-1": true, "name:web": false, "name:*-*": true, `name:"web*"`: false,
		"app=web": true, "app!=web": false, "app=w*,x": true, "label:app": true, "-label:app": false, "team=a": false, "team!=a": true, "-label:team": true, `empty=`: true, "team=": false,
		"node:n1": true, "node:n*": true, "-node:n2": true, "phase:Running": true, "phase:Pending,Running": true, "-phase:Running": false, "-phase:Pending": true,
		"image:nginx": true, "image:ngin": false, "image:Nginx:1": false, "image:nginx:1": true, "image:docker.io/nginx:1.25": true, "image:io/25": false, "image:redis,nginx:1.2*": false, "image:redis,*:1.2*": true, "image:nginx*": false, "image:*nginx*": true, "image:init": true, "-image:redis": true, "-image:init": false,
		"text:web": true, "text:we": false, "text:we*": true, "text:nginx:1.25": true, "text:nginx:1": true, "text:nginx:2": false, `text:"app web"`: true, "text:b": true, "-text:b": false, "-text:c": true, "text:c,WEB": true, "text:ready": false,
		"owner:web-5d": true, "owner:ReplicaSet/*": true, "owner:Job/*": false, "-owner:x": true,
		"restarts>3": true, "restarts:4": true, "restarts<4": false, "restarts<=4": true, "restarts>=5": false, "-restarts>3": false,
		"replicas:0": false, "-replicas:0": false, // it has none
		"has:owner": true, "has:annotation,finalizer": true, "-has:finalizer": true, "has:finalizer": false, "has:image": true, "has:label": true, "has:node": true,
		"is:ready": true, "-is:ready": false, "is:terminating": false, "-is:terminating": true,
		"age<1h": false, "age<=1h": false, "age>1h": true, "age>=1h": true, "age<2h": true, "-age<2h": false, "-age<1h": true,
		"created>2026-11-20": true, "created<2026-11-20T09:00Z": false, "created<=2026-11-20T09:00Z": true, "created>2026-11-20T09:00": false, "created>=2026-11-20T09:00:00Z": true,
		"kind:Pod phase:Running app=web web": true, "kind:Pod phase:Running app=db": false,
	} {
		t.Run(text, func(t *testing.T) {
			q, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := q.Matches(o, now); got != want {
				t.Errorf("%t, want %t", got, want)
			}
		})
	}
}

// TestAbsent: an object without the field matches neither the term nor its negation.
func TestAbsent(t *testing.T) {
	for _, text := range []string{"phase:x", "-phase:x", "node:x", "-node:x", "image:x", "-image:x", "restarts:0", "-restarts:0", "is:ready", "-is:ready", "age<1h", "-age<1h"} {
		q, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if q.Matches(Object{Name: "x", Body: []byte(`{}`)}, time.Now()) {
			t.Errorf("%s matches what has none", text)
		}
	}
}
