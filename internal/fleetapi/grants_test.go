package fleetapi

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"orrery.dev/orrery/internal/access"
)

// askedHub answers access reviews, and records them.
type askedHub struct {
	authorizationclient.SubjectAccessReviewInterface

	allowed bool
	asked   []string
	during  func() // called during each review
}

func (h *askedHub) Create(_ context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	h.asked = append(h.asked, r.Spec.User+" "+r.Spec.ResourceAttributes.Verb)
	r.Status.Allowed = h.allowed
	if h.during != nil {
		h.during()
	}
	return r, nil
}

// TestVerdictsEndWithTheRolesThatTheyAreOf: an answer of the hub is cached until the hub's RBAC
// changes, and not at all if that changes during the review.
func TestVerdictsEndWithTheRolesThatTheyAreOf(t *testing.T) {
	hub := &askedHub{allowed: true}
	a := newAuthorizer(hub, nil, true)
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"})
	may := func() string {
		t.Helper()
		switch err := a.resource(ctx, authorizationv1.ResourceAttributes{Verb: "watch", Resource: "pods", Namespace: "shop"}); {
		case err == nil:
			return "allowed"
		case apierrors.IsForbidden(err):
			return "forbidden"
		default:
			return err.Error()
		}
	}
	var verdicts []string
	say := func(what string) {
		verdicts = append(verdicts, fmt.Sprintf("%s: %s, asked %d times", what, may(), len(hub.asked)))
	}
	say("first")
	say("again")
	hub.allowed = false
	roles := []access.Subject{{Name: "alice"}}
	a.changes.add(roles)
	say("role withdrawn")
	say("again")
	hub.allowed = true
	hub.during = func() { hub.allowed = false; a.changes.add(roles) }
	a.changes.add(roles)
	say("allowed, and withdrawn meanwhile")
	hub.during = nil
	say("again")
	if diff := cmp.Diff([]string{
		"first: allowed, asked 1 times", "again: allowed, asked 1 times",
		"role withdrawn: forbidden, asked 2 times", "again: forbidden, asked 2 times",
		"allowed, and withdrawn meanwhile: allowed, asked 3 times", "again: forbidden, asked 4 times",
	}, verdicts); diff != "" {
		t.Errorf("verdicts (-want, +got):\n%s", diff)
	}
}

// TestGrantsAreReportedWithinTwoSeconds: waiting watches are notified of each change, after the
// cached verdicts are dropped. A notification comes at least one second after the change, when
// the hub's authorizer knows it, too. The clock is that of the test.
func TestGrantsAreReportedWithinTwoSeconds(t *testing.T) {
	for name, changes := range map[string][]time.Duration{
		"One":                     {0},
		"OneOnTheWay":             {0, 990 * time.Millisecond},
		"Many":                    {0, 300 * time.Millisecond, 600 * time.Millisecond, 1500 * time.Millisecond},
		"AfterTheNotification":    {0, 3 * time.Second},
		"TwoAfterTheNotification": {0, 1100 * time.Millisecond, 1200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, forgotten := newGrants(), 0
				g.telling = func(bool) { forgotten++ }
				start := time.Now()
				var notified []time.Duration
				ctx, stop := context.WithCancel(t.Context())
				go func() {
					for {
						select {
						case <-g.wait():
							notified = append(notified, time.Since(start))
						case <-ctx.Done():
							return
						}
					}
				}()
				synctest.Wait()
				for _, at := range changes {
					time.Sleep(at - time.Since(start))
					g.change()
				}
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()
				for _, at := range changes {
					within := false
					for _, when := range notified {
						within = within || when >= at+grantsWindow && when <= at+2*time.Second
					}
					if !within {
						t.Errorf("the change at %s is reported at %v", at, notified)
					}
				}
				if forgotten != len(notified) {
					t.Errorf("notified %d times, and verdicts are forgotten %d times", len(notified), forgotten)
				}
			})
		})
	}
}
