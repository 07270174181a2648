package v1alpha1

import (
	"encoding/json"
	"testing"
)

// TestSupposedClusterChanges: an empty list of taints is a change, and stays one when it is
// encoded.
func TestSupposedClusterChanges(t *testing.T) {
	for text, want := range map[string]int{
		`{"name":"oak"}`:                                              0,
		`{"name":"oak","taints":null}`:                                0,
		`{"name":"oak","leaves":true}`:                                1,
		`{"name":"oak","labels":{"a":"b"}}`:                           1,
		`{"name":"oak","taints":[]}`:                                  1,
		`{"name":"oak","taints":[{"key":"a","effect":"NoExecute"}]}`:  1,
		`{"name":"oak","labels":{"a":"b"},"taints":[]}`:               2,
		`{"name":"oak","leaves":true,"labels":{"a":"b"},"taints":[]}`: 3,
	} {
		t.Run(text, func(t *testing.T) {
			var c SupposedCluster
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				t.Fatal(err)
			}
			if got := c.Changes(); got != want {
				t.Errorf("%d changes, want %d", got, want)
			}
			encoded, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			var again SupposedCluster
			if err := json.Unmarshal(encoded, &again); err != nil {
				t.Fatal(err)
			}
			if got := again.Changes(); got != want {
				t.Errorf("%d changes after it was encoded as %s, want %d", got, encoded, want)
			}
		})
	}
}
