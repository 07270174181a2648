package graph

import "k8s.io/apimachinery/pkg/runtime/schema"

// Pods decodes the fields with links from the JSON of a pod, or of an object with a pod template.
// Missing fields, and fields of another type, are empty.
type Pods struct {
	Template template `json:"template"` // of a PodTemplate
	Spec     struct {
		podSpec     `json:",inline"`
		NodeName    Text     `json:"nodeName"`
		Template    template `json:"template"`
		JobTemplate struct {
			Spec struct {
				Template template `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
		// ServiceName and VolumeClaimTemplates are fields of a StatefulSet.
		ServiceName          Text `json:"serviceName"`
		VolumeClaimTemplates list[struct {
			Spec struct {
				StorageClassName Text `json:"storageClassName"`
			} `json:"spec"`
		}] `json:"volumeClaimTemplates"`
	} `json:"spec"`
}

type (
	named struct {
		Name Text `json:"name"`
	}
	container struct {
		Image Text `json:"image"`
		Env   list[struct {
			ValueFrom struct {
				ConfigMapKeyRef named `json:"configMapKeyRef"`
				SecretKeyRef    named `json:"secretKeyRef"`
			} `json:"valueFrom"`
		}] `json:"env"`
		EnvFrom list[struct {
			ConfigMapRef named `json:"configMapRef"`
			SecretRef    named `json:"secretRef"`
		}] `json:"envFrom"`
	}
	volume struct {
		ConfigMap named `json:"configMap"`
		Secret    struct {
			SecretName Text `json:"secretName"`
		} `json:"secret"`
		PersistentVolumeClaim struct {
			ClaimName Text `json:"claimName"`
		} `json:"persistentVolumeClaim"`
		Projected struct {
			Sources list[struct {
				ConfigMap named `json:"configMap"`
				Secret    named `json:"secret"`
			}] `json:"sources"`
		} `json:"projected"`
		CSI struct {
			NodePublishSecretRef named `json:"nodePublishSecretRef"`
		} `json:"csi"`
		Ephemeral struct {
			VolumeClaimTemplate struct {
				Spec struct {
					StorageClassName Text `json:"storageClassName"`
				} `json:"spec"`
			} `json:"volumeClaimTemplate"`
		} `json:"ephemeral"`
	}
	podSpec struct {
		Containers          list[container] `json:"containers"`
		InitContainers      list[container] `json:"initContainers"`
		EphemeralContainers list[container] `json:"ephemeralContainers"`
		ImagePullSecrets    list[named]     `json:"imagePullSecrets"`
		ServiceAccountName  Text            `json:"serviceAccountName"`
		PriorityClassName   Text            `json:"priorityClassName"`
		RuntimeClassName    Text            `json:"runtimeClassName"`
		Volumes             list[volume]    `json:"volumes"`
	}
	template struct {
		Spec podSpec `json:"spec"`
	}
)

var (
	podKind            = schema.GroupKind{Kind: "Pod"}
	nodeKind           = schema.GroupKind{Kind: "Node"}
	configMapKind      = schema.GroupKind{Kind: "ConfigMap"}
	secretKind         = schema.GroupKind{Kind: "Secret"}
	serviceKind        = schema.GroupKind{Kind: "Service"}
	serviceAccountKind = schema.GroupKind{Kind: "ServiceAccount"}
	claimKind          = schema.GroupKind{Kind: "PersistentVolumeClaim"}
	volumeKind         = schema.GroupKind{Kind: "PersistentVolume"}
	storageClassKind   = schema.GroupKind{Group: "storage.k8s.io", Kind: "StorageClass"}
	priorityClassKind  = schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}
	runtimeClassKind   = schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"}
	ingressClassKind   = schema.GroupKind{Group: "networking.k8s.io", Kind: "IngressClass"}
	gatewayKind        = schema.GroupKind{Group: gateways, Kind: "Gateway"}
	gatewayClassKind   = schema.GroupKind{Group: gateways, Kind: "GatewayClass"}
	roleKind           = schema.GroupKind{Group: rbac, Kind: "Role"}
	clusterRoleKind    = schema.GroupKind{Group: rbac, Kind: "ClusterRole"}
)

const (
	gateways = "gateway.networking.k8s.io"
	rbac     = "rbac.authorization.k8s.io"
)

// all returns the pod specs at the four places where an object can have one: in spec,
// spec.template, spec.jobTemplate and template. An object has one of them, and the others are
// empty.
func (p *Pods) all() [4]*podSpec {
	return [4]*podSpec{&p.Spec.podSpec, &p.Spec.Template.Spec, &p.Spec.JobTemplate.Spec.Template.Spec, &p.Template.Spec}
}

// Images returns the images of all containers, also init and ephemeral ones, with duplicates.
func (p *Pods) Images() (out []string) {
	for _, pod := range p.all() {
		for _, containers := range [][]container{pod.InitContainers, pod.Containers, pod.EphemeralContainers} {
			for _, c := range containers {
				if c.Image != "" {
					out = append(out, string(c.Image))
				}
			}
		}
	}
	return out
}

// ImagesOf returns the images of all containers in the JSON of a pod, or of an object with a pod
// template, with duplicates. It is nil for invalid JSON.
func ImagesOf(body []byte) []string {
	var p Pods
	if !decode(body, &p) {
		return nil
	}
	return p.Images()
}

// References returns the links to objects that the pods use by name, each once. The node and the
// images are left out. Also left out is what every pod uses by default: the ServiceAccount
// "default" and the ConfigMap kube-root-ca.crt.
func (p *Pods) References() []Link {
	var s said
	for _, pod := range p.all() {
		pod.references(&s)
	}
	s.to(Route, serviceKind, p.Spec.ServiceName)
	for _, c := range p.Spec.VolumeClaimTemplates {
		s.to(Storage, storageClassKind, c.Spec.StorageClassName)
	}
	return s.links
}

// references adds the links of one pod spec to s, as References describes them.
func (p *podSpec) references(s *said) {
	configMap := func(r Relation, name Text) {
		if name != "kube-root-ca.crt" {
			s.to(r, configMapKind, name)
		}
	}
	for _, containers := range [][]container{p.InitContainers, p.Containers, p.EphemeralContainers} {
		for _, c := range containers {
			for _, e := range c.Env {
				configMap(Env, e.ValueFrom.ConfigMapKeyRef.Name)
				s.to(Env, secretKind, e.ValueFrom.SecretKeyRef.Name)
			}
			for _, e := range c.EnvFrom {
				configMap(Env, e.ConfigMapRef.Name)
				s.to(Env, secretKind, e.SecretRef.Name)
			}
		}
	}
	if p.ServiceAccountName != "default" {
		s.to(Account, serviceAccountKind, p.ServiceAccountName)
	}
	s.to(Class, priorityClassKind, p.PriorityClassName)
	s.to(Class, runtimeClassKind, p.RuntimeClassName)
	for _, one := range p.ImagePullSecrets {
		s.to(Pull, secretKind, one.Name)
	}
	for _, v := range p.Volumes {
		configMap(Mount, v.ConfigMap.Name)
		s.to(Mount, secretKind, v.Secret.SecretName)
		s.to(Mount, secretKind, v.CSI.NodePublishSecretRef.Name)
		s.to(Mount, claimKind, v.PersistentVolumeClaim.ClaimName)
		s.to(Storage, storageClassKind, v.Ephemeral.VolumeClaimTemplate.Spec.StorageClassName)
		for _, one := range v.Projected.Sources {
			configMap(Mount, one.ConfigMap.Name)
			s.to(Mount, secretKind, one.Secret.Name)
		}
	}
}

// readPods adds all links of a pod, or of an object with a pod template: to what the pods use,
// their images and their node. Invalid JSON adds none. It is the function read of a source.
func readPods(body []byte, _ *object, s *said) {
	var p Pods
	if !decode(body, &p) {
		return
	}
	for _, l := range p.References() {
		s.add(l)
	}
	for _, image := range p.Images() {
		s.add(Link{Relation: Image, Kind: Images, Name: image})
	}
	s.to(Node, nodeKind, p.Spec.NodeName)
}

// Conditions are the status conditions of an object, as JSON has them.
type Conditions []struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// Ready reports whether a condition Ready or Available is True; one of them is enough. known is
// false if there is no such condition.
func (c Conditions) Ready() (ready, known bool) {
	for _, one := range c {
		if one.Type == "Ready" || one.Type == "Available" {
			ready, known = ready || one.Status == "True", true
		}
	}
	return ready, known
}
