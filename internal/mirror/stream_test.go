package mirror

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"orrery.dev/orrery/internal/member"
)

// TestStreamOfSecrets: if a cluster sends whole Secrets although their metadata was requested,
// the data is dropped.
func TestStreamOfSecrets(t *testing.T) {
	const line = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Secret","type":"Opaque",` +
		`"metadata":{"namespace":"shop","name":"key","uid":"u","resourceVersion":"7"},"data":{"token":"aHVzaA=="},"stringData":{"more":"hush"}}}`
	api := member.API{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, Resource: "secrets", Namespaced: true}
	s := &stream{api: api, partial: true, body: io.NopCloser(nil), decoder: json.NewDecoder(strings.NewReader(line))}
	e, err := s.next()
	if err != nil || e.Type != watch.Added {
		t.Fatal(e.Type, err)
	}
	raw, err := json.Marshal(e.Object)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(raw); strings.Contains(text, "aHVzaA==") || strings.Contains(text, "hush") || !strings.Contains(text, `"resourceVersion":"7"`) {
		t.Errorf("taken in: %s", text)
	}
	if _, whole := e.Object.(*unstructured.Unstructured); whole {
		t.Error("it is a whole object")
	}
}

// TestStream: a watch is read to its end. A line that is not an event is an error.
func TestStream(t *testing.T) {
	api := member.API{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}
	const added = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1"},"data":{"n":"1"}}}`
	for name, tc := range map[string]struct {
		text string
		want []watch.EventType
		last error
	}{
		"Events":      {added + "\n" + `{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"9"}}}`, []watch.EventType{watch.Added, watch.Bookmark}, io.EOF},
		"BrokenOff":   {added + "\n" + added[:40], []watch.EventType{watch.Added}, io.EOF},
		"Error":       {`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`, []watch.EventType{watch.Error}, io.EOF},
		"UnknownType": {`{"type":"NEWS","object":{}}`, nil, nil},
		"NoJSON":      {`<html>`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{api: api, decoder: json.NewDecoder(strings.NewReader(tc.text))}
			for _, want := range tc.want {
				if e, err := s.next(); err != nil || e.Type != want {
					t.Fatalf("event %q, %v; want %q", e.Type, err, want)
				}
			}
			_, err := s.next()
			if err == nil || tc.last != nil && !errors.Is(err, tc.last) || tc.last == nil && errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v, want %v", err, tc.last)
			}
		})
	}
}
