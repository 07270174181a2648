package addon

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	dnsName = "coredns"
	// dnsIndex is the place of the DNS Service among the addresses of the Services; kubelets are told the same.
	dnsIndex = 10
	// dnsHealthPort and dnsReadyPort are where CoreDNS is asked how it is.
	dnsHealthPort, dnsReadyPort, dnsMetricsPort = 8080, 8181, 9153
)

// corefile is CoreDNS' configuration for a domain. Names of the cluster are not cached, as the API is watched anyway.
// Other names are asked of the servers in the resolv.conf that the kubelet gives the pod, which is never that of a
// resolver on the host's loopback.
const corefile = `.:53 {
    errors
    health {
        lameduck 5s
    }
    ready
    kubernetes %[1]s in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
        max_concurrent 1000
    }
    cache 30 {
        disable success %[1]s
        disable denial %[1]s
    }
    loop
    reload
    loadbalance
}
`

// dnsGroup is CoreDNS.
func dnsGroup(in Input) (Group, error) {
	image := in.Images[dnsName]
	if image == "" {
		return Group{}, errors.New("the catalogue has no image coredns for this version of Kubernetes")
	}
	addresses, err := dnsAddresses(in.Spec.Network.KubeServiceCIDR)
	if err != nil {
		return Group{}, fmt.Errorf("spec.provision.network.kubeServiceCIDR: %w", err)
	}
	labels := map[string]string{"k8s-app": "kube-dns"}
	const ns = metav1.NamespaceSystem
	return Group{Name: groupDNS, Namespace: ns, Objects: objects(
		serviceAccount(ns, dnsName, labels),
		clusterRole("system:coredns", labels,
			rbacv1.PolicyRule{
				APIGroups: []string{""}, Verbs: []string{"list", "watch"},
				Resources: []string{"endpoints", "services", "pods", "namespaces"},
			},
			rbacv1.PolicyRule{
				APIGroups: []string{"discovery.k8s.io"}, Verbs: []string{"list", "watch"},
				Resources: []string{"endpointslices"},
			}),
		clusterRoleBinding("system:coredns", "system:coredns", labels,
			rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: dnsName}),
		configMap(ns, dnsName, labels, map[string]string{"Corefile": fmt.Sprintf(corefile, in.Spec.Kubernetes.DNSDomain)}),
		dnsService(addresses, labels),
		dnsDeployment(image, int32(min(max(in.Nodes, 1), 2)), labels),
		&policyv1.PodDisruptionBudget{
			TypeMeta: policy("PodDisruptionBudget"), ObjectMeta: named(ns, dnsName, labels),
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			},
		},
	)}, nil
}

func dnsService(addresses []netip.Addr, labels map[string]string) *corev1.Service {
	spec := corev1.ServiceSpec{
		Selector:       labels,
		ClusterIP:      addresses[0].String(),
		IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromString("dns")},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromString("dns-tcp")},
			{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: dnsMetricsPort, TargetPort: intstr.FromString("metrics")},
		},
	}
	if len(addresses) > 1 {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	for _, a := range addresses {
		family := corev1.IPv4Protocol
		if a.Is6() {
			family = corev1.IPv6Protocol
		}
		spec.ClusterIPs = append(spec.ClusterIPs, a.String())
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
	m := named(metav1.NamespaceSystem, "kube-dns", map[string]string{
		"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
	})
	m.Annotations = map[string]string{"prometheus.io/port": "9153", "prometheus.io/scrape": "true"}
	return &corev1.Service{TypeMeta: core("Service"), ObjectMeta: m, Spec: spec}
}

func dnsDeployment(image string, replicas int32, labels map[string]string) *appsv1.Deployment {
	probe := func(path string, port int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}},
			TimeoutSeconds: 5,
			// A server is looked for as soon as a cluster is there: it should not have to wait for the next look.
			PeriodSeconds: 2, FailureThreshold: 10,
		}
	}
	return &appsv1.Deployment{
		TypeMeta: apps("Deployment"), ObjectMeta: named(metav1.NamespaceSystem, dnsName, labels),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(1))},
			},
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					PriorityClassName:  "system-cluster-critical",
					ServiceAccountName: dnsName,
					DNSPolicy:          corev1.DNSDefault,
					NodeSelector:       map[string]string{corev1.LabelOSStable: "linux"},
					Tolerations: []corev1.Toleration{
						{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
						{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
					},
					Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
						PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
							Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
								TopologyKey:   corev1.LabelHostname,
								LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
							},
						}},
					}},
					Containers: []corev1.Container{{
						Name: dnsName, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
						Args: []string{"-conf", "/etc/coredns/Corefile"},
						Resources: corev1.ResourceRequirements{
							Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("170Mi")},
							Requests: corev1.ResourceList{
								corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("70Mi"),
							},
						},
						Ports: []corev1.ContainerPort{
							{Name: "dns", Protocol: corev1.ProtocolUDP, ContainerPort: 53},
							{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, ContainerPort: 53},
							{Name: "metrics", Protocol: corev1.ProtocolTCP, ContainerPort: dnsMetricsPort},
						},
						LivenessProbe:  probe("/health", dnsHealthPort),
						ReadinessProbe: probe("/ready", dnsReadyPort),
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: new(false),
							ReadOnlyRootFilesystem:   new(true),
							Capabilities: &corev1.Capabilities{
								Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"},
							},
						},
						VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns", ReadOnly: true}},
					}},
					Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: dnsName}},
					}}},
				},
			},
		},
	}
}

// dnsAddresses are the addresses of the DNS Service: the tenth of each network of the Services.
func dnsAddresses(cidrs string) ([]netip.Addr, error) {
	prefixes, err := parseCIDRs(cidrs)
	if err != nil {
		return nil, err
	}
	addresses := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		if addresses[i] = nth(p, dnsIndex); !p.Contains(addresses[i]) {
			return nil, fmt.Errorf("%s has no place for the DNS Service, whose address is the %dth: use a larger network", p, dnsIndex)
		}
	}
	return addresses, nil
}

// nth is the address n after the first of a network.
func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// parseCIDRs parses one network, or two with a comma between.
func parseCIDRs(cidrs string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for s := range strings.SplitSeq(cidrs, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("parse network: %w", err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
