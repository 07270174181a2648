package agent

// Names of what the manifest of a join makes in the cluster.
const (
	// Name is that of everything that is the agent's own: Deployment, PodDisruptionBudget, ServiceAccount, Role, RoleBinding,
	// ClusterRole, ClusterRoleBinding, Lease, and the Secret in which it keeps its key and certificate.
	Name = "orrery-agent"
	// HubAccount is the ServiceAccount that the hub is in the cluster, and the Role and RoleBinding that it has in single namespaces.
	HubAccount = "orrery"
	// AllBinding is the ClusterRoleBinding by which the hub may do everything.
	AllBinding = "orrery-all"
	// MirrorRole is the ClusterRole, and the ClusterRoleBinding, by which the hub may read the cluster without Secrets. It is
	// aggregated from those with the label AggregateLabel; MirrorBuiltinRole has what Kubernetes itself serves, and is bound as well.
	MirrorRole        = "orrery-mirror"
	MirrorBuiltinRole = "orrery-mirror-builtin"
	AggregateLabel    = "rbac.orrery.dev/aggregate-to-mirror"
	// MadeLabel is on everything that a manifest made, but for namespaces: these stay.
	MadeLabel = "agent.orrery.dev/made"
	// ProxyKey is the key of the join Secret with the URL of the proxy by which the hub is reached. It is not there if there is none.
	ProxyKey = "proxy"
	// ProfileKey is the key of the join Secret that says what the hub may do, as in spec.agent.profile of a Cluster, and NamespacesKey that
	// with the namespaces of the profile Placement, with commas between.
	ProfileKey    = "profile"
	NamespacesKey = "namespaces"
)

// Values of ProfileKey.
const (
	profileAll       = "All"
	profilePlacement = "Placement"
	profileMirror    = "Mirror"
)
