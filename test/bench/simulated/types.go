package main

import (
	"encoding/json"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// served lists the types of every cluster: a group and version, then kinds. ! marks a kind
// without namespaces.
var served = []string{
	"v1: !Namespace !Node !PersistentVolume Pod ConfigMap Secret Service ServiceAccount Endpoints Event LimitRange PersistentVolumeClaim PodTemplate ReplicationController ResourceQuota",
	"apps/v1: Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
	"batch/v1: Job CronJob",
	"autoscaling/v2: HorizontalPodAutoscaler",
	"policy/v1: PodDisruptionBudget",
	"networking.k8s.io/v1: Ingress NetworkPolicy !IngressClass",
	"rbac.authorization.k8s.io/v1: Role RoleBinding !ClusterRole !ClusterRoleBinding",
	"storage.k8s.io/v1: !StorageClass !VolumeAttachment !CSIDriver !CSINode CSIStorageCapacity",
	"scheduling.k8s.io/v1: !PriorityClass",
	"coordination.k8s.io/v1: Lease",
	"discovery.k8s.io/v1: EndpointSlice",
	"node.k8s.io/v1: !RuntimeClass",
	"events.k8s.io/v1: Event",
	"apiextensions.k8s.io/v1: !CustomResourceDefinition",
	"apiregistration.k8s.io/v1: !APIService",
	"admissionregistration.k8s.io/v1: !ValidatingWebhookConfiguration !MutatingWebhookConfiguration !ValidatingAdmissionPolicy !ValidatingAdmissionPolicyBinding",
	"flowcontrol.apiserver.k8s.io/v1: !FlowSchema !PriorityLevelConfiguration",
	"certificates.k8s.io/v1: !CertificateSigningRequest",
	"example.org/v1: Alpha Beta Gamma Delta Epsilon Zeta Eta Theta",
}

// resource is a type that is served.
type resource struct {
	group, version, kind, plural string
	namespaced                   bool
}

// key names a type by its path: version/plural of the core group, else group/version/plural.
func (r resource) key() string {
	return strings.TrimPrefix(r.group+"/", "/") + r.version + "/" + r.plural
}

func (r resource) apiVersion() string { return strings.TrimPrefix(r.group+"/", "/") + r.version }

func plural(kind string) string {
	lower := strings.ToLower(kind)
	switch {
	case lower == "endpoints":
		return lower
	case strings.HasSuffix(lower, "s"), strings.HasSuffix(lower, "ss"):
		return lower + "es"
	case strings.HasSuffix(lower, "y"):
		return strings.TrimSuffix(lower, "y") + "ies"
	}
	return lower + "s"
}

func resources() []resource {
	var all []resource
	for _, line := range served {
		gv, kinds, _ := strings.Cut(line, ": ")
		group, version, found := strings.Cut(gv, "/")
		if !found {
			group, version = "", gv
		}
		for kind := range strings.FieldsSeq(kinds) {
			name, clusterWide := strings.CutPrefix(kind, "!")
			all = append(all, resource{group, version, name, plural(name), !clusterWide})
		}
	}
	return all
}

// discovery returns the aggregated discovery documents of the core group and of the others.
func discovery() (core, others []byte) {
	var lists [2]apidiscoveryv2.APIGroupDiscoveryList
	for i := range lists {
		lists[i].TypeMeta = metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}
	}
	for _, r := range resources() {
		list := &lists[1]
		if r.group == "" {
			list = &lists[0]
		}
		if n := len(list.Items); n == 0 || list.Items[n-1].Name != r.group {
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{
				ObjectMeta: metav1.ObjectMeta{Name: r.group},
				Versions:   []apidiscoveryv2.APIVersionDiscovery{{Version: r.version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}},
			})
		}
		scope := apidiscoveryv2.ScopeCluster
		if r.namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		version := &list.Items[len(list.Items)-1].Versions[0]
		version.Resources = append(version.Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource: r.plural, ResponseKind: &metav1.GroupVersionKind{Group: r.group, Version: r.version, Kind: r.kind}, Scope: scope,
			SingularResource: strings.ToLower(r.kind), Verbs: []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		})
	}
	core, _ = json.Marshal(lists[0])   //nolint:errchkjson // it can be encoded
	others, _ = json.Marshal(lists[1]) //nolint:errchkjson // it can be encoded
	return core, others
}
