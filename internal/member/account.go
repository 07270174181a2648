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
	// AccountNamespace and AccountName are the namespace and the name of the ServiceAccount that the
	// hub uses in a member. Requests of the hub to the member carry a token of that ServiceAccount.
	AccountNamespace = "orrery-system"
	AccountName      = "orrery"
	// AccountBinding is the name of the ClusterRoleBinding that binds the hub's ServiceAccount to
	// cluster-admin. The binding is the owner of the ServiceAccount, so the garbage collector of the
	// cluster deletes the ServiceAccount after the binding. The hub could not delete the
	// ServiceAccount itself, because its token has no rights without the binding.
	AccountBinding = "orrery:hub"
	// accountUser is the hub's ServiceAccount as NAMESPACE/NAME, as it is stored in the field
	// ServiceAccount of a grant. hubAccount names the ServiceAccount in messages.
	accountUser = AccountNamespace + "/" + AccountName
	hubAccount  = "ServiceAccount " + accountUser
	// annotationUsedBy is the prefix of annotations on the ClusterRoleBinding of the hub's
	// ServiceAccount. Several hubs may use one binding, and each has an annotation: the prefix with
	// the hub's ID. The value is the cluster's name on that hub; if several Clusters of the hub are
	// the same cluster, it is the name of one of them.
	annotationUsedBy = "cluster.orrery.dev/hub-"
	// tokenLife is the life that the hub requests for a token of its ServiceAccount. A cluster may
	// grant a shorter or a longer one.
	tokenLife = 30 * 24 * time.Hour
	// rightsLook is the time between two checks whether a new ClusterRoleBinding is in force. API
	// servers learn of a new binding by a watch, so it takes a moment.
	rightsLook = 100 * time.Millisecond
)

// accounts creates and deletes the hub's ServiceAccount in one cluster. It has clients for the
// namespaces and ClusterRoleBindings of the cluster, and for the ServiceAccounts in
// AccountNamespace. newAccounts makes it.
type accounts struct {
	namespaces corev1client.NamespaceInterface
	accounts   corev1client.ServiceAccountInterface
	bindings   rbacv1client.ClusterRoleBindingInterface
}

// newAccounts returns the clients with which the hub creates its ServiceAccount in a cluster. They
// send requests to the address of c through rt, and wait up to patience for each answer.
// newAccounts itself sends nothing.
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

// foreignError means that an object with a name that the hub needs in a cluster was not created by
// Orrery (it lacks the label), or has another role. The hub does not change that object.
type foreignError struct{ what string }

// Error implements error.
func (e *foreignError) Error() string {
	return e.what + " is there already and is not Orrery's (it has no label " + managedByLabel + "=" + managedByUs + "); delete it if nothing needs it"
}

// ours reports whether an object in a member has the label of objects that Orrery creates
// (app.kubernetes.io/managed-by=orrery).
func ours(o metav1.Object) bool { return o.GetLabels()[managedByLabel] == managedByUs }

