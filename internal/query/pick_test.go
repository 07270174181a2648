package query

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/json"
)

// anything returns random JSON with many names that terms use, and with spaces, escapes and
// brackets in texts.
func anything(r *rand.Rand, depth int) string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	space := func() string { return one("", "", "", " ", "\n\t") }
	if depth == 0 || r.IntN(4) == 0 {
		return one("1", "-2.5e3", "true", "null", `""`, `"True"`, `"a\"b"`, `"\\"`, `"\\\""`, `"}{]["`, `"é\u00e9"`, "{}", "[]", "[ ]", "{ }")
	}
	var parts []string
	for range r.IntN(5) {
		if depth%2 == 1 && r.IntN(2) == 0 {
			parts = append(parts, space()+anything(r, depth-1)+space())
			continue
		}
		parts = nil
		break
	}
	if parts != nil {
		return "[" + strings.Join(parts, ",") + "]"
	}
	for range r.IntN(6) {
		key := one("metadata", "spec", "status", "conditions", "phase", "nodeName", "replicas", "containerStatuses", "deletionTimestamp", "ownerReferences", "annotations", "finalizers",
			"type", "restartCount", "Status", `st\u0061tus`, `x\"y`, "")
		parts = append(parts, space()+`"`+key+`"`+space()+":"+space()+anything(r, depth-1)+space())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// TestPick: the result has the same needed fields as the whole object.
func TestPick(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	shorter := 0
	for range 5_000 {
		body := []byte(anything(r, 5))
		for key, fields := range asksFor {
			some := pick(body, fields)
			if len(some) < len(body) {
				shorter++
			}
			var whole, picked details
			wrong := json.UnmarshalCaseSensitivePreserveInts(body, &whole)
			if err := json.UnmarshalCaseSensitivePreserveInts(some, &picked); strings.Contains(fmt.Sprint(err), "invalid") {
				t.Fatalf("seed %d: %v: %s of %s", seed, err, some, body)
			}
			if diff := cmp.Diff(only(whole, key), only(picked, key)); diff != "" {
				t.Fatalf("seed %d: %s: %s of %s (%v): %s", seed, key, some, body, wrong, diff)
			}
		}
	}
	if shorter < 2_500 {
		t.Errorf("%d are shorter than the whole", shorter)
	}
}

// TestPickOfWhatIsNoJSON: invalid JSON is returned unchanged for the decoder.
func TestPickOfWhatIsNoJSON(t *testing.T) {
	for _, body := range []string{"", "null", "{", `{"status":}`, `{"status":,"spec":1}`, `{"status":{"phase":}}`, `{"status":{"phase":"a}`, `{"status" "a"}`, `{"status":{"phase":"a"}`, `{"status":[1}`} {
		if got := string(pick([]byte(body), asksFor[Phase])); got != body {
			t.Errorf("of %s it takes %s", body, got)
		}
	}
}

// only returns the fields of details that a key needs.
func only(d details, key string) any {
	switch key {
	case Node:
		return d.Spec.NodeName
	case Replicas:
		return d.Spec.Replicas
	case Phase:
		return d.Status.Phase
	case Owner:
		return d.Metadata.OwnerReferences
	case Is:
		return []any{d.Status.Conditions, d.Metadata.DeletionTimestamp}
	case Restarts:
		return []any{d.Status.ContainerStatuses, d.Status.InitContainerStatuses}
	case Has:
		return []any{d.Metadata.Annotations, d.Metadata.Finalizers, d.Metadata.OwnerReferences, d.Spec.NodeName}
	}
	return nil
}
