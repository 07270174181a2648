package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// TestNoHistoryIsNotNoChange: if no type of the fleet has a history, commands say that, and not
// that nothing changed.
func TestNoHistoryIsNotNoChange(t *testing.T) {
	noHistory := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest,
		Message: "no history is kept", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: fleetv1alpha1.CauseNoHistory}}},
	}
	notServed := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "not served",
	}
	for name, tc := range map[string]struct {
		refusal metav1.Status
		serves  string // the only type with a history
		code    int
		want    string
	}{
		"NoHistory": {noHistory, "", 1, "--mirror-history-time"},
		"NotServed": {notServed, "", 1, "--mirror-history-time"},
		"OneType":   {noHistory, "configmaps", 0, "Nothing "},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				path := strings.TrimPrefix(r.URL.Path, fleetv1alpha1.FleetPath)
				switch {
				case tenants{}.serves(w, path):
				case tc.serves != "" && strings.HasSuffix(path, "/"+tc.serves):
					reply(w, http.StatusOK, fleetv1alpha1.ObjectHistory{Items: []fleetv1alpha1.ObjectChange{}})
				default:
					reply(w, int(tc.refusal.Code), tc.refusal)
				}
			}))
			defer server.Close()
			alone(t, server.URL)
			for _, command := range []string{"history --deleted", "diff --since 1h"} {
				var out, errOut bytes.Buffer
				code := Main(strings.Fields(command), strings.NewReader(""), &out, &errOut)
				if code != tc.code || !strings.Contains(out.String()+errOut.String(), tc.want) || tc.code != 0 && out.Len() > 0 {
					t.Errorf("%q: code %d, want %d with %q: %s%s", command, code, tc.code, tc.want, &out, &errOut)
				}
			}
		})
	}
}
