// Package manifest builds the objects that are applied in a cluster so that it joins by agent. It
// makes no requests.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/image"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
)

// Options are the contents of an agent's manifest, which Objects builds. Cluster, URL, Token and
// Key are required.
type Options struct {
	// Cluster is the name of the joining Cluster.
	Cluster string
	// URL of the hub's listener. CA holds the authorities of its certificate, in PEM (empty: the
	// system's). Key is the hub's public key for tunnel.Seal. Token is the token of the join.
	URL     string
	CA, Key []byte
	Token   string
	// Replace makes the agents create a new key for the token. Otherwise they keep the key that they
	// have.
	Replace bool
	// Proxy is the URL of the proxy to the hub; "": none.
	Proxy string
	// Agent limits what the hub may do; nil: everything.
	Agent *clusterv1alpha1.Agent
	// Image of the agent. "": the agent runs outside the cluster, as a process with a kubeconfig.
	Image string
}

const (
	healthPort = 8081
	// memory is the memory request of a pod of the agent. limit is its memory limit: twice what a pod
	// needs with ten open execs. The garbage collector keeps the memory below limitSoft.
	memory, limit, limitSoft = "16Mi", "96Mi", "64MiB"
)

// Objects returns the objects of an agent's manifest, in the order in which they must be applied in
// the cluster. It is an error if Cluster, URL, Token or Key of o is missing; other values are not
// checked. If o.Image is "", the Deployment and the PodDisruptionBudget are left out.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	if o.Cluster == "" || o.URL == "" || o.Token == "" || len(o.Key) == 0 {
		return nil, errors.New("a manifest needs a cluster, a URL, a token and a key")
	}
	profile, namespaces := clusterv1alpha1.AgentProfileAll, []string(nil)
	if o.Agent != nil && o.Agent.Profile != "" {
		profile, namespaces = o.Agent.Profile, o.Agent.Namespaces
	}
	// Namespaces are not labelled, and stay when the agent is removed: they may be older, and
	// others may use them.
	all := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tunnel.Namespace}}}
	for _, ns := range namespaces {
		if ns != tunnel.Namespace {
			all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		}
	}
	all = append(all, accounts()...)
	all = append(all, hubRights(profile, namespaces)...)
	all = append(all, agentRights()...)
	join := &corev1.Secret{ObjectMeta: made(tunnel.JoinSecret), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{
		tunnel.JoinURL: []byte(o.URL), tunnel.JoinCA: o.CA, tunnel.JoinCluster: []byte(o.Cluster), tunnel.JoinToken: []byte(o.Token),
		tunnel.JoinKey: o.Key, tunnel.JoinReplace: []byte(strconv.FormatBool(o.Replace)), agent.ProfileKey: []byte(profile), agent.NamespacesKey: []byte(strings.Join(namespaces, ",")),
	}}
	if o.Proxy != "" {
		join.Data[agent.ProxyKey] = []byte(o.Proxy)
	}
	// The Secret and the Lease that the agents share are created empty, so that agents need no right
	// to create them.
	all = append(all,
		&corev1.Secret{ObjectMeta: made(agent.Name), Type: corev1.SecretTypeOpaque},
		&coordinationv1.Lease{ObjectMeta: made(agent.Name)},
		join,
	)
	if o.Image != "" {
		all = append(all, budget(), deployment(o.Image))
	}
	objects := make([]*unstructured.Unstructured, 0, len(all))
	for _, object := range all {
		u, err := plain(object)
		if err != nil {
			return nil, err
		}
		objects = append(objects, u)
	}
	return objects, nil
}

// YAML encodes objects, in their order, as YAML documents for kubectl apply. Each begins with
// a line "---".
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var text bytes.Buffer
	for _, o := range objects {
		document, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		text.WriteString("---\n")
		text.Write(document)
	}
	return text.Bytes(), nil
}

// plain converts an object of a manifest to the form that is applied, without status, empty maps
// and nil values. It is an error if the type of the object is not one that a manifest can have.
func plain(object runtime.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode a %T: %w", object, err)
	}
	delete(content, "status")
	u := &unstructured.Unstructured{Object: content}
	gvk, err := kindOf(object)
	if err != nil {
		return nil, err
	}
	u.SetGroupVersionKind(gvk)
	prune(content)
	return u, nil
}

// prune removes empty maps and nil values from m, and from the maps and lists in it. Elements of
// lists stay, even if they are empty then.
func prune(m map[string]any) {
	maps.DeleteFunc(m, func(_ string, v any) bool {
		switch v := v.(type) {
		case nil:
			return true
		case map[string]any:
			prune(v)
			return len(v) == 0
		case []any:
			for _, e := range v {
				if inner, ok := e.(map[string]any); ok {
					prune(inner)
				}
			}
		}
		return false
	})
}

