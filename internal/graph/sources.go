package graph

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// source describes the links that objects of a type have. read adds the links in the JSON body to
// s; invalid JSON adds none. o has the decoded metadata if meta is true, and is empty otherwise.
type source struct {
	read func(body []byte, o *object, s *said)
	// to are the kinds to which objects of the type refer by name. If any is true, they may also
	// refer to all other kinds.
	to  []schema.GroupKind
	any bool
	// says are the relations of the references by name.
	says []Relation
	// across: objects of the type may also refer to other namespaces. meta: read needs the object's
	// metadata.
	across, meta bool
	inverse      bool // the referred object uses the object of the type
	selects      bool // objects of the type select pods, and refer to nothing by name
	optional     bool // some clusters do not serve the type
}

var (
	podsTo = []schema.GroupKind{configMapKind, secretKind, claimKind, serviceAccountKind, storageClassKind, priorityClassKind, runtimeClassKind}
	pods   = source{read: readPods, to: podsTo, says: []Relation{Mount, Env, Pull, Account, Class, Storage}}

	// podMakers are the types whose objects have a pod template.
	podMakers = []schema.GroupResource{
		{Resource: "podtemplates"},
		{Resource: "replicationcontrollers"},
		{Group: "apps", Resource: "deployments"},
		{Group: "apps", Resource: "daemonsets"},
		{Group: "apps", Resource: "replicasets"},
		{Group: "apps", Resource: "statefulsets"},
		{Group: "batch", Resource: "cronjobs"},
		{Group: "batch", Resource: "jobs"},
	}

	// sources has the types whose objects have links; init adds podMakers.
	sources = map[schema.GroupResource]source{
		{Resource: "pods"}:            pods,
		{Resource: "serviceaccounts"}: {read: readServiceAccount, to: []schema.GroupKind{secretKind}, says: []Relation{Mount, Pull}},
		{Resource: "persistentvolumeclaims"}: {
			read: readClaim, to: []schema.GroupKind{volumeKind, storageClassKind}, says: []Relation{Storage}, any: true, across: true, meta: true,
		},
		{Resource: "persistentvolumes"}:                                                      {read: readVolume, to: []schema.GroupKind{storageClassKind, secretKind}, says: []Relation{Storage, Mount}, across: true},
		{Resource: "services"}:                                                               {read: readService, selects: true},
		{Resource: "events"}:                                                                 {read: readEvent},
		{Group: "policy", Resource: "poddisruptionbudgets"}:                                  {read: readBudget, selects: true},
		{Group: "networking.k8s.io", Resource: "networkpolicies"}:                            {read: readNetworkPolicy, selects: true},
		{Group: "networking.k8s.io", Resource: "ingresses"}:                                  {read: readIngress, to: []schema.GroupKind{serviceKind, secretKind, ingressClassKind}, says: []Relation{Route, TLS, Class}, any: true},
		{Group: gateways, Resource: "gateways"}:                                              {read: readGateway, to: []schema.GroupKind{gatewayClassKind, secretKind}, says: []Relation{Class, TLS}, any: true, across: true, meta: true, optional: true},
		{Group: gateways, Resource: "httproutes"}:                                            route,
		{Group: gateways, Resource: "grpcroutes"}:                                            route,
		{Group: gateways, Resource: "tcproutes"}:                                             route,
		{Group: gateways, Resource: "tlsroutes"}:                                             route,
		{Group: gateways, Resource: "udproutes"}:                                             route,
		{Group: rbac, Resource: "rolebindings"}:                                              binding,
		{Group: rbac, Resource: "clusterrolebindings"}:                                       binding,
		{Group: "autoscaling", Resource: "horizontalpodautoscalers"}:                         {read: readScaler, says: []Relation{Scale}, any: true},
		{Group: "autoscaling.k8s.io", Resource: "verticalpodautoscalers"}:                    {read: readScaler, says: []Relation{Scale}, any: true, optional: true},
		{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:   webhooks,
		{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}: webhooks,
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:               webhooks,
		{Group: "apiregistration.k8s.io", Resource: "apiservices"}:                           webhooks,
		{Group: "discovery.k8s.io", Resource: "endpointslices"}:                              {read: readSlice, to: []schema.GroupKind{serviceKind}, says: []Relation{Endpoints}, inverse: true, meta: true},
		{Group: "storage.k8s.io", Resource: "volumeattachments"}:                             {read: readAttachment, to: []schema.GroupKind{volumeKind, nodeKind}, says: []Relation{Storage, Node}},
	}

	route    = source{read: readRoute, to: []schema.GroupKind{serviceKind, gatewayKind}, says: []Relation{Route}, any: true, across: true, meta: true, optional: true}
	binding  = source{read: readBinding, to: []schema.GroupKind{roleKind, clusterRoleKind, serviceAccountKind}, says: []Relation{Binding}, across: true, meta: true}
	webhooks = source{read: readWebhooks, to: []schema.GroupKind{serviceKind}, says: []Relation{Webhook}, across: true}
)

func init() { //nolint:gochecknoinits // one map of what there is, of which some have the same value
	for _, gr := range podMakers {
		sources[gr] = pods
	}
	sets := pods
	sets.to = append([]schema.GroupKind{serviceKind}, podsTo...)
	sets.says = append([]Relation{Route}, pods.says...)
	sources[schema.GroupResource{Group: "apps", Resource: "statefulsets"}] = sets
}

// Source is a type whose objects may refer to a kind by name, as Sources returns it.
type Source struct {
	schema.GroupResource
	Says     []Relation // relations that the references can have
	Across   bool       // the object may be in another namespace than the referred one
	Inverse  bool       // the referred object uses the object of this type
	Optional bool       // some clusters do not serve the type
}

// Sources returns the types whose objects may refer to objects of the kind by name, sorted. It is
// nil for Images. The fleet's graph reads these types to find what uses an object.
func Sources(kind schema.GroupKind) (out []Source) {
	for gr, s := range sources {
		if s.any && kind != Images || slices.Contains(s.to, kind) {
			out = append(out, Source{gr, s.says, s.across, s.inverse, s.optional})
		}
	}
	slices.SortFunc(out, func(a, b Source) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Refers reports whether objects of a type can refer to other objects by name. It is false for
// Events and for types that only select pods.
func Refers(gr schema.GroupResource) bool {
	s, ok := sources[gr]
	return ok && (s.any || len(s.to) > 0)
}

// Referrers returns the types whose objects can refer to other objects by name, in no order.
func Referrers() (out []schema.GroupResource) {
	for gr := range sources {
		if Refers(gr) {
			out = append(out, gr)
		}
	}
	return out
}

// Selecting returns the types whose objects select pods of their namespace, such as Services,
// sorted.
func Selecting() (out []schema.GroupResource) {
	for gr, s := range sources {
		if s.selects {
			out = append(out, gr)
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Running returns pods and the types with a pod template, whose objects have images, in a fixed
// order.
func Running() []schema.GroupResource {
	return append([]schema.GroupResource{{Resource: "pods"}}, podMakers...)
}

// reference names an object in one of the forms that APIs use. The fields that a form does not have
// stay empty.
type reference struct {
	APIVersion Text `json:"apiVersion"`
	APIGroup   Text `json:"apiGroup"`
	Group      Text `json:"group"`
	Kind       Text `json:"kind"`
	Namespace  Text `json:"namespace"`
	Name       Text `json:"name"`
	UID        Text `json:"uid"`
}

func readServiceAccount(body []byte, _ *object, s *said) {
	var a struct {
		Secrets          list[named] `json:"secrets"`
		ImagePullSecrets list[named] `json:"imagePullSecrets"`
	}
	if !decode(body, &a) {
		return
	}
	for _, one := range a.Secrets {
		s.to(Mount, secretKind, one.Name)
	}
	for _, one := range a.ImagePullSecrets {
		s.to(Pull, secretKind, one.Name)
	}
}

func readClaim(body []byte, _ *object, s *said) {
	var c struct {
		Spec struct {
			VolumeName       Text      `json:"volumeName"`
			StorageClassName Text      `json:"storageClassName"`
			DataSource       reference `json:"dataSource"`
			DataSourceRef    reference `json:"dataSourceRef"`
		} `json:"spec"`
	}
	if !decode(body, &c) {
		return
	}
	s.to(Storage, volumeKind, c.Spec.VolumeName)
	s.to(Storage, storageClassKind, c.Spec.StorageClassName)
	for _, from := range []reference{c.Spec.DataSource, c.Spec.DataSourceRef} {
		if from.Kind != "" {
			s.across(Storage, schema.GroupKind{Group: string(from.APIGroup), Kind: string(from.Kind)}, from.Namespace, from.Name)
		}
	}
}

func readVolume(body []byte, _ *object, s *said) {
	var v struct {
		Spec struct {
			StorageClassName Text `json:"storageClassName"`
			CSI              struct {
				ControllerPublishSecretRef reference `json:"controllerPublishSecretRef"`
				NodeStageSecretRef         reference `json:"nodeStageSecretRef"`
				NodePublishSecretRef       reference `json:"nodePublishSecretRef"`
				ControllerExpandSecretRef  reference `json:"controllerExpandSecretRef"`
				NodeExpandSecretRef        reference `json:"nodeExpandSecretRef"`
			} `json:"csi"`
		} `json:"spec"`
	}
	if !decode(body, &v) {
		return
	}
	s.to(Storage, storageClassKind, v.Spec.StorageClassName)
	csi := &v.Spec.CSI
	for _, one := range []reference{csi.ControllerPublishSecretRef, csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.ControllerExpandSecretRef, csi.NodeExpandSecretRef} {
		s.across(Mount, secretKind, one.Namespace, one.Name)
	}
}

func readService(body []byte, _ *object, s *said) {
	var service struct {
		Spec struct {
			Selector map[string]Text `json:"selector"`
		} `json:"spec"`
	}
	if !decode(body, &service) {
		return
	}
	if selector := selecting(service.Spec.Selector); selector != nil {
		s.pods(selector)
	}
}

func readBudget(body []byte, _ *object, s *said) {
	var budget struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if !decode(body, &budget) {
		return
	}
	if selector := selectingBy(budget.Spec.Selector); selector != nil {
		s.pods(selector)
	}
}

func readNetworkPolicy(body []byte, _ *object, s *said) {
	var policy struct {
		Spec struct {
			PodSelector metav1.LabelSelector `json:"podSelector"`
		} `json:"spec"`
	}
	if !decode(body, &policy) {
		return
	}
	if selector := selectingBy(&policy.Spec.PodSelector); selector != nil {
		s.pods(selector)
	}
}

func readEvent(body []byte, _ *object, s *said) {
	var event struct {
		InvolvedObject reference `json:"involvedObject"`
	}
	if !decode(body, &event) {
		return
	}
	on := event.InvolvedObject
	if on.UID == "" { // an Event without it cannot be found by its object
		return
	}
	s.add(Link{Relation: Event, Kind: kindOf(on.APIVersion, on.Kind), Namespace: string(on.Namespace), Name: string(on.Name), UID: types.UID(on.UID)})
}

func readIngress(body []byte, _ *object, s *said) {
	type backend struct {
		Service  named     `json:"service"`
		Resource reference `json:"resource"`
	}
	var ingress struct {
		Spec struct {
			IngressClassName Text    `json:"ingressClassName"`
			DefaultBackend   backend `json:"defaultBackend"`
			TLS              list[struct {
				SecretName Text `json:"secretName"`
			}] `json:"tls"`
			Rules list[struct {
				HTTP struct {
					Paths list[struct {
						Backend backend `json:"backend"`
					}] `json:"paths"`
				} `json:"http"`
			}] `json:"rules"`
		} `json:"spec"`
	}
	if !decode(body, &ingress) {
		return
	}
	to := func(b *backend) {
		s.to(Route, serviceKind, b.Service.Name)
		if r := b.Resource; r.Kind != "" {
			s.to(Route, schema.GroupKind{Group: string(r.APIGroup), Kind: string(r.Kind)}, r.Name)
		}
	}
	to(&ingress.Spec.DefaultBackend)
	for _, rule := range ingress.Spec.Rules {
		for i := range rule.HTTP.Paths {
			to(&rule.HTTP.Paths[i].Backend)
		}
	}
	for _, one := range ingress.Spec.TLS {
		s.to(TLS, secretKind, one.SecretName)
	}
	s.to(Class, ingressClassKind, ingress.Spec.IngressClassName)
}

func readGateway(body []byte, _ *object, s *said) {
	var gateway struct {
		Spec struct {
			GatewayClassName Text `json:"gatewayClassName"`
			Listeners        list[struct {
				TLS struct {
					CertificateRefs list[reference] `json:"certificateRefs"`
				} `json:"tls"`
			}] `json:"listeners"`
		} `json:"spec"`
	}
	if !decode(body, &gateway) {
		return
	}
	s.to(Class, gatewayClassKind, gateway.Spec.GatewayClassName)
	for _, listener := range gateway.Spec.Listeners {
		for _, one := range listener.TLS.CertificateRefs {
			s.across(TLS, one.or("", "Secret"), one.Namespace, one.Name)
		}
	}
}

// or returns the kind of a reference of the Gateway API, in which group and kind may be missing.
// group and kind are the defaults. A missing kind is the default. A missing group is the default if
// the kind is the default kind or missing, else the core group.
func (r *reference) or(group, kind string) schema.GroupKind {
	if r.Kind == "" && r.Group == "" {
		return schema.GroupKind{Group: group, Kind: kind}
	}
	if r.Kind == "" {
		return schema.GroupKind{Group: string(r.Group), Kind: kind}
	}
	if r.Group == "" && string(r.Kind) == kind {
		return schema.GroupKind{Group: group, Kind: kind}
	}
	return schema.GroupKind{Group: string(r.Group), Kind: string(r.Kind)}
}

func readRoute(body []byte, _ *object, s *said) {
	var route struct {
		Spec struct {
			ParentRefs list[reference] `json:"parentRefs"`
			Rules      list[struct {
				BackendRefs list[reference] `json:"backendRefs"`
			}] `json:"rules"`
		} `json:"spec"`
	}
	if !decode(body, &route) {
		return
	}
	for _, one := range route.Spec.ParentRefs {
		s.across(Route, one.or(gateways, "Gateway"), one.Namespace, one.Name)
	}
	for _, rule := range route.Spec.Rules {
		for _, one := range rule.BackendRefs {
			s.across(Route, one.or("", "Service"), one.Namespace, one.Name)
		}
	}
}

func readBinding(body []byte, o *object, s *said) {
	var binding struct {
		RoleRef  reference       `json:"roleRef"`
		Subjects list[reference] `json:"subjects"`
	}
	if !decode(body, &binding) {
		return
	}
	switch kind := (schema.GroupKind{Group: rbac, Kind: string(binding.RoleRef.Kind)}); {
	case kind == clusterRoleKind, kind == roleKind && o.Metadata.Namespace != "":
		s.to(Binding, kind, binding.RoleRef.Name)
	}
	for _, subject := range binding.Subjects {
		if subject.Kind == "ServiceAccount" { // users and groups are not objects
			s.across(Binding, serviceAccountKind, subject.Namespace, subject.Name)
		}
	}
}

func readScaler(body []byte, _ *object, s *said) {
	var scaler struct {
		Spec struct {
			ScaleTargetRef reference `json:"scaleTargetRef"`
			TargetRef      reference `json:"targetRef"`
		} `json:"spec"`
	}
	if !decode(body, &scaler) {
		return
	}
	for _, one := range []reference{scaler.Spec.ScaleTargetRef, scaler.Spec.TargetRef} {
		s.to(Scale, kindOf(one.APIVersion, one.Kind), one.Name)
	}
}

func readWebhooks(body []byte, _ *object, s *said) {
	type config struct {
		Service reference `json:"service"`
	}
	var hooks struct {
		Webhooks list[struct {
			ClientConfig config `json:"clientConfig"`
		}] `json:"webhooks"`
		Spec struct {
			Service    reference `json:"service"`
			Conversion struct {
				Webhook struct {
					ClientConfig config `json:"clientConfig"`
				} `json:"webhook"`
			} `json:"conversion"`
		} `json:"spec"`
	}
	if !decode(body, &hooks) {
		return
	}
	to := func(r *reference) { s.across(Webhook, serviceKind, r.Namespace, r.Name) }
	for _, hook := range hooks.Webhooks {
		to(&hook.ClientConfig.Service)
	}
	to(&hooks.Spec.Service)
	to(&hooks.Spec.Conversion.Webhook.ClientConfig.Service)
}

func readSlice(_ []byte, o *object, s *said) {
	name := o.Metadata.Labels["kubernetes.io/service-name"]
	s.add(Link{Relation: Endpoints, Inverse: true, Kind: serviceKind, Name: string(name)})
}

func readAttachment(body []byte, _ *object, s *said) {
	var attachment struct {
		Spec struct {
			NodeName Text `json:"nodeName"`
			Source   struct {
				PersistentVolumeName Text `json:"persistentVolumeName"`
			} `json:"source"`
		} `json:"spec"`
	}
	if !decode(body, &attachment) {
		return
	}
	s.to(Storage, volumeKind, attachment.Spec.Source.PersistentVolumeName)
	s.to(Node, nodeKind, attachment.Spec.NodeName)
}
