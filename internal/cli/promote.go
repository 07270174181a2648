package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/render"
)

// promoting has the flags of "orrery promote". The command makes an object of a member a template
// of the hub, with a policy that places it in that member only.
type promoting struct {
	reaching

	clusterPolicy, dryRun bool
	policy                string
	timeout               time.Duration
}

func newPromote(s streams) *cobra.Command {
	p := &promoting{reaching: reaching{streams: s}}
	cmd := &cobra.Command{
		Use:   "promote TYPE/NAME [-C CLUSTER]",
		Short: "Turn an object of a cluster into a template that is placed in that cluster",
		Long: `Make an object that runs in a cluster a template of the hub, with a policy that places it in that
cluster and nowhere else. The object is adopted: nothing but the marks of the hub changes, and
it stays when the template goes. If the hub finds that anything would change, it leaves the
object alone, which is told, and the exit code is 1. If another policy would decide where it
belongs, nothing is made.

First the policy is made, then the template. If it is cut off, run it again.

A PropagationPolicy adopts where this hub made the namespace in the cluster, or if the hub's
Namespace has the label ` + workv1alpha2.AllowTakeOverLabel + `=true; --cluster-policy makes a
ClusterPropagationPolicy instead, which is an administrator's to make and needs no label.`,
		Example: `  orrery promote deploy/web -n shop -C oak --dry-run
  orrery promote deploy/web -n shop -C oak`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return p.completeObjects(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return asKubectl(p.run(cmd.Context(), args)) },
	}
	p.add(cmd, "the cluster that has it, by its name or a pattern; needed if several have it")
	flags := cmd.Flags()
	flags.BoolVar(&p.dryRun, "dry-run", false, "only print what would be made")
	flags.BoolVar(&p.clusterPolicy, "cluster-policy", false, "make a ClusterPropagationPolicy; always of what is in no namespace")
	flags.StringVar(&p.policy, "policy-name", "", "name of the policy (default: KIND-NAME, of a ClusterPropagationPolicy KIND-NAMESPACE-NAME)")
	flags.DurationVar(&p.timeout, "timeout", time.Minute, "how long to wait until the object is adopted")
	return cmd
}

// promotion has the objects to create on the hub for one promoted object: a template, a policy and
// sometimes a namespace. promoting.plan fills it.
type promotion struct {
	cluster  string
	live     *unstructured.Unstructured
	template *unstructured.Unstructured
	policy   client.Object
	// kind is that of policy: the client clears the kind in an object that it creates.
	kind string
	// ours is policy in the form of a PropagationPolicy, also if policy is a ClusterPropagationPolicy.
	ours      *policyv1alpha1.PropagationPolicy
	namespace *corev1.Namespace // nil: the hub has the namespace, or the template has none
	there     bool              // promoting.make found the template on the hub
}

func (p *promoting) run(ctx context.Context, args []string) error {
	what := strings.Join(args, "/")
	if len(args) == 0 || strings.Count(what, "/") != 1 || strings.HasPrefix(what, "/") || strings.HasSuffix(what, "/") {
		return usageError{errors.New("want exactly one object, TYPE/NAME as in deploy/web")}
	}
	h, err := p.hub.api(ctx, p.err)
	if err != nil {
		return err
	}
	clusters, err := p.having(ctx, h, what, "")
	if err != nil {
		return err
	}
	if len(clusters) > 1 {
		return p.several(what, clusters)
	}
	c, err := client.New(h.config, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	m, err := p.plan(ctx, h, c, clusters[0], what)
	if err != nil {
		return err
	}
	if p.dryRun {
		return m.print(p.out)
	}
	if err := p.make(ctx, c, m); err != nil {
		return err
	}
	return p.wait(ctx, c, m)
}

// plan reads the object what (TYPE/NAME) from its cluster, and returns the objects to create for it
// on the hub. If the object must not be promoted, it returns the reason as an error. It creates
// nothing.
func (p *promoting) plan(ctx context.Context, h *hubAPI, c client.Client, cluster, what string) (*promotion, error) {
	at, err := h.member(cluster, p.namespace)
	if err != nil {
		return nil, err
	}
	mapper, err := at.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	kind, name, _ := strings.Cut(what, "/")
	mapping, err := mappingOf(mapper, kind)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cluster, err)
	}
	members, err := dynamic.NewForConfig(at.config)
	if err != nil {
		return nil, err
	}
	m := &promotion{cluster: cluster}
	objects := dynamic.ResourceInterface(members.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		objects = members.Resource(mapping.Resource).Namespace(at.namespace)
	}
	if m.live, err = objects.Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("get the object from cluster %s: %w", cluster, err)
	}
	if owner := metav1.GetControllerOf(m.live); owner != nil {
		return nil, fmt.Errorf("%s is made by %s %q there: promote that", what, owner.Kind, owner.Name)
	}
	if m.live.GetDeletionTimestamp() != nil {
		return nil, fmt.Errorf("%s is being deleted in cluster %s", what, cluster)
	}
	if m.template, err = render.Template(m.live); err != nil {
		return nil, err
	}
	p.makePolicy(m)
	return m, p.check(ctx, c, m, members)
}

