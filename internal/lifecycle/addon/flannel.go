package addon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	flannelName = "kube-flannel"
	// flannelConflist is the file by which the container runtime finds the network, and flannelPlugin the program.
	flannelConflist = "/etc/cni/net.d/10-flannel.conflist"
	flannelPlugin   = "/opt/cni/bin/flannel"
)

// flannelGroup is flannel, which takes the network of each node from its Node object.
func flannelGroup(in Input) (Group, error) {
	image, plugin := in.Images["flannel"], in.Images["flannel-cni-plugin"]
	if image == "" || plugin == "" {
		return Group{}, errors.New("the catalogue has no images flannel and flannel-cni-plugin for this version of Kubernetes")
	}
	net, err := flannelNetwork(in.Spec)
	if err != nil {
		return Group{}, err
	}
	cni, err := json.Marshal(map[string]any{
		"name": "cbr0", "cniVersion": "0.3.1",
		"plugins": []any{
			map[string]any{"type": "flannel", "delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true}},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	})
	if err != nil {
		return Group{}, fmt.Errorf("marshal CNI configuration: %w", err)
	}
	data := map[string]string{"cni-conf.json": string(cni), "net-conf.json": net}
	daemonset, err := flannelDaemonSet(image, plugin, in.APIServer, data)
	if err != nil {
		return Group{}, err
	}
	labels := map[string]string{"k8s-app": "flannel"}
	return Group{
		Name: GroupNetwork, Namespace: flannelName,
		Gates: []Gate{{Kind: "DaemonSet", Name: daemonset.Name, Namespace: flannelName, Nodes: min(in.Nodes, 1)}},
		Objects: objects(
			namespace(flannelName, map[string]string{"k8s-app": "flannel", "pod-security.kubernetes.io/enforce": "privileged"}),
			serviceAccount(flannelName, "flannel", labels),
			clusterRole("flannel", labels,
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}}),
			clusterRoleBinding("flannel", "flannel", labels,
				rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: flannelName, Name: "flannel"}),
			configMap(flannelName, "kube-flannel-cfg", labels, data),
			daemonset,
		),
	}, nil
}

// flannelNetwork is flannel's own configuration.
func flannelNetwork(spec *clusterv1alpha1.Provision) (string, error) {
	prefixes, err := parseCIDRs(spec.Network.KubePodsCIDR)
	if err != nil {
		return "", fmt.Errorf("spec.provision.network.kubePodsCIDR: %w", err)
	}
	v4, v6 := byFamily(prefixes)
	backend := map[string]any{"Type": spec.Network.Flannel.BackendMode}
	if spec.Network.Flannel.DirectRouting {
		backend["DirectRouting"] = true
	}
	conf := map[string]any{
		"EnableIPv4":     v4.IsValid(),
		"EnableIPv6":     v6.IsValid(),
		"EnableNFTables": spec.Kubernetes.ProxyMode == "nftables",
		"Backend":        backend,
	}
	if v4.IsValid() {
		conf["Network"] = v4.String()
	}
	if v6.IsValid() {
		conf["IPv6Network"] = v6.String()
	}
	content, err := json.Marshal(conf)
	if err != nil {
		return "", fmt.Errorf("marshal flannel's configuration: %w", err)
	}
	return string(content), nil
}

// byFamily is the IPv4 and the IPv6 network among those given; one that is missing is not valid.
func byFamily(prefixes []netip.Prefix) (v4, v6 netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is4() {
			v4 = p
		} else {
			v6 = p
		}
	}
	return v4, v6
}

func flannelDaemonSet(image, plugin, apiServer string, config map[string]string) (*appsv1.DaemonSet, error) {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
		}}
	}
	env := []corev1.EnvVar{
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		{Name: "EVENT_QUEUE_DEPTH", Value: "5000"},
		{Name: "CONT_WHEN_CACHE_NOT_READY", Value: "false"},
	}
	if apiServer != "" {
		host, port, err := hostPort(apiServer)
		if err != nil {
			return nil, err
		}
		// Flannel must not wait for Services to work: they may wait for it.
		env = append(env,
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: host},
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: port})
	}
	volume := func(name, path string, kind corev1.HostPathType) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind},
		}}
	}
	mount := func(name, path string) corev1.VolumeMount { return corev1.VolumeMount{Name: name, MountPath: path} }
	copies := func(name, image, from, to string, mounts ...corev1.VolumeMount) corev1.Container {
		return corev1.Container{
			Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"cp"}, Args: []string{"-f", from, to}, VolumeMounts: mounts,
		}
	}
	labels := map[string]string{"app": "flannel", "k8s-app": "flannel"}
	return &appsv1.DaemonSet{
		TypeMeta: apps("DaemonSet"), ObjectMeta: named(flannelName, "kube-flannel-ds", labels),
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "flannel"}},
			Template: corev1.PodTemplateSpec{
				// Flannel reads its configuration only when it starts.
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{configAnnotation: digestOf(config)}},
				Spec: corev1.PodSpec{
					HostNetwork:        true,
					PriorityClassName:  "system-node-critical",
					ServiceAccountName: "flannel",
					NodeSelector:       map[string]string{corev1.LabelOSStable: "linux"},
					Tolerations:        []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					InitContainers: []corev1.Container{
						copies("install-cni-plugin", plugin, "/flannel", flannelPlugin, mount("cni-plugin", "/opt/cni/bin")),
						copies("install-cni", image, "/etc/kube-flannel/cni-conf.json", flannelConflist,
							mount("cni", "/etc/cni/net.d"), mount("config", "/etc/kube-flannel")),
					},
					Containers: []corev1.Container{{
						Name: flannelName, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
						Command: []string{"/opt/bin/flanneld"}, Args: []string{"--ip-masq", "--kube-subnet-mgr"},
						Env: env,
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("50Mi"),
						}},
						// Until this file is there, the sandbox of every pod fails and is tried again only after seconds.
						ReadinessProbe: &corev1.Probe{
							ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
								Command: []string{"sh", "-c", "test -f /run/flannel/subnet.env"},
							}},
							PeriodSeconds: 1, TimeoutSeconds: 5,
						},
						SecurityContext: &corev1.SecurityContext{
							Privileged:   new(false),
							Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}},
						},
						VolumeMounts: []corev1.VolumeMount{
							mount("run", "/run/flannel"), mount("config", "/etc/kube-flannel"), mount("xtables-lock", "/run/xtables.lock"),
						},
					}},
					Volumes: []corev1.Volume{
						volume("run", "/run/flannel", corev1.HostPathDirectoryOrCreate),
						volume("cni-plugin", "/opt/cni/bin", corev1.HostPathDirectoryOrCreate),
						volume("cni", "/etc/cni/net.d", corev1.HostPathDirectoryOrCreate),
						volume("xtables-lock", "/run/xtables.lock", corev1.HostPathFileOrCreate),
						{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: "kube-flannel-cfg"},
						}}},
					},
				},
			},
		},
	}, nil
}
