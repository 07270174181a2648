package agent

// Names of the objects, labels and keys that the manifest of a join creates in the cluster.
const (
	// Name is the name of the objects of the agent itself: Deployment, PodDisruptionBudget,
	// ServiceAccount, Role, RoleBinding, ClusterRole, ClusterRoleBinding, Lease, and the Secret with
	// its key and certificate.
	Name = "orrery-agent"
	// HubAccount is the name of the ServiceAccount that the hub uses in the cluster. The Role and
	// RoleBinding of the hub in single namespaces have the same name.
	HubAccount = "orrery"
	// AllBinding is the name of the ClusterRoleBinding that allows the hub everything (profile All).
	AllBinding = "orrery-all"
	// MirrorRole is the ClusterRole, and its ClusterRoleBinding, that lets the hub read the cluster
	// without Secrets. It aggregates ClusterRoles with the label AggregateLabel. MirrorBuiltinRole is
	// one of these ClusterRoles: it has the rules for Kubernetes' own resources, and a binding of its
	// own.
	MirrorRole        = "orrery-mirror"
	MirrorBuiltinRole = "orrery-mirror-builtin"
	AggregateLabel    = "rbac.orrery.dev/aggregate-to-mirror"
	// MadeLabel is the label of every object that a manifest creates, except namespaces, which stay
	// when the agent is removed.
	MadeLabel = "agent.orrery.dev/made"
	// ProxyKey is the key of the join Secret with the URL of the proxy to the hub. It is missing if
	// there is no proxy.
	ProxyKey = "proxy"
	// ProfileKey is the key of the join Secret with the agent profile, as in spec.agent.profile of
	// a Cluster. NamespacesKey has the namespaces of the profile Placement, separated by commas.
	ProfileKey    = "profile"
	NamespacesKey = "namespaces"
)

// Values of ProfileKey.
const (
	profileAll       = "All"
	profilePlacement = "Placement"
	profileMirror    = "Mirror"
)