// makePolicy sets m.policy, m.kind and m.ours to a policy that places m.template in m.cluster and
// nowhere else. It is a ClusterPropagationPolicy with --cluster-policy or for a cluster-scoped
// template, otherwise a PropagationPolicy.
func (p *promoting) makePolicy(m *promotion) {
	gvk, namespace := m.template.GroupVersionKind(), m.template.GetNamespace()
	spec := policyv1alpha1.PropagationSpec{
		ResourceSelectors: []policyv1alpha1.ResourceSelector{{
			APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: namespace, Name: m.template.GetName(),
		}},
		Placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{m.cluster}}},
	}
	parts := []string{strings.ToLower(gvk.Kind), namespace, strings.ToLower(strings.ReplaceAll(m.template.GetName(), ":", "-"))}
	if namespace == "" || !p.clusterPolicy {
		parts = []string{parts[0], parts[2]}
	}
	name := cmp.Or(p.policy, strings.Join(parts, "-"))
	if p.clusterPolicy || namespace == "" {
		o := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		o.SetGroupVersionKind(policyv1alpha1.GroupVersion.WithKind("ClusterPropagationPolicy"))
		m.policy, m.kind, m.ours = o, o.Kind, o.Propagation()
		return
	}
	o := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	o.SetGroupVersionKind(policyv1alpha1.GroupVersion.WithKind("PropagationPolicy"))
	m.policy, m.kind, m.ours = o, o.Kind, o.Propagation()
}

// check compares m with what the hub has, and returns an error if something prevents the promotion.
// Existing objects of the same names must come from an earlier run. The namespace must be one that
// this hub created in the cluster, unless the policy may adopt objects of others. members is a
// client of that cluster. If the hub lacks the namespace, check sets m.namespace.
func (p *promoting) check(ctx context.Context, c client.Client, m *promotion, members dynamic.Interface) error {
	kind, name := m.kind, client.ObjectKeyFromObject(m.policy)
	hasPolicy, err := p.hasPolicy(ctx, c, m)
	if err != nil {
		return err
	}
	has := &unstructured.Unstructured{}
	has.SetGroupVersionKind(m.template.GroupVersionKind())
	err = c.Get(ctx, client.ObjectKeyFromObject(m.template), has)
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the hub does not serve %s: apply its CustomResourceDefinition there first", m.template.GroupVersionKind())
	case apierrors.IsNotFound(err) && m.live.GetLabels()[workv1alpha2.BindingLabel] != "":
		return fmt.Errorf("%s %q was placed in cluster %s by a hub: its label %s says so", m.template.GetKind(), m.template.GetName(), m.cluster, workv1alpha2.BindingLabel)
	case err == nil && !hasPolicy:
		return fmt.Errorf("the hub has the %s %q already, and %s %s is not what places it: write a policy that does", m.template.GetKind(), m.template.GetName(), kind, name.Name)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("ask the hub for %s %q: %w", m.template.GetKind(), m.template.GetName(), err)
	case err != nil: // the template would be placed as soon as it is created
		if err := m.first(ctx, c); err != nil {
			return err
		}
	}
	namespace := m.template.GetNamespace()
	if namespace == "" {
		return nil
	}
	on := &corev1.Namespace{}
	switch err := c.Get(ctx, types.NamespacedName{Name: namespace}, on); {
	case apierrors.IsNotFound(err):
		m.namespace = &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	case err != nil:
		return fmt.Errorf("ask the hub for namespace %s: %w", namespace, err)
	}
	if kind != "PropagationPolicy" || on.Labels[workv1alpha2.AllowTakeOverLabel] == "true" {
		return nil
	}
	// For a caller that may not read the namespace in the member, its owner is unknown. The hub
	// decides in any case.
	there, err := members.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(ctx, namespace, metav1.GetOptions{})
	if err == nil && there.GetLabels()[workv1alpha2.NamespaceLabel] == "" {
		return fmt.Errorf("policies of namespace %s may not adopt what others made in cluster %s: have an administrator give that Namespace of the hub the label %s=true, or use --cluster-policy",
			namespace, m.cluster, workv1alpha2.AllowTakeOverLabel)
	}
	return nil
}