// kindOf returns the GroupVersionKind of an object of a manifest. It is an error if the type is not
// one that a manifest can have.
func kindOf(object runtime.Object) (schema.GroupVersionKind, error) {
	switch object.(type) {
	case *corev1.Namespace:
		return corev1.SchemeGroupVersion.WithKind("Namespace"), nil
	case *corev1.ServiceAccount:
		return corev1.SchemeGroupVersion.WithKind("ServiceAccount"), nil
	case *corev1.Secret:
		return corev1.SchemeGroupVersion.WithKind("Secret"), nil
	case *coordinationv1.Lease:
		return coordinationv1.SchemeGroupVersion.WithKind("Lease"), nil
	case *rbacv1.ClusterRole:
		return rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), nil
	case *rbacv1.ClusterRoleBinding:
		return rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), nil
	case *rbacv1.Role:
		return rbacv1.SchemeGroupVersion.WithKind("Role"), nil
	case *rbacv1.RoleBinding:
		return rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), nil
	case *policyv1.PodDisruptionBudget:
		return policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), nil
	case *appsv1.Deployment:
		return appsv1.SchemeGroupVersion.WithKind("Deployment"), nil
	}
	return schema.GroupVersionKind{}, fmt.Errorf("a manifest has no %T", object)
}

// labels returns a new map with the labels of all objects of a manifest except namespaces.
func labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": agent.Name, "app.kubernetes.io/part-of": "orrery", agent.MadeLabel: "true"}
}

// made returns the metadata of an object with this name in the agent's namespace, with the labels
// of the manifest.
func made(name string) metav1.ObjectMeta { return madeIn(tunnel.Namespace, name) }

// madeIn returns the metadata of an object with this name in a namespace, with the labels of the
// manifest. namespace is "" for cluster-scoped objects.
func madeIn(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels()}
}

// accounts returns the ServiceAccounts that a manifest creates: that of the hub, and that of the
// agent's pods.
func accounts() []runtime.Object {
	hub := made(agent.HubAccount)
	// A join by kubeconfig recognizes the hub's ServiceAccount by this label.
	hub.Labels["app.kubernetes.io/managed-by"] = "orrery"
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: hub, AutomountServiceAccountToken: new(false)},
		&corev1.ServiceAccount{ObjectMeta: made(agent.Name), AutomountServiceAccountToken: new(false)},
	}
}

// bind returns a ClusterRoleBinding with the metadata object. It binds the ClusterRole role to the
// ServiceAccount account in the agent's namespace.
func bind(object metav1.ObjectMeta, role, account string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: object, Subjects: subject(account), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

// bindIn returns a RoleBinding with the metadata object. It binds the Role role in the same
// namespace to the ServiceAccount account in the agent's namespace.
func bindIn(object metav1.ObjectMeta, role, account string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: object, Subjects: subject(account), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}
}

// subject returns the subjects of a binding: the ServiceAccount account in the agent's namespace.
func subject(account string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: tunnel.Namespace, Name: account}}
}

// hubRights returns the RBAC objects for what the hub may do in the cluster. With the profile All
// that is cluster-admin. With other profiles the hub may read the cluster without Secrets, and has
// all rights in namespaces.
func hubRights(profile clusterv1alpha1.AgentProfile, namespaces []string) []runtime.Object {
	if profile == clusterv1alpha1.AgentProfileAll {
		return []runtime.Object{bind(madeIn("", agent.AllBinding), "cluster-admin", agent.HubAccount)}
	}
	builtin := &rbacv1.ClusterRole{ObjectMeta: madeIn("", agent.MirrorBuiltinRole), Rules: mirrored()}
	builtin.Labels[agent.AggregateLabel] = "true"
	rights := []runtime.Object{
		builtin,
		&rbacv1.ClusterRole{ObjectMeta: madeIn("", agent.MirrorRole), AggregationRule: &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{agent.AggregateLabel: "true"}}},
		}},
		bind(madeIn("", agent.MirrorRole), agent.MirrorRole, agent.HubAccount),
		bind(madeIn("", agent.MirrorBuiltinRole), agent.MirrorBuiltinRole, agent.HubAccount),
	}
	for _, ns := range namespaces {
		rights = append(rights,
			&rbacv1.Role{ObjectMeta: madeIn(ns, agent.HubAccount), Rules: []rbacv1.PolicyRule{rule("*", "*", "*")}},
			bindIn(madeIn(ns, agent.HubAccount), agent.HubAccount, agent.HubAccount),
		)
	}
	return rights
}

// mirrored returns the RBAC rules with which the hub reads Kubernetes' own resources in a cluster,
// to mirror them. Secrets and custom resources are left out.
func mirrored() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Verbs: read, Resources: []string{
			"configmaps", "endpoints", "events", "limitranges", "namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes",
			"pods", "podtemplates", "replicationcontrollers", "resourcequotas", "serviceaccounts", "services",
		}},
		{Resources: []string{"*"}, Verbs: read, APIGroups: []string{
			"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "autoscaling", "batch",
			"certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "flowcontrol.apiserver.k8s.io",
			"metrics.k8s.io", "networking.k8s.io", "node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io",
			"scheduling.k8s.io", "storage.k8s.io",
		}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{
			"/", "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/readyz", "/version", "/openapi/*",
		}},
	}
}

