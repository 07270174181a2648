package agent

import (
	"context"
	"net/http"
	"slices"

	"orrery.dev/orrery/internal/tunnel"
)

// Paths of the API server.
const (
	corePath      = "/api/v1/namespaces/"
	rbacPath      = "/apis/rbac.authorization.k8s.io/v1/"
	rolesPath     = rbacPath + "clusterroles/"
	bindingsPath  = rbacPath + "clusterrolebindings/"
	namespacePath = corePath + tunnel.Namespace
	ownRolePath   = rolesPath + Name
)

// hubRights returns the names of the ClusterRoleBindings that give the hub its rights with an agent
// profile. It is nil for an unknown profile. Rights of the profile Placement in single namespaces
// come from RoleBindings, so they are not included.
func hubRights(profile string) []string {
	switch profile {
	case profileAll:
		return []string{AllBinding}
	case profilePlacement, profileMirror:
		return []string{MirrorRole, MirrorBuiltinRole}
	}
	return nil
}

// remove deletes the object at a path of the API server, and its dependents in the background. If
// the object does not exist, there is no error.
func (c *cluster) remove(ctx context.Context, path string) error {
	err := c.do(ctx, http.MethodDelete, path, map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}, nil)
	if answered(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// prune removes every right of the hub in the cluster that the agent profile does not include:
// ClusterRoleBindings, and the Roles and RoleBindings with MadeLabel. With the profile Placement,
// those in namespaces stay. With profile "" it removes all rights. The agent calls prune after a
// user has applied a manifest, because a manifest with a smaller profile deletes nothing.
func (c *cluster) prune(ctx context.Context, profile string, namespaces []string) error {
	for _, name := range []string{AllBinding, MirrorRole, MirrorBuiltinRole} {
		if slices.Contains(hubRights(profile), name) {
			continue
		}
		if err := c.remove(ctx, bindingsPath+name); err != nil {
			return err
		}
	}
	var list struct {
		Items []struct {
			Metadata metadata `json:"metadata"`
		} `json:"items"`
	}
	// The agent may list role bindings of this name only.
	if err := c.do(ctx, http.MethodGet, rbacPath+"rolebindings?fieldSelector=metadata.name%3D"+HubAccount, nil, &list); err != nil {
		return err
	}
	for _, b := range list.Items {
		ns := b.Metadata.Namespace
		if b.Metadata.Labels[MadeLabel] == "" || profile == profilePlacement && slices.Contains(namespaces, ns) {
			continue
		}
		for _, resource := range []string{"rolebindings/", "roles/"} {
			if err := c.remove(ctx, rbacPath+"namespaces/"+ns+"/"+resource+HubAccount); err != nil {
				return err
			}
		}
	}
	return nil
}

// dissolve removes everything that the manifest of the agent created, when the cluster has left the
// fleet. Namespaces stay, because they may have objects that the agent cannot see. It may be called
// again after an error.
//
// The agents use some of the objects until the end. dissolve makes the agent's ClusterRole the
// owner of these objects, and deletes the ClusterRole. The garbage collector of the cluster then
// deletes them, some time after dissolve has returned. The agents' Secret records the removal, so
// after a crash another agent continues.
func (c *cluster) dissolve(ctx context.Context) error {
	if err := c.prune(ctx, "", nil); err != nil {
		return err
	}
	for _, path := range []string{
		rolesPath + MirrorRole, rolesPath + MirrorBuiltinRole,
		namespacePath + "/serviceaccounts/" + HubAccount, // this ends all tokens of the hub
		namespacePath + "/secrets/" + tunnel.JoinSecret,
		"/apis/policy/v1/namespaces/" + tunnel.Namespace + "/poddisruptionbudgets/" + Name,
	} {
		if err := c.remove(ctx, path); err != nil {
			return err
		}
	}
	var role struct {
		Metadata metadata `json:"metadata"`
	}
	if err := c.do(ctx, http.MethodGet, ownRolePath, nil, &role); answered(err, http.StatusNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	property := []string{
		bindingsPath + Name, leasePath, secretsPath + Name, namespacePath + "/serviceaccounts/" + Name,
		rbacPath + "namespaces/" + tunnel.Namespace + "/roles/" + Name, rbacPath + "namespaces/" + tunnel.Namespace + "/rolebindings/" + Name,
		"/apis/apps/v1/namespaces/" + tunnel.Namespace + "/deployments/" + Name,
	}
	for _, path := range property {
		err := c.do(ctx, http.MethodPatch, path, map[string]any{"metadata": map[string]any{"ownerReferences": []any{map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": Name, "uid": role.Metadata.UID,
		}}}}, nil)
		if err != nil && !answered(err, http.StatusNotFound) {
			return err
		}
	}
	return c.remove(ctx, ownRolePath)
}