// first returns an error if another policy would place the template, and could place it in other
// clusters. It also returns one if no policy may place the template.
func (m *promotion) first(ctx context.Context, c client.Client) error {
	policies, err := m.competingPolicies(ctx, c)
	if err != nil {
		return err
	}
	index := policy.NewIndex(policies...)
	// The hub may have the policy from an earlier run, with another priority.
	if _, has := index.Get(policy.Name(m.ours)); !has {
		index.Set(m.ours)
	}
	claims := index.Claims(m.template)
	if len(claims) == 0 {
		return fmt.Errorf("no policy may place %s %q: every cluster makes it for itself, or it is the hub's own", m.template.GetKind(), m.template.GetName())
	}
	if by := policy.Name(claims[0].Policy); by != policy.Name(m.ours) {
		return m.decidedBy(policy.Kind(by.Namespace), by.Name)
	}
	return nil
}

// competingPolicies lists the policies of the hub that could have precedence over m.ours.
// Cluster-wide policies are listed only if m.ours is one, since they have no precedence over the
// policy of a namespace. So a tenant needs no right to list them. A missing right is an error that
// names it.
func (m *promotion) competingPolicies(ctx context.Context, c client.Client) (policies []*policyv1alpha1.PropagationPolicy, err error) {
	listError := func(what string, err error) error {
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("nothing is made, because another policy may come first, and to know that takes the right to list %s: %w", what, err)
		}
		return fmt.Errorf("list %s of the hub: %w", what, err)
	}
	if namespace := m.template.GetNamespace(); namespace != "" {
		var list policyv1alpha1.PropagationPolicyList
		if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return nil, listError("propagationpolicies.policy.orrery.dev in namespace "+namespace, err)
		}
		for i := range list.Items {
			policies = append(policies, &list.Items[i])
		}
	}
	if m.kind == "ClusterPropagationPolicy" {
		var list policyv1alpha1.ClusterPropagationPolicyList
		if err := c.List(ctx, &list); err != nil {
			return nil, listError("clusterpropagationpolicies.policy.orrery.dev", err)
		}
		for i := range list.Items {
			policies = append(policies, list.Items[i].Propagation())
		}
	}
	return policies, nil
}

// decidedBy returns the error that the policy with this kind and name, and not m.policy, places the
// template.
func (m *promotion) decidedBy(kind, name string) error {
	return fmt.Errorf("%s %s selects it, too, and comes first: it decides where %s %q belongs", kind, name, m.template.GetKind(), m.template.GetName())
}

// hasPolicy reports whether the hub has a policy of the kind and name of m.policy. It also returns
// an error if that policy selects or places other objects, so that it does not come from an earlier
// run.
func (*promoting) hasPolicy(ctx context.Context, c client.Client, m *promotion) (bool, error) {
	kind, name := m.kind, client.ObjectKeyFromObject(m.policy)
	var has policyv1alpha1.PropagationSpec
	var err error
	if kind == "PropagationPolicy" {
		var o policyv1alpha1.PropagationPolicy
		err = c.Get(ctx, name, &o)
		has = o.Spec
	} else {
		var o policyv1alpha1.ClusterPropagationPolicy
		err = c.Get(ctx, name, &o)
		has = o.Spec
	}
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the hub for %s %s: %w", kind, name.Name, err)
	case !equality.Semantic.DeepEqual(has.ResourceSelectors, m.ours.Spec.ResourceSelectors) || !equality.Semantic.DeepDerivative(m.ours.Spec.Placement, has.Placement),
		// The policy would overwrite differences of the object.
		cmp.Or(has.ConflictResolution, policyv1alpha1.ConflictAbort) != policyv1alpha1.ConflictAbort:
		return true, fmt.Errorf("the hub has another %s %s: give this one a name with --policy-name", kind, name.Name)
	}
	return true, nil
}

