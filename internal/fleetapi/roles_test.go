package fleetapi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/testenv"
)

// TestRolesAreReadAsTheHubReadsThem compares, for random roles that change and are removed
// again, the namespaces in which users have a right with the hub's answer for each namespace.
func TestRolesAreReadAsTheHubReadsThem(t *testing.T) {
	cfg := testenv.Config(0)
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	followed, err := cache.New(cfg, cache.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	known, err := newRoles(t.Context(), followed, func([]access.Subject) {})
	if err != nil {
		t.Fatal(err)
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
	hub, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}

	random := rand.New(rand.NewPCG(1, 2))
	some := func(of ...string) []string {
		picked := slices.Clone(of)
		random.Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
		return picked[:1+random.IntN(2)]
	}
	rules := func() []rbacv1.PolicyRule {
		all := make([]rbacv1.PolicyRule, 1+random.IntN(2))
		for i := range all {
			all[i] = rbacv1.PolicyRule{
				Verbs: some("get", "list", "watch", "*"), APIGroups: some("", "apps", "*"), Resources: some("pods", "deployments", "pods/log", "*"),
			}
			if random.IntN(4) == 0 {
				all[i].ResourceNames = some("web", "db")
			}
		}
		return all
	}
	subject := func(namespace string) rbacv1.Subject {
		switch random.IntN(4) {
		case 0:
			return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: some("alice", "bob")[0]}
		case 1:
			return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: some("devs", "ops")[0]}
		case 2:
			return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "somewhere", Name: "robot"}
		default: // the name of a user, of the wrong kind
			return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "alice"}
		}
	}
	var namespaces []string
	for range 6 {
		namespaces = append(namespaces, testenv.Namespace(t, cfg))
	}
	slices.Sort(namespaces)
	var made []client.Object
	for i := range 6 {
		made = append(made, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("random-%d", i)}, Rules: rules()})
	}
	for i := range 20 {
		meta := metav1.ObjectMeta{Namespace: some(namespaces...)[0], Name: fmt.Sprintf("random-%d", i)}
		// One of these ClusterRoles does not exist.
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: fmt.Sprintf("random-%d", i%7)}
		if random.IntN(2) == 0 {
			ref = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
			made = append(made, &rbacv1.Role{ObjectMeta: meta, Rules: rules()})
		}
		made = append(made, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject(meta.Namespace), subject(meta.Namespace)}})
	}
	for _, o := range made {
		create(t, c, o)
		t.Cleanup(func() { remove(context.Background(), t, c, o) })
	}

	compare := func(what string) {
		t.Helper()
		testenv.Eventually(t, what, testenv.Patience, func() error {
			shown := 0
			for user, groups := range map[string][]string{
				"alice": {"devs", "system:authenticated"}, "bob": {"ops", "devs"}, "carol": {"ops"}, "robot": nil,
				"system:serviceaccount:somewhere:robot": {"system:serviceaccounts"}, "system:serviceaccount:" + namespaces[1] + ":alice": nil,
			} {
				for _, ask := range []authorizationv1.ResourceAttributes{
					{Verb: "list", Resource: "pods"},
					{Verb: "list", Group: "apps", Resource: "deployments"},
					{Verb: "get", Resource: "pods", Name: "web"},
					{Verb: "list", Resource: "secrets"},
					{Verb: "delete", Resource: "pods", Name: "web"},
				} {
					var want []string
					for _, ask.Namespace = range namespaces {
						ask := ask
						answer, err := hub.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
							Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &ask},
						}, metav1.CreateOptions{})
						if err != nil {
							return err
						}
						if answer.Status.Allowed {
							want = append(want, ask.Namespace)
						}
					}
					shown += len(want)
					if d := cmp.Diff(want, known.Namespaces(user, groups, ask), cmpopts.EquateEmpty()); d != "" {
						return fmt.Errorf("%s of %v, %v (-hub +ours):\n%s", user, groups, ask, d)
					}
				}
			}
			if shown == 0 {
				return fmt.Errorf("nobody may do anything")
			}
			return nil
		})
	}
	compare("the roles are read as they were made")

	for _, o := range made {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			o.Rules = rules()
			update(t, c, o)
		case *rbacv1.RoleBinding:
			if o.Subjects = append(o.Subjects[:1], subject(o.Namespace)); random.IntN(3) == 0 {
				remove(t.Context(), t, c, o)
			} else {
				update(t, c, o)
			}
		case *rbacv1.Role:
			if random.IntN(3) == 0 {
				remove(t.Context(), t, c, o)
			}
		}
	}
	compare("the roles are read as they were changed")
}