// rule returns an RBAC rule for resources of one API group. resources and verbs are lists,
// separated by commas. names are the only objects that it applies to; without names it applies to
// all.
func rule(group, resources, verbs string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		APIGroups: []string{group}, Resources: strings.Split(resources, ","), Verbs: strings.Split(verbs, ","), ResourceNames: names,
	}
}

// agentRights returns the RBAC objects for what the agent itself may do in the cluster. It may
// create tokens of the hub's ServiceAccount, update its own Secret and Lease, remove rights of the
// hub, and remove the objects of the manifest. It can create no other objects, and read only its
// own two Secrets.
func agentRights() []runtime.Object {
	const rbac = rbacv1.GroupName
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: made(agent.Name), Rules: []rbacv1.PolicyRule{
			rule("", "serviceaccounts/token", "create", agent.HubAccount),
			rule("", "secrets", "get,patch", agent.Name),
			rule("", "secrets", "get,delete", tunnel.JoinSecret),
			rule("coordination.k8s.io", "leases", "get,patch", agent.Name),
			rule("", "serviceaccounts", "delete", agent.HubAccount),
			rule("", "serviceaccounts", "patch", agent.Name),
			rule(rbac, "roles,rolebindings", "patch", agent.Name),
			rule("apps", "deployments", "patch", agent.Name),
			rule("policy", "poddisruptionbudgets", "delete", agent.Name),
		}},
		bindIn(made(agent.Name), agent.Name, agent.Name),
		&rbacv1.ClusterRole{ObjectMeta: madeIn("", agent.Name), Rules: []rbacv1.PolicyRule{
			rule(rbac, "clusterrolebindings", "delete", agent.AllBinding, agent.MirrorRole, agent.MirrorBuiltinRole),
			rule(rbac, "clusterroles", "delete", agent.MirrorRole, agent.MirrorBuiltinRole),
			rule(rbac, "rolebindings", "list,delete", agent.HubAccount),
			rule(rbac, "roles", "delete", agent.HubAccount),
			rule(rbac, "clusterroles", "get,delete", agent.Name),
			rule(rbac, "clusterrolebindings", "patch", agent.Name),
		}},
		bind(madeIn("", agent.Name), agent.Name, agent.Name),
	}
}

// selector returns the labels that select the agent's pods.
func selector() map[string]string { return map[string]string{"app.kubernetes.io/name": agent.Name} }

// budget returns the PodDisruptionBudget of the agent.
func budget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: made(agent.Name), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: selector()},
	}}
}

// deployment returns the Deployment of the agent, with two replicas. reference is the image of the
// agent.
func deployment(reference string) *appsv1.Deployment {
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 5, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")},
		}}
	}
	evicted := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(30))}
	}
	return &appsv1.Deployment{ObjectMeta: made(agent.Name), Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: selector()},
		// Without a hub no agent is ready. That must not block the rollout of an agent that repairs the
		// connection.
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(1)),
		}},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels()},
			Spec: corev1.PodSpec{
				ServiceAccountName: agent.Name, AutomountServiceAccountToken: new(true), EnableServiceLinks: new(false),
				NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: new(true), RunAsUser: new(int64(image.AgentUser)), RunAsGroup: new(int64(image.AgentUser)),
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
						TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: selector()},
					}}},
				}},
				// Administrators repair the cluster through the agent. So its pods tolerate
				// control-plane nodes, and soon leave a node that is down.
				Tolerations: []corev1.Toleration{
					{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
					evicted(corev1.TaintNodeNotReady), evicted(corev1.TaintNodeUnreachable),
				},
				Containers: []corev1.Container{{
					Name: "agent", Image: reference, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{image.AgentPath, "cluster"},
					Args: []string{"--replica=$(POD_NAME)", fmt.Sprintf("--health-address=:%d", healthPort)},
					Env: []corev1.EnvVar{
						{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
						{Name: "GOMEMLIMIT", Value: limitSoft},
						{Name: "HTTPS_PROXY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
							LocalObjectReference: corev1.LocalObjectReference{Name: tunnel.JoinSecret}, Key: agent.ProxyKey, Optional: new(true),
						}}},
					},
					Ports:          []corev1.ContainerPort{{Name: "health", ContainerPort: healthPort, Protocol: corev1.ProtocolTCP}},
					LivenessProbe:  probe("/healthz", 20, 3),
					ReadinessProbe: probe("/readyz", 5, 2),
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse(memory)},
						Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)},
					},
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
						Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					},
				}},
			},
		},
	}}
}

// Profiles returns the values of spec.agent.profile of a Cluster, sorted, for the help of the
// command line.
func Profiles() []string {
	names := []string{string(clusterv1alpha1.AgentProfileAll), string(clusterv1alpha1.AgentProfileMirror), string(clusterv1alpha1.AgentProfilePlacement)}
	slices.Sort(names)
	return names
}