// print prints the objects that make would create, as YAML documents in the order of their
// creation, for --dry-run.
func (m *promotion) print(w io.Writer) error {
	var all []any
	if m.namespace != nil {
		all = append(all, m.namespace)
	}
	for i, o := range append(all, m.policy, m.template.Object) {
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		before := ""
		if i > 0 {
			before = "---\n"
		}
		if _, err := io.WriteString(exact(w), before+string(text)); err != nil {
			return err
		}
	}
	return nil
}

// make creates the namespace, the policy and the template on the hub, unless they exist, and prints
// each. It sets m.there if the template exists. The policy comes before the template, because
// another policy could otherwise place the template elsewhere. After an error the objects before it
// exist, and the same command continues.
func (p *promoting) make(ctx context.Context, c client.Client, m *promotion) error {
	template := m.template.DeepCopy()
	objects := []client.Object{m.policy, template}
	if m.namespace != nil {
		objects = append([]client.Object{m.namespace}, objects...)
	}
	for _, o := range objects {
		gvk := o.GetObjectKind().GroupVersionKind()
		did := "created"
		err := c.Create(ctx, o, client.FieldOwner("orrery-promote"))
		if apierrors.IsAlreadyExists(err) { // check accepted the existing object
			did, err = "is there", nil
			m.there = m.there || o == client.Object(template)
		}
		if err != nil {
			return fmt.Errorf("make %s %s on the hub: %w; what was made before it places nothing by itself, and running this again goes on", gvk.Kind, o.GetName(), err)
		}
		name := strings.ToLower(gvk.Kind)
		if gvk.Group != "" {
			name += "." + gvk.Group
		}
		if err := say(p.out, "%s/%s %s\n", name, o.GetName(), did); err != nil {
			return err
		}
	}
	return nil
}

// wait waits until the hub has adopted the object in its cluster, and prints that. It returns an
// error if the hub or the cluster refuses, if another policy places the template, or after
// --timeout.
func (p *promoting) wait(ctx context.Context, c client.Client, m *promotion) error {
	const often = 250 * time.Millisecond
	kind, name := m.template.GetKind(), m.template.GetName()
	var refused error
	err := wait.PollUntilContextTimeout(ctx, often, p.timeout, true, func(ctx context.Context) (bool, error) {
		b, err := bindingOf(ctx, c, m.template)
		if err != nil || b == nil {
			return false, err
		}
		if by := b.Spec.PolicyRef; by.Kind != m.kind || by.Name != m.policy.GetName() {
			refused = m.decidedBy(by.Kind, by.Name)
			return true, nil
		}
		for _, item := range b.Status.AggregatedStatus {
			switch {
			case item.ClusterName != m.cluster:
			case item.Applied:
				return true, nil
			case item.AppliedMessage != "":
				refused = fmt.Errorf("cluster %s was left as it is: %s", m.cluster, item.AppliedMessage)
				return true, nil
			}
		}
		return false, nil
	})
	switch {
	case refused != nil:
		return refused
	case wait.Interrupted(err):
		return fmt.Errorf("%s %q is not adopted after %s: see kubectl --context hub get resourcebindings -o wide; the hub goes on, and running this again waits again", kind, name, p.timeout)
	case err != nil:
		return err
	}
	kept := ", which keeps it as it was"
	if m.there { // the existing template was not compared
		kept = ""
	}
	return say(p.out, "%s %s is placed in cluster %s%s\n", kind, name, m.cluster, kept)
}

// bindingOf requests the binding of a template; nil without an error if there is none yet. It
// compares kind, namespace and name of the template, and not its UID.
func bindingOf(ctx context.Context, c client.Client, template *unstructured.Unstructured) (*workv1alpha2.ResourceBinding, error) {
	is := func(of workv1alpha2.ObjectReference) bool {
		return of.APIVersion == template.GetAPIVersion() && of.Kind == template.GetKind() && of.Name == template.GetName()
	}
	if template.GetNamespace() == "" {
		var list workv1alpha2.ClusterResourceBindingList
		if err := c.List(ctx, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			if is(list.Items[i].Spec.Resource) {
				return list.Items[i].Binding(), nil
			}
		}
		return nil, nil
	}
	var list workv1alpha2.ResourceBindingList
	if err := c.List(ctx, &list, client.InNamespace(template.GetNamespace())); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if is(list.Items[i].Spec.Resource) {
			return list.Items[i].Binding(), nil
		}
	}
	return nil, nil
}
