package interpreter

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOnHub(t *testing.T) {
	own, open, external := Hub{Embedded: true}, Hub{Embedded: true, Webhooks: true}, Hub{}
	type m = map[string]any
	object := func(apiVersion, kind string, rest m) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: m{"apiVersion": apiVersion, "kind": kind, "metadata": m{"name": "a"}}}
		maps.Copy(o.Object, rest)
		return o
	}
	const admission = "admissionregistration.k8s.io/v1"
	service := m{"spec": m{"service": m{"name": "metrics"}}}
	for name, c := range map[string]struct {
		object *unstructured.Unstructured
		hub    Hub
		want   string // a part of the message; empty: no message
	}{
		"Deployment":          {object("apps/v1", "Deployment", nil), own, ""},
		"Policy":              {object(admission, "ValidatingAdmissionPolicy", nil), own, "in force on the hub"},
		"PolicyBinding":       {object(admission, "ValidatingAdmissionPolicyBinding", nil), own, "in force on the hub"},
		"Webhooks":            {object(admission, "ValidatingWebhookConfiguration", nil), own, ""},
		"WebhooksTurnedOn":    {object(admission, "MutatingWebhookConfiguration", nil), open, "cannot reach its webhooks"},
		"WebhooksExternal":    {object(admission, "MutatingWebhookConfiguration", nil), external, "cannot reach its webhooks"},
		"FlowSchema":          {object("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", nil), external, "which requests"},
		"RoleBinding":         {object("rbac.authorization.k8s.io/v1", "RoleBinding", m{"roleRef": m{"name": "edit"}}), own, `"edit"`},
		"ClusterRoleBinding":  {object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", m{"roleRef": m{"name": "admin"}}), own, `"admin"`},
		"Role":                {object("rbac.authorization.k8s.io/v1", "Role", nil), own, ""},
		"AggregatedRole":      {object("rbac.authorization.k8s.io/v1", "ClusterRole", m{"metadata": m{"labels": m{"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}), own, `"view"`},
		"APIService":          {object("apiregistration.k8s.io/v1", "APIService", service), own, "nothing answers for it"},
		"APIServiceExternal":  {object("apiregistration.k8s.io/v1", "APIService", service), external, "cannot be deleted"},
		"APIServiceOfADef":    {object("apiregistration.k8s.io/v1", "APIService", nil), own, ""},
		"DefinitionConverted": {object("apiextensions.k8s.io/v1", "CustomResourceDefinition", m{"spec": m{"conversion": m{"strategy": "Webhook"}}}), own, "version that is stored"},
		"Definition":          {object("apiextensions.k8s.io/v1", "CustomResourceDefinition", m{"spec": m{"conversion": m{"strategy": "None"}}}), own, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := OnHub(c.object, c.hub); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
}
