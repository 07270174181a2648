package member

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Objects that a join creates in a cluster, so that the hub need not keep the credentials of a
// person.
const (
	// AccountNamespace and AccountName are those of the hub's ServiceAccount in a member.
	AccountNamespace = "orrery-system"
	AccountName      = "orrery"
	// AccountBinding is the ClusterRoleBinding of that account to cluster-admin. It owns the
	// account, so the garbage collector of the cluster deletes the account after the binding. The
	// account could not be deleted with its own token, because it has no rights without the
	// binding.
	AccountBinding = "orrery:hub"
	// accountUser names the account in grants, and hubAccount in messages.
	accountUser = AccountNamespace + "/" + AccountName
	hubAccount  = "ServiceAccount " + accountUser
	// annotationUsedBy is the prefix of the binding's annotation for each hub that uses it,
	// followed by the hub's ID. The value is the cluster's name on that hub.
	annotationUsedBy = "cluster.orrery.dev/hub-"
	// tokenLife is the requested life of a token. A cluster may grant less.
	tokenLife = 30 * 24 * time.Hour
	// rightsLook is the time between two checks whether a new binding is in force. API servers
	// learn of it by a watch.
	rightsLook = 100 * time.Millisecond
)

// accounts has clients for the objects of the hub's account in a cluster.
type accounts struct {
	namespaces corev1client.NamespaceInterface
	accounts   corev1client.ServiceAccountInterface
	bindings   rbacv1client.ClusterRoleBindingInterface
}

// newAccounts returns clients that wait up to patience for each answer.
func newAccounts(rt http.RoundTripper, c *connection, patience time.Duration) (*accounts, error) {
	core, err := corev1client.NewForConfigAndClient(&rest.Config{Host: c.base.String(), QPS: -1}, &http.Client{Transport: rt, Timeout: patience})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	bindings, err := roleBindings(rt, c, patience)
	if err != nil {
		return nil, err
	}
	return &accounts{namespaces: core.Namespaces(), accounts: core.ServiceAccounts(AccountNamespace), bindings: bindings}, nil
}

// foreignError means that another program owns an object with a name that the hub needs.
type foreignError struct{ what string }

// Error implements error.
func (e *foreignError) Error() string {
	return e.what + " is there already and is not Orrery's (it has no label " + managedByLabel + "=" + managedByUs + "); delete it if nothing needs it"
}

func ours(o metav1.Object) bool { return o.GetLabels()[managedByLabel] == managedByUs }

// ensure creates the missing objects of the account. It is idempotent. added is true if the
// binding did not name this hub before. In that case remove reverts ensure.
func (a *accounts) ensure(ctx context.Context, hubID, cluster string) (added bool, err error) {
	labels := map[string]string{managedByLabel: managedByUs}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: AccountNamespace, Labels: labels}}
	if _, err := a.namespaces.Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("create namespace %s: %w", AccountNamespace, err)
	}
	existing, err := a.accounts.Get(ctx, AccountName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		existing = nil
	case err != nil:
		return false, fmt.Errorf("get %s: %w", hubAccount, err)
	case !ours(existing):
		// Other programs may use it. They would become administrators.
		return false, &foreignError{what: hubAccount}
	}
	binding, added, err := a.bind(ctx, hubID, cluster)
	if err != nil {
		return added, err
	}
	owner := metav1.OwnerReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding", Name: binding.Name, UID: binding.UID}
	if existing != nil && len(existing.OwnerReferences) > 0 && existing.OwnerReferences[0].UID != binding.UID {
		// The garbage collector will delete it, because its owner, an earlier binding, was
		// deleted.
		uid := metav1.NewUIDPreconditions(string(existing.UID))
		if err := a.accounts.Delete(ctx, AccountName, metav1.DeleteOptions{Preconditions: uid}); err != nil && !apierrors.IsNotFound(err) {
			return added, fmt.Errorf("delete %s, which a deleted binding left: %w", hubAccount, err)
		}
		existing = nil
	}
	if existing == nil {
		made := &corev1.ServiceAccount{
			ObjectMeta:                   metav1.ObjectMeta{Name: AccountName, Labels: labels, OwnerReferences: []metav1.OwnerReference{owner}},
			AutomountServiceAccountToken: new(false),
		}
		if _, err := a.accounts.Create(ctx, made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return added, fmt.Errorf("create %s: %w", hubAccount, err)
		}
	}
	return added, nil
}

