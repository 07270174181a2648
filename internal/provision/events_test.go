package provision

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// TestNoteIsCutBetweenCharacters: the note of an Event is valid text and not longer than the API
// accepts, also in JSON.
func TestNoteIsCutBetweenCharacters(t *testing.T) {
	for name, tc := range map[string]struct {
		note string
		want int // length in bytes
	}{
		"Longest":    {strings.Repeat("é", maxNote/2), maxNote},
		"Boundary":   {strings.Repeat("x", maxNote+1), maxNote},
		"InTwo":      {strings.Repeat("é", maxNote), maxNote - 1},
		"InThree":    {strings.Repeat("x", maxNote-len("…")-2) + strings.Repeat("€", 9), maxNote - 2},
		"NoText":     {strings.Repeat("\xff", maxNote), len("\ufffd")},
		"NoTextThen": {"\xff" + strings.Repeat("é", maxNote), maxNote},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(2)
			r := newEventReporter(recorder, cluster("oak", 1), &lifecyclev1alpha1.Operation{})
			r.say(corev1.EventTypeWarning, "Reason", tc.note)
			for range r.objects {
				note := strings.TrimPrefix(<-recorder.Events, corev1.EventTypeWarning+" Reason ")
				text, err := json.Marshal(note)
				if err != nil {
					t.Fatal(err)
				}
				if len(note) != tc.want || len(text) != tc.want+len(`""`) || !utf8.ValidString(note) {
					t.Errorf("%d bytes, %d in JSON, want %d: %q", len(note), len(text)-len(`""`), tc.want, note)
				}
			}
		})
	}
}
