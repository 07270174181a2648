package fleetapi

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/testenv"
)

// countedReviews sends reviews to a hub, and records their users.
type countedReviews struct {
	authorizationclient.SubjectAccessReviewInterface

	asked []string
}

func (c *countedReviews) Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	c.asked = append(c.asked, r.Spec.User)
	return c.SubjectAccessReviewInterface.Create(ctx, r, o)
}

// stoppedClock always shows the same time.
type stoppedClock time.Time

func (c stoppedClock) Now() time.Time { return time.Time(c) }

// TestVerdictsSurviveChangesOfOthers: changes of roles and bindings of others cause no new
// review for a user. A change for the user, or for one of the user's groups, does, and its
// answer holds.
func TestVerdictsSurviveChangesOfOthers(t *testing.T) {
	cfg := testenv.Config(0)
	hub, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	followed, err := ctrlcache.New(cfg, ctrlcache.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	reviews := &countedReviews{SubjectAccessReviewInterface: hub.AuthorizationV1().SubjectAccessReviews()}
	a := newAuthorizer(reviews, nil, true)
	now := time.Now()
	a.verdicts, a.changes.now = cache.NewLRUExpireCacheWithClock(verdictsKept, stoppedClock(now)), func() time.Time { return now }
	if a.roles, err = newRoles(t.Context(), followed, a.changes.add); err != nil {
		t.Fatal(err)
	}

	namespace, other := testenv.Namespace(t, cfg), testenv.Namespace(t, cfg)
	named := func(in, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: in, Name: "verdicts-" + namespace + "-" + name}
	}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: named("", name).Name}
	}
	someone := func(kind, name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}}
	}
	see := []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	role := &rbacv1.Role{ObjectMeta: named(namespace, "see"), Rules: see}
	clusterRole := &rbacv1.ClusterRole{ObjectMeta: named("", "see"), Rules: see}
	alices := &rbacv1.RoleBinding{ObjectMeta: named(namespace, "alice"), RoleRef: ref("Role", "see"), Subjects: someone(rbacv1.UserKind, "alice")}
	devs := &rbacv1.ClusterRoleBinding{ObjectMeta: named("", "devs"), RoleRef: ref("ClusterRole", "see"), Subjects: someone(rbacv1.GroupKind, "alices")}
	othersRole := &rbacv1.ClusterRole{ObjectMeta: named("", "others"), Rules: see}
	bobs := &rbacv1.RoleBinding{ObjectMeta: named(namespace, "bob"), RoleRef: ref("ClusterRole", "others"), Subjects: someone(rbacv1.UserKind, "bob")}
	bobsEverywhere := &rbacv1.ClusterRoleBinding{ObjectMeta: named("", "bob"), RoleRef: ref("ClusterRole", "others"), Subjects: someone(rbacv1.UserKind, "bob")}
	sameNameElsewhere := &rbacv1.Role{ObjectMeta: named(other, "see"), Rules: see}

	create := func(o client.Object) {
		t.Helper()
		create(t, c, o)
		t.Cleanup(func() { remove(context.Background(), t, c, o) })
	}
	remove := func(o client.Object) {
		t.Helper()
		remove(t.Context(), t, c, o)
	}
	update := func(o client.Object) {
		t.Helper()
		update(t, c, o)
	}
	may := func() (allowed bool) {
		t.Helper()
		ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice", Groups: []string{"alices"}})
		testenv.Eventually(t, "alice's rights are known", testenv.Patience, func() error {
			err := a.resource(ctx, authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods", Namespace: namespace})
			if allowed = err == nil; apierrors.IsForbidden(err) {
				return nil
			}
			return err
		})
		return allowed
	}
	// of returns the number of the last change for a user.
	of := func(user string) uint64 { return a.changes.of(user, []string{user + "s"}).number }
	// seen makes a change, and waits until it is counted for a user.
	seen := func(what, user string, do func()) {
		t.Helper()
		before := of(user)
		do()
		testenv.Eventually(t, what+" is seen", testenv.Patience, func() error {
			if is := of(user); is <= before {
				return fmt.Errorf("the last change of %s is %d", user, is)
			}
			return nil
		})
	}
	// becomes makes a change for alice, and waits until the hub's authorizer knows it and has
	// another answer.
	becomes := func(what string, want bool, do func()) {
		t.Helper()
		seen(what, "alice", do)
		testenv.Eventually(t, what, testenv.Patience, func() error {
			a.changes.add([]access.Subject{{Name: "alice"}})
			if got := may(); got != want {
				return fmt.Errorf("alice may list pods: %t", got)
			}
			return nil
		})
		a.changes.repeat(false)
		if may() != want { // the answer is cached
			t.Errorf("%s: alice may list pods: %t", what, !want)
		}
	}

	for _, o := range []client.Object{role, clusterRole, othersRole} {
		create(o)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- followed.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	testenv.Eventually(t, "the roles are read", testenv.Patience, func() error {
		if !a.roles.known() {
			return fmt.Errorf("they are not known")
		}
		return nil
	})
	becomes("a binding", true, func() { create(alices) })
	reviews.asked = nil
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"a binding of bob", func() { create(bobs) }},
		{"a binding of bob's everywhere", func() { create(bobsEverywhere) }},
		{"bob's role", func() {
			othersRole.Rules = append(othersRole.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}})
			update(othersRole)
		}},
		{"a binding that bob loses", func() { remove(bobs) }},
		{"a role of the same name, and bob's other loss", func() { create(sameNameElsewhere); remove(bobsEverywhere) }},
	} {
		seen(step.what, "bob", step.do)
		a.changes.repeat(false)
		if !may() {
			t.Errorf("after %s alice may not list pods", step.what)
		}
	}
	if diff := cmp.Diff([]string(nil), reviews.asked); diff != "" {
		t.Errorf("the hub was asked about alice after changes of others: %s", diff)
	}

	becomes("other rules of the role", false, func() {
		role.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
		update(role)
	})
	becomes("a role of the group", true, func() { create(devs) })
	becomes("the end of that role", false, func() { remove(clusterRole) })
	becomes("the rules of before", true, func() { role.Rules = see; update(role) })
	becomes("the end of the binding", false, func() { remove(alices) })
}