// bind creates the binding of the account, or adds this hub to it.
func (a *accounts) bind(ctx context.Context, hubID, cluster string) (_ *rbacv1.ClusterRoleBinding, added bool, err error) {
	used := annotationUsedBy + hubID
	wanted := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: AccountBinding, Labels: map[string]string{managedByLabel: managedByUs}, Annotations: map[string]string{used: cluster},
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: AccountNamespace, Name: AccountName}},
	}
	for {
		existing, err := a.bindings.Get(ctx, AccountBinding, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			existing, err = a.bindings.Create(ctx, wanted, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				continue // another hub was faster
			}
			if err != nil {
				return nil, false, fmt.Errorf("create ClusterRoleBinding %s: %w", AccountBinding, err)
			}
			return existing, true, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("get ClusterRoleBinding %s: %w", AccountBinding, err)
		}
		if !ours(existing) || existing.RoleRef != wanted.RoleRef {
			return nil, false, &foreignError{what: "ClusterRoleBinding " + AccountBinding}
		}
		_, known := existing.Annotations[used]
		if known && existing.Annotations[used] == cluster && len(existing.Subjects) == 1 && existing.Subjects[0] == wanted.Subjects[0] {
			return existing, false, nil
		}
		metav1.SetMetaDataAnnotation(&existing.ObjectMeta, used, cluster)
		existing.Subjects = wanted.Subjects
		updated, err := a.bindings.Update(ctx, existing, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("update ClusterRoleBinding %s: %w", AccountBinding, err)
		}
		return updated, !known, nil
	}
}

// remove deletes this hub's account from a cluster, or only its rights with
// metav1.DeletePropagationOrphan. It keeps an account that other hubs use, or that is not
// Orrery's. A single call deletes everything, so that no part is left: see AccountBinding.
func (a *accounts) remove(ctx context.Context, hubID string, account metav1.DeletionPropagation) error {
	used := annotationUsedBy + hubID
	for {
		binding, err := a.bindings.Get(ctx, AccountBinding, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get ClusterRoleBinding %s: %w", AccountBinding, err)
		}
		if _, ok := binding.Annotations[used]; !ok || !ours(binding) {
			return nil
		}
		delete(binding.Annotations, used)
		shared := false
		for key := range binding.Annotations {
			shared = shared || strings.HasPrefix(key, annotationUsedBy)
		}
		if shared {
			_, err = a.bindings.Update(ctx, binding, metav1.UpdateOptions{})
		} else {
			as := &metav1.Preconditions{UID: &binding.UID, ResourceVersion: &binding.ResourceVersion}
			err = a.bindings.Delete(ctx, AccountBinding, metav1.DeleteOptions{Preconditions: as, PropagationPolicy: &account})
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("remove ClusterRoleBinding %s: %w", AccountBinding, err)
		}
	}
}

// token requests a token of the account. now is the hub's time.
func (a *accounts) token(ctx context.Context, now time.Time) (*credential, error) {
	asked, err := a.accounts.CreateToken(ctx, AccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenLife / time.Second))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token of %s: %w", hubAccount, err)
	}
	if asked.Spec.ExpirationSeconds == nil || *asked.Spec.ExpirationSeconds <= 0 || asked.Status.Token == "" {
		return nil, fmt.Errorf("request a token of %s: the cluster granted none", hubAccount)
	}
	return newCredential(asked.Status.Token, now, *asked.Spec.ExpirationSeconds), nil
}

// openAccount creates the hub's account in a cluster that may be joined. It returns a Secret with
// a tested token of the account instead of the kubeconfig's credentials. undo reverts that, for a
// join that is refused later.
func openAccount(ctx context.Context, dial Dial, hubID string, cluster *clusterv1alpha1.Cluster, kubeconfig *corev1.Secret) (_ *corev1.Secret, undo func(), err error) {
	const wayOut = "or keep the credentials of the kubeconfig with --keep-credentials"
	endpoint := Redacted(cluster.Spec.APIEndpoint)
	if cluster.Spec.TLSVerification == clusterv1alpha1.TLSSkip {
		return nil, nil, refuse(clusterv1alpha1.ReasonUnverifiedTLS, "%s: the hub would get a token of its own, and a token is never sent to a server whose certificate "+
			"is not verified (insecure-skip-tls-verify); use a kubeconfig that has certificate-authority-data, %s", endpoint, wayOut)
	}
	c, err := newConnection(dial, cluster, kubeconfig, nil)
	if err != nil {
		return nil, nil, refuse(ReasonKubeconfigInvalid, "kubeconfig: %w", err)
	}
	// Each request dials, because a request on a connection that is being closed would fail
	// without a retry.
	a, err := newAccounts(c.fresh, c, checkTimeout)
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	added, err := a.ensure(ctx, hubID, cluster.Name)
	undo = func() {
		if !added {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		defer c.close()
		if err := a.remove(ctx, hubID, metav1.DeletePropagationBackground); err != nil {
			ctrl.LoggerFrom(ctx).Info("the hub's account stays in the cluster", "cluster", cluster.Name, "error", err.Error())
		}
	}
	var granted *credential
	if err == nil {
		granted, err = a.token(ctx, time.Now())
	}
	if err != nil {
		undo()
		reason := clusterv1alpha1.ReasonForbidden
		if _, foreign := errors.AsType[*foreignError](err); !foreign && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			reason = clusterv1alpha1.ReasonUnreachable
		}
		return nil, nil, refuse(reason, "%s: the hub cannot be given an account of its own in the cluster: %w; use a kubeconfig that may make one, %s", endpoint, err, wayOut)
	}
	secret := kubeconfig.DeepCopy()
	delete(secret.Data, keyCert)
	delete(secret.Data, keyKey)
	if err := granted.write(secret.Data); err != nil {
		undo()
		return nil, nil, err
	}
	if err := tryNew(ctx, dial, cluster, secret); err != nil {
		undo()
		return nil, nil, &JoinError{Reason: reasonOfJoin(err), err: fmt.Errorf("the token that the cluster gave the hub does not serve there: %w; "+
			"use a kubeconfig with the address of the API server itself, if this one is that of a proxy with users of its own, %s", err, wayOut)}
	}
	return secret, undo, nil
}

