package fleetapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// TestConsoleLinks: a link is for the user of the request, who must have the right to create
// it. A console session creates no link, which would outlast the session.
func TestConsoleLinks(t *testing.T) {
	hub, err := kubernetes.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	var of user.Info
	expires := metav1.NewTime(time.Unix(1_900_000_000, 0).UTC())
	a := &api{
		authorizer: newAuthorizer(hub.AuthorizationV1().SubjectAccessReviews(), nil, true),
		link: func(who user.Info) (fleetv1alpha1.ConsoleLinkStatus, error) {
			of = who
			return fleetv1alpha1.ConsoleLinkStatus{URL: "https://x/console/#link=y", Expires: expires}, nil
		},
	}
	admin := &user.DefaultInfo{Name: "ann", UID: "7", Groups: []string{user.SystemPrivilegedGroup}, Extra: map[string][]string{"k": {"v"}}}
	for name, c := range map[string]struct {
		method, query, body, header string
		who                         user.Info
		code                        int
		says                        string
	}{
		"Empty":       {who: admin, code: http.StatusCreated, says: `"url":"https://x/console/#link=y"`},
		"AnObject":    {who: admin, body: `{"apiVersion": "fleet.orrery.dev/v1alpha1", "kind": "ConsoleLink", "metadata": {"name": "mine"}}`, code: http.StatusCreated, says: `"name":"mine"`},
		"AnotherKind": {who: admin, body: `{"apiVersion": "v1", "kind": "Pod"}`, code: http.StatusBadRequest, says: "is no ConsoleLink"},
		"Garbage":     {who: admin, body: `{`, code: http.StatusBadRequest, says: "as JSON"},
		"TooLong":     {who: admin, body: strings.Repeat(" ", longestLink+1), code: http.StatusBadRequest, says: "too large"},
		"DryRun":      {who: admin, query: "?dryRun=All", code: http.StatusBadRequest, says: "dryRun"},
		"Get":         {who: admin, method: http.MethodGet, code: http.StatusMethodNotAllowed, says: "consolelinks"},
		"NoRight":     {who: &user.DefaultInfo{Name: "bob"}, code: http.StatusForbidden, says: `\"bob\" cannot create resource \"consolelinks\"`},
		"Nobody":      {who: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.SystemPrivilegedGroup}}, code: http.StatusForbidden, says: "nobody is logged in"},
		"ASession":    {who: admin, header: "true", code: http.StatusForbidden, says: "outlast"},
	} {
		t.Run(name, func(t *testing.T) {
			of = nil
			method := http.MethodPost
			if c.method != "" {
				method = c.method
			}
			r := httptest.NewRequestWithContext(request.WithUser(context.Background(), c.who), method, fleetv1alpha1.ConsoleLinksPath+c.query, strings.NewReader(c.body))
			if c.header != "" {
				r.Header.Set(fleetv1alpha1.ConsoleHeader, c.header)
			}
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if c.code != http.StatusCreated {
				if of != nil {
					t.Error("a link was made")
				}
				return
			}
			var made fleetv1alpha1.ConsoleLink
			if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil || made.Kind != "ConsoleLink" || !made.Status.Expires.Equal(&expires) || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%v %s", err, w.Body)
			}
			if diff := cmp.Diff(user.Info(admin), of); diff != "" {
				t.Error(diff)
			}
		})
	}
}
