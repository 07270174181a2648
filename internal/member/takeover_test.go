package member

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	testclock "k8s.io/utils/clock/testing"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
)

// TestAgentsToken: a condition warns of the end of an agent's token that the agent does not
// renew.
func TestAgentsToken(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Now())
	f, site := startPull(t, Options{Clock: clock})
	c, _ := f.pullReady(t, site, "oak")
	f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	clock.SetTime(time.Now().Add(31 * time.Minute))
	said := f.until(t, "oak", credentialsExpiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon)
	if m := meta.FindStatusCondition(said.Status.Conditions, credentialsExpiring).Message; !strings.Contains(m, "orrery cluster rejoin oak") {
		t.Errorf("the condition does not say the way out: %s", m)
	}
	if err := f.offer(t, c, offered(t, testenv.Config(1), "hub"), false); err != nil {
		t.Fatal(err)
	}
	f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	clock.SetTime(clock.Now().Add(2 * time.Hour))
	f.until(t, "oak", credentialsExpiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpired)
	f.untilEvent(t, "oak", "CredentialsExpired")
}

// TestAgentTakesOver: after an agent has taken over a cluster that was joined by kubeconfig,
// the hub has only the permissions of the manifest. Permissions that another hub uses stay.
func TestAgentTakesOver(t *testing.T) {
	for name, shared := range map[string]bool{"Alone": false, "BesideAnotherHub": true} {
		t.Run(name, func(t *testing.T) {
			server := testenv.StartServer(t)
			api := clientset(t, server.Config())
			ctx := t.Context()
			f, site := startPull(t, Options{})
			c := f.lodge(t, "oak", server.Kubeconfig())
			if shared {
				binding, err := api.RbacV1().ClusterRoleBindings().Get(ctx, AccountBinding, metav1.GetOptions{})
				if err == nil {
					metav1.SetMetaDataAnnotation(&binding.ObjectMeta, annotationUsedBy+"another", "elm")
					_, err = api.RbacV1().ClusterRoleBindings().Update(ctx, binding, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			// As the manifest does.
			_, err := api.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "orrery-all"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: AccountNamespace, Name: AccountName}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}}
			token, err := api.CoreV1().ServiceAccounts(AccountNamespace).CreateToken(ctx, AccountName, request, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			err = f.offer(t, c, tunnel.Credentials{
				Endpoint: fakeEndpoint, TLSServerName: "localhost", CA: server.Config().CAData, Token: token.Status.Token, Expires: token.Status.ExpirationTimestamp.Time,
			}, true)
			if err != nil {
				t.Fatal(err)
			}
			site.Run("oak", "a", hostOf(server.Config()))
			eventually(t, "the agent is used", func() (bool, string) {
				c = f.cluster(t, "oak")
				return pulls(c), string(c.Spec.SyncMode)
			})
			eventually(t, "the hub's rights of the join are gone", func() (bool, string) {
				binding, err := api.RbacV1().ClusterRoleBindings().Get(ctx, AccountBinding, metav1.GetOptions{})
				if shared {
					return err == nil && binding.DeletionTimestamp == nil && len(binding.Annotations) == 1 && binding.Annotations[annotationUsedBy+"another"] == "elm", fmt.Sprint(binding, err)
				}
				// No garbage collector runs here.
				return apierrors.IsNotFound(err) || err == nil && binding.DeletionTimestamp != nil && binding.Finalizers[0] == metav1.FinalizerOrphanDependents, fmt.Sprint(binding, err)
			})
			f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			if _, err := api.CoreV1().ServiceAccounts(AccountNamespace).Get(ctx, AccountName, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestJoinAndRedemptionAtOnce: a Cluster waits for its agent. The agent and a join by
// kubeconfig come at the same time, in either order. The cluster works in the end, with
// credentials that are bound to the Cluster.
func TestJoinAndRedemptionAtOnce(t *testing.T) {
	f, site := startPull(t, Options{})
	hub := account(t, testenv.Config(1), "hub")
	for i := range 8 {
		name := fmt.Sprintf("oak-%d", i)
		c := f.pull(t, name, nil)
		f.until(t, name, reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonWaitingForAgent)
		given := offered(t, testenv.Config(1), hub)
		agent := site.Run(name, "a", hostOf(testenv.Config(1)))
		var both sync.WaitGroup
		both.Go(func() {
			err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
				err := f.registry.Offer(ctx, name, c.UID, given, true)
				if err != nil && strings.Contains(err.Error(), "try again") {
					return false, nil // as an agent does
				}
				return true, err
			})
			if err != nil {
				t.Errorf("redemption: %v", err)
			}
		})
		both.Go(func() {
			_, err := Join(t.Context(), f.hub, JoinOptions{Name: name, Kubeconfig: testenv.Kubeconfig(1)})
			// The hub or the cluster may not answer in time.
			refused := (*JoinError)(nil)
			if err != nil && (!errors.As(err, &refused) || refused.Reason != ReasonNotConfirmed && refused.Reason != clusterv1alpha1.ReasonUnreachable) {
				t.Errorf("join: %v", err)
			}
		})
		both.Wait()
		eventually(t, "the credentials are settled", func() (bool, string) {
			s, now := f.secret(t, name), f.cluster(t, name)
			return waiting(s, name) == nil && bound(s, now) == nil, fmt.Sprint(now.Spec, s.Annotations)
		})
		f.until(t, name, readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		agent.Stop()
		if err := Unjoin(t.Context(), f.hub, name, false); err != nil {
			t.Fatal(err)
		}
		f.waitGone(t, name)
	}
}