// tryNew makes all checks of a join with new credentials. It retries while rights are missing,
// because a new binding may take effect a moment later.
func tryNew(ctx context.Context, dial Dial, cluster *clusterv1alpha1.Cluster, secret *corev1.Secret) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, rightsLook, checkTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := examineReady(ctx, dial, cluster, secret, readyTimeout, nil)
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if reasonOfJoin(err) == clusterv1alpha1.ReasonForbidden {
			return false, nil
		}
		return true, err
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

// reasonOfJoin returns the reason of a refused join; "": err is another error, or nil.
func reasonOfJoin(err error) string {
	if refused, ok := errors.AsType[*JoinError](err); ok {
		return refused.Reason
	}
	return ""
}

// closeAccount deletes the hub's account from a cluster that has left, as the last step there. It
// takes at most checkTimeout. An Event reports what could not be deleted.
func (c *clusters) closeAccount(ctx context.Context, o *clusterv1alpha1.Cluster) {
	m, ok := c.registry.Member(o.Name)
	if !ok || m.Cluster().UID != o.UID || o.Spec.SyncMode != clusterv1alpha1.Push {
		return
	}
	connection := m.current()
	left := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
	known := connection.grant.Load() != nil
	switch {
	case left != nil && left.Reason == clusterv1alpha1.ReasonMarksLeft:
		if known {
			c.accountStays(ctx, o, errors.New("the cluster could not be reached"))
		}
		return
	case left == nil && !known: // it never was a member
		return
	}
	a, err := newAccounts(c.registry.options.Fence(connection.transport), connection, checkTimeout)
	if err != nil {
		c.accountStays(ctx, o, err)
		return
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, checkTimeout, true, func(ctx context.Context) (bool, error) {
		err = a.remove(ctx, c.registry.options.HubID, metav1.DeletePropagationBackground)
		// An account without rights lost them with the binding, in an earlier run that was
		// interrupted after that.
		lost := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		return err == nil || lost, nil
	})
	if err != nil && ctx.Err() == nil {
		c.accountStays(ctx, o, err)
	}
}

// leaveAccount removes the rights that a join by kubeconfig gave the hub's account, in a cluster
// that an agent is taking over. From then on the agent's manifest defines the hub's rights there.
// The account itself stays, since the agent uses it.
func (r *Registry) leaveAccount(ctx context.Context, proposed *clusterv1alpha1.Cluster, next *candidate) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c, err := newConnection(r.dialer(proposed), proposed, &corev1.Secret{Data: next.Data}, nil)
	if err == nil {
		defer c.close()
		var a *accounts
		if a, err = newAccounts(r.options.Fence(c.transport), c, checkTimeout); err == nil {
			err = a.remove(ctx, r.options.HubID, metav1.DeletePropagationOrphan)
		}
	}
	// Without the permission, the hub has lost the rights already, or never had them.
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		const stays = "the hub may do more in the cluster than its agent's profile says: there, run kubectl delete clusterrolebinding " + AccountBinding + " --cascade=orphan"
		ctrl.LoggerFrom(ctx).Info(stays, "cluster", proposed.Name, "cause", err.Error())
		r.events.Eventf(proposed, nil, corev1.EventTypeWarning, "AccountLeft", "Tunnel", "%s (%v)", stays, err)
	}
}

func (c *clusters) accountStays(ctx context.Context, o *clusterv1alpha1.Cluster, why error) {
	const stays = "the hub's account stays in the cluster: delete ClusterRoleBinding " + AccountBinding + " there, and " + hubAccount + " goes with it"
	ctrl.LoggerFrom(ctx).Info(stays, "cluster", o.Name, "cause", why.Error())
	c.recorder.Eventf(o, nil, corev1.EventTypeWarning, "AccountLeft", "Unjoin", "%s (%v)", stays, why)
}