// TestVerdictLifetime: an answer is cached for long if every change that invalidates it is
// seen, and the hub's authorizer knows the last one.
func TestVerdictLifetime(t *testing.T) {
	now, known := time.Unix(1_700_000_000, 0), true
	seen := &roles{synced: nil}
	unseen := &roles{}
	unseen.synced = append(unseen.synced, func() bool { return !known })
	for name, tc := range map[string]struct {
		alone   bool
		roles   *roles
		changed time.Time
		want    time.Duration
	}{
		"Seen":            {true, seen, time.Time{}, verdictLifetimeSeen},
		"ChangedLongAgo":  {true, seen, now.Add(-changeSettles), verdictLifetimeSeen},
		"ChangedJustNow":  {true, seen, now.Add(-time.Second), verdictLifetime},
		"OthersAuthorize": {false, seen, time.Time{}, verdictLifetime},
		"NotKnownYet":     {true, unseen, time.Time{}, verdictLifetime},
		"NoRoles":         {true, nil, time.Time{}, verdictLifetime},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAuthorizer(nil, tc.roles, tc.alone)
			a.changes.now = func() time.Time { return now }
			if got := a.lifetime(tc.changed); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// TestSubjectChanges: a change counts for its subjects, and once more in repeat. A change of
// too many subjects counts for everyone.
func TestSubjectChanges(t *testing.T) {
	c := newSubjectChanges()
	alice, devs := access.Subject{Name: "alice"}, access.Subject{Group: true, Name: "devs"}
	numbers := func() [3]uint64 {
		return [3]uint64{c.of("alice", nil).number, c.of("bob", []string{"devs", "ops"}).number, c.of("devs", []string{"alice"}).number}
	}
	var got [][3]uint64
	for _, do := range []func(){
		func() {},
		func() { c.add(nil) },
		func() { c.add([]access.Subject{alice}) },
		func() { c.add([]access.Subject{devs}) },
		func() { c.repeat(true) },  // both
		func() { c.repeat(false) }, // both: the call before announced it
		func() { c.repeat(false) },
		func() { c.add(make([]access.Subject, 1)); c.add(manySubjects()) },
	} {
		do()
		got = append(got, numbers())
	}
	want := [][3]uint64{{}, {}, {1, 0, 0}, {1, 2, 0}, {3, 3, 0}, {4, 4, 0}, {4, 4, 0}, {6, 6, 6}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func manySubjects() []access.Subject {
	all := make([]access.Subject, mostSubjects+1)
	for i := range all {
		all[i].Name = fmt.Sprint(i)
	}
	return all
}