// ensure creates the hub's ServiceAccount with its namespace and its ClusterRoleBinding, as far as
// they are missing. It records the hub, and the cluster's name there, in the binding. It is
// idempotent. A ServiceAccount whose owner is an earlier, deleted binding is replaced. added is
// true, also beside an error, if the binding did not name this hub before. In that case remove
// reverts ensure, except for the namespace. The error is a *foreignError if the ServiceAccount or
// the binding was not created by Orrery.
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
		// Other programs may use this ServiceAccount. They would become administrators.
		return false, &foreignError{what: hubAccount}
	}
	binding, added, err := a.bind(ctx, hubID, cluster)
	if err != nil {
		return added, err
	}
	owner := metav1.OwnerReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding", Name: binding.Name, UID: binding.UID}
	if existing != nil && len(existing.OwnerReferences) > 0 && existing.OwnerReferences[0].UID != binding.UID {
		// The garbage collector will delete the ServiceAccount, because its owner, an earlier
		// binding, was deleted.
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

// bind returns the ClusterRoleBinding of the hub's ServiceAccount, after it has added this hub and
// the cluster's name to its annotations. It creates a missing binding, and replaces other subjects.
// added is true if the binding did not name the hub before. The error is a *foreignError if the
// binding was not created by Orrery or has another role. Conflicts are retried until ctx ends.
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

// remove takes this hub out of the ClusterRoleBinding of the hub's ServiceAccount, and deletes the
// binding if no other hub uses it. account is the propagation policy of that deletion.
// metav1.DeletePropagationBackground also deletes the ServiceAccount, which the binding owns.
// metav1.DeletePropagationOrphan keeps the ServiceAccount without rights. A binding that does not
// exist, was not created by Orrery or does not name this hub stays as it is, without an error. So
// does a binding that this hub uses for a cluster with another name than cluster; "": any name.
// heir is another Cluster of this hub that uses the binding; "": there is none. With an heir,
// remove only writes the name of the heir into the binding.
func (a *accounts) remove(ctx context.Context, hubID, cluster, heir string, account metav1.DeletionPropagation) error {
	used := annotationUsedBy + hubID
	for {
		binding, err := a.bindings.Get(ctx, AccountBinding, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get ClusterRoleBinding %s: %w", AccountBinding, err)
		}
		name, ok := binding.Annotations[used]
		if !ok || !ours(binding) || cluster != "" && name != cluster {
			return nil
		}
		delete(binding.Annotations, used)
		if heir != "" {
			binding.Annotations[used] = heir
		}
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

// token requests a new token of the hub's ServiceAccount from the cluster. now is the hub's time;
// the returned credential counts the token's life from now. A cluster that grants no token, or a
// token without an end, is an error.
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

// openAccount creates the hub's ServiceAccount in a cluster that has passed the checks of a join.
// It returns a copy of kubeconfig, the Secret with the credentials of the user's kubeconfig. The
// copy has a tested token of the ServiceAccount instead of those credentials. The error is a
// *JoinError if the cluster or its token is refused. After any error, openAccount has reverted what
// it did. A cluster whose certificate is not verified is refused, because the hub would send the
// token to it.
//
// undo reverts openAccount, for a join that fails later; its error names what stays in the cluster,
// and the way out. undo is nil with an error, and if this hub used the ServiceAccount before.
func openAccount(ctx context.Context, dial Dial, hubID string, cluster *clusterv1alpha1.Cluster, kubeconfig *corev1.Secret) (_ *corev1.Secret, undo func() error, err error) {
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
	revert := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		defer c.close()
		if err := a.remove(ctx, hubID, cluster.Name, "", metav1.DeletePropagationBackground); err != nil {
			return fmt.Errorf("%s (%w)", accountLeft, err)
		}
		return nil
	}
	if added {
		undo = revert
	}
	defer func() {
		if err != nil && undo != nil {
			err, undo = errors.Join(err, undo()), nil
		}
	}()
	var granted *credential
	if err == nil {
		granted, err = a.token(ctx, time.Now())
	}
	if err != nil {
		reason := clusterv1alpha1.ReasonForbidden
		if _, foreign := errors.AsType[*foreignError](err); !foreign && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			reason = clusterv1alpha1.ReasonUnreachable
		}
		return nil, undo, refuse(reason, "%s: the hub cannot be given an account of its own in the cluster: %w; use a kubeconfig that may make one, %s", endpoint, err, wayOut)
	}
	secret := kubeconfig.DeepCopy()
	delete(secret.Data, keyCert)
	delete(secret.Data, keyKey)
	if err := granted.write(secret.Data); err != nil {
		return nil, undo, err
	}
	if err := tryNew(ctx, dial, cluster, secret); err != nil {
		return nil, undo, &JoinError{Reason: reasonOfJoin(err), err: fmt.Errorf("the token that the cluster gave the hub does not serve there: %w; "+
			"use a kubeconfig with the address of the API server itself, if this one is that of a proxy with users of its own, %s", err, wayOut)}
	}
	return secret, undo, nil
}

// tryNew makes all checks of a join with the token of a new ServiceAccount, which is in secret.
// While rights are missing, it retries for up to checkTimeout, because a new ClusterRoleBinding
// takes effect a moment later. nil means that all checks passed. Otherwise it returns the last
// error of a check, which is mostly a *JoinError.
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

// reasonOfJoin returns the reason of the *JoinError in err, such as Forbidden. It is "" if err is
// nil or has no *JoinError.
func reasonOfJoin(err error) string {
	if refused, ok := errors.AsType[*JoinError](err); ok {
		return refused.Reason
	}
	return ""
}

// closeAccount deletes the hub's ServiceAccount from a cluster that leaves, as the last request to
// the cluster. It does nothing for a Cluster that has an agent (syncMode Pull), is not in the
// registry, or never joined and has no token of that ServiceAccount. It takes at most about
// checkTimeout. An Event and the log report a ServiceAccount that stays, because the deletion
// failed, or the cluster was given up as unreachable or never identified. Missing rights are no
// failure. If another Cluster of the hub uses the ServiceAccount, it stays for that Cluster.
func (c *clusters) closeAccount(ctx context.Context, o *clusterv1alpha1.Cluster) {
	m, ok := c.registry.Member(o.Name)
	if !ok || m.Cluster().UID != o.UID || o.Spec.SyncMode != clusterv1alpha1.Push {
		return
	}
	id, heir := c.leaveShared(m)
	connection := m.current()
	left := meta.FindStatusCondition(o.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
	known := connection.grant.Load() != nil
	switch {
	case left != nil && left.Reason == clusterv1alpha1.ReasonMarksLeft:
		if known && heir == "" {
			c.accountStays(ctx, o, errors.New("the cluster could not be reached"))
		}
		return
	case left == nil && !known: // it never was a member
		return
	case left == nil && id == "": // the cluster may be that of another Cluster
		c.accountStays(ctx, o, errors.New("the hub could not read the identity of the cluster"))
		return
	}
	a, err := newAccounts(c.registry.options.Fence(connection.transport), connection, checkTimeout)
	if err == nil {
		err = a.removeAtLeaving(ctx, c.registry.options.HubID, heir)
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case heir != "":
		ctrl.LoggerFrom(ctx).Info("the binding of the hub's account keeps the name of a cluster that has left", "cluster", o.Name, "uses it", heir, "cause", err.Error())
	default:
		c.accountStays(ctx, o, err)
	}
}

// leaveShared records that the leaving member m requires the hub's ServiceAccount in its cluster no
// more. id is the ID of that cluster; "": unknown. heir is the name of another Cluster of the hub
// that is the same cluster and uses the same ServiceAccount, which must then stay; "": there is
// none. While the credentials of the other Cluster are unknown, it counts as using the
// ServiceAccount. While its ID is unknown, it does not count: it never joined.
//
// Two Clusters can be the same cluster, because a join cannot compare the cluster with another
// whose ID is not in its status yet. If both leave, the last one has no heir: each records its own
// end and looks for the other under one lock.
func (c *clusters) leaveShared(m *Member) (id, heir string) {
	c.admission.Lock()
	defer c.admission.Unlock()
	m.mu.Lock()
	m.accountLeft, id = true, m.identity()
	m.mu.Unlock()
	for _, other := range c.registry.Members() {
		if other != m && id != "" && other.usesAccountOf(id) {
			return id, other.name
		}
	}
	return id, ""
}

// usesAccountOf reports whether m may need the hub's ServiceAccount in the cluster with this ID.
func (m *Member) usesAccountOf(id string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.connection
	return m.identity() == id && m.cluster.Spec.SyncMode == clusterv1alpha1.Push && !m.accountLeft && (c.problem != nil || c.grant.Load() != nil)
}

// removeAtLeaving calls remove until it succeeds, for at most about checkTimeout, and returns its
// last error. heir is as in remove. Missing rights are no error: the hub lost them with the
// binding, in an earlier run that was interrupted after it had deleted the binding.
func (a *accounts) removeAtLeaving(ctx context.Context, hubID, heir string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, checkTimeout, true, func(ctx context.Context) (bool, error) {
		err := a.remove(ctx, hubID, "", heir, metav1.DeletePropagationBackground)
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			err = nil
		}
		if ctx.Err() == nil || last == nil { // otherwise the error is only that the time is over
			last = err
		}
		return err == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

// leaveAccount removes the cluster-admin rights of the hub's ServiceAccount, which came from a join
// by kubeconfig, when the cluster changes to an agent. proposed is the Cluster with the agent's
// address, and next has the new credentials, whose token is sent through the agent. From then on
// the agent's manifest defines the hub's rights. The ServiceAccount itself stays, since the agent
// uses it. A failure is only logged and recorded as an Event.
func (r *Registry) leaveAccount(ctx context.Context, proposed *clusterv1alpha1.Cluster, next *candidate) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c, err := newConnection(r.dialer(proposed), proposed, &corev1.Secret{Data: next.Data}, nil)
	if err == nil {
		defer c.close()
		var a *accounts
		if a, err = newAccounts(r.options.Fence(c.transport), c, checkTimeout); err == nil {
			err = a.remove(ctx, r.options.HubID, "", "", metav1.DeletePropagationOrphan)
		}
	}
	// Without the permission to delete the binding, the hub has lost its rights already, or never had
	// them.
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		const stays = "the hub may do more in the cluster than its agent's profile says: there, run kubectl delete clusterrolebinding " + AccountBinding + " --cascade=orphan"
		ctrl.LoggerFrom(ctx).Info(stays, "cluster", proposed.Name, "cause", err.Error())
		r.events.Eventf(proposed, nil, corev1.EventTypeWarning, "AccountLeft", "Tunnel", "%s (%v)", stays, err)
	}
}

// accountStays logs, and records as a warning Event of the Cluster o, that the hub's ServiceAccount
// was not deleted from the cluster because of why.
func (c *clusters) accountStays(ctx context.Context, o *clusterv1alpha1.Cluster, why error) {
	ctrl.LoggerFrom(ctx).Info(accountLeft, "cluster", o.Name, "cause", why.Error())
	c.recorder.Eventf(o, nil, corev1.EventTypeWarning, "AccountLeft", "Unjoin", "%s (%v)", accountLeft, why)
}

// accountLeft says that the hub's ServiceAccount was not deleted from a cluster, and the way out.
const accountLeft = "the hub's account stays in the cluster: delete ClusterRoleBinding " + AccountBinding + " there, and " + hubAccount + " goes with it"
