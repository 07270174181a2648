package agent

import (
	"context"
	"net/http"
	"slices"

	"orrery.dev/orrery/internal/tunnel"
)

// Where things are.
const (
	corePath      = "/api/v1/namespaces/"
	rbacPath      = "/apis/rbac.authorization.k8s.io/v1/"
	rolesPath     = rbacPath + "clusterroles/"
	bindingsPath  = rbacPath + "clusterrolebindings/"
	namespacePath = corePath + tunnel.Namespace
	ownRolePath   = rolesPath + Name
)

// hubRights are the bindings of the hub in the whole cluster, by profile.
func hubRights(profile string) []string {
	switch profile {
	case profileAll:
		return []string{AllBinding}
	case profilePlacement, profileMirror:
		return []string{MirrorRole, MirrorBuiltinRole}
	}
	return nil
}

// remove deletes what is at a path; what is not there is fine.
func (c *cluster) remove(ctx context.Context, path string) error {
	err := c.do(ctx, http.MethodDelete, path, map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}, nil)
	if answered(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// prune takes from the hub every right in the cluster that a profile does not give it: whoever applies a manifest with a smaller one
// deletes nothing by that.
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
	// Its rights are for this name alone.
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

// dissolve removes everything that the manifest made but namespaces: what else is in them the agent may not see. The agents' Secret says that this is being done, so whoever continues after a kill
// knows; what makes that possible goes in one request at the end: it is made the property of the agent's ClusterRole, with which the
// cluster's garbage collector takes it away.
func (c *cluster) dissolve(ctx context.Context) error {
	if err := c.prune(ctx, "", nil); err != nil {
		return err
	}
	for _, path := range []string{
		rolesPath + MirrorRole, rolesPath + MirrorBuiltinRole,
		namespacePath + "/serviceaccounts/" + HubAccount, // with it all tokens of the hub end
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
