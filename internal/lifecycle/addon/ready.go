package addon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Ready waits until all readiness checks of a group succeed, or ctx ends. The error then says what
// is not ready, and the reason from pods and events.
//
// A Deployment is ready when only pods of the applied version run, and enough of them are
// available. For a DaemonSet this must be true on each node, except for nodes without contact to
// their kubelet. A dead host therefore does not block the others.
func Ready(ctx context.Context, cfg *rest.Config, g Group) error {
	c, err := connect(cfg)
	if err != nil {
		return err
	}
	for _, gate := range g.Gates {
		if gate.Namespace == "" {
			gate.Namespace = g.Namespace
		}
		if err := c.pass(ctx, gate); err != nil {
			return fmt.Errorf("%s %s/%s: %w", gate.Kind, gate.Namespace, gate.Name, err)
		}
	}
	return nil
}

// pass waits until a readiness check succeeds.
func (c *cluster) pass(ctx context.Context, g Gate) error {
	var last workload
	for {
		w, err := c.look(ctx, g)
		if err != nil {
			if ctx.Err() != nil && last.why != "" {
				break
			}
			return err
		}
		if w.why == "" {
			return nil
		}
		last = w
		if pause(ctx) != nil {
			break
		}
	}
	// Take a moment more to find the reason, although the time is up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	why := []error{errors.New(last.why)}
	if reasons := c.reasons(ctx, last); len(reasons) > 0 {
		why = append(why, errors.New(strings.Join(reasons, "; ")))
	}
	if len(why) == 1 {
		return why[0]
	}
	return fmt.Errorf("%w: %w", why[0], why[1])
}

// workload is the last observed state of a workload.
type workload struct {
	object   client.Object
	selector *metav1.LabelSelector
	// why is the reason why it is not ready, or empty.
	why string
}

// look reads the workload of a readiness check.
func (c *cluster) look(ctx context.Context, g Gate) (workload, error) {
	switch g.Kind {
	case "Deployment":
		o := &appsv1.Deployment{}
		return c.see(ctx, g, o, func() (*metav1.LabelSelector, string, error) { return o.Spec.Selector, deploymentWhy(o), nil })
	case "StatefulSet":
		o := &appsv1.StatefulSet{}
		return c.see(ctx, g, o, func() (*metav1.LabelSelector, string, error) { return o.Spec.Selector, statefulSetWhy(o), nil })
	case "DaemonSet":
		o := &appsv1.DaemonSet{}
		return c.see(ctx, g, o, func() (*metav1.LabelSelector, string, error) {
			silent, err := c.silentNodes(ctx, o)
			return o.Spec.Selector, daemonSetWhy(o, silent, g.Nodes), err
		})
	default:
		return workload{}, fmt.Errorf("a gate is a Deployment, a DaemonSet or a StatefulSet, and not a %s", g.Kind)
	}
}

// see reads a workload, and calls judge if it exists.
func (c *cluster) see(ctx context.Context, g Gate, o client.Object, judge func() (*metav1.LabelSelector, string, error)) (workload, error) {
	there, err := c.get(ctx, o, g.Namespace, g.Name)
	w := workload{object: o, why: "it is not there"}
	if err == nil && there {
		w.selector, w.why, err = judge()
	}
	return w, err
}

const notSeen = "its controller has not seen it yet"

func deploymentWhy(o *appsv1.Deployment) string {
	replicas := ptr.Deref(o.Spec.Replicas, 1)
	available := slices.ContainsFunc(o.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
	})
	switch {
	case o.Status.ObservedGeneration < o.Generation:
		return notSeen
	case o.Status.UpdatedReplicas < replicas:
		return fmt.Sprintf("%d of %d pods are made", o.Status.UpdatedReplicas, replicas)
	case o.Status.Replicas > o.Status.UpdatedReplicas:
		return fmt.Sprintf("%d pods of before are still there", o.Status.Replicas-o.Status.UpdatedReplicas)
	// The strategy allows that some pods are missing, but not all.
	case !available, replicas > 0 && o.Status.AvailableReplicas == 0:
		return fmt.Sprintf("%d of %d pods are available", o.Status.AvailableReplicas, replicas)
	}
	return ""
}

func statefulSetWhy(o *appsv1.StatefulSet) string {
	replicas := ptr.Deref(o.Spec.Replicas, 1)
	switch {
	case o.Status.ObservedGeneration < o.Generation:
		return notSeen
	case o.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && o.Status.UpdatedReplicas < replicas:
		return fmt.Sprintf("%d of %d pods are made", o.Status.UpdatedReplicas, replicas)
	case o.Status.AvailableReplicas < replicas:
		return fmt.Sprintf("%d of %d pods are available", o.Status.AvailableReplicas, replicas)
	}
	return ""
}

// daemonSetWhy ignores the pods on silent nodes, whose state is unknown.
func daemonSetWhy(o *appsv1.DaemonSet, silent, atLeast int) string {
	wanted := int(o.Status.DesiredNumberScheduled) - silent
	switch {
	case o.Status.ObservedGeneration < o.Generation:
		return notSeen
	case int(o.Status.DesiredNumberScheduled) < atLeast:
		return fmt.Sprintf("it is to run on %d nodes, and there must be %d: a kubelet has not registered", o.Status.DesiredNumberScheduled, atLeast)
	case o.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType && int(o.Status.UpdatedNumberScheduled) < wanted:
		return fmt.Sprintf("%d of %d pods are made", o.Status.UpdatedNumberScheduled, wanted)
	case int(o.Status.NumberAvailable) < wanted:
		return fmt.Sprintf("%d of %d pods are available", o.Status.NumberAvailable, wanted)
	}
	return ""
}

// silentNodes counts the nodes without contact to the kubelet that have an unready pod of the
// DaemonSet. It lists nodes only if a pod is missing.
func (c *cluster) silentNodes(ctx context.Context, o *appsv1.DaemonSet) (int, error) {
	if s := o.Status; s.NumberAvailable >= s.DesiredNumberScheduled && s.UpdatedNumberScheduled >= s.DesiredNumberScheduled {
		return 0, nil
	}
	var nodes corev1.NodeList
	if err := c.list(ctx, &nodes); err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	silent := map[string]bool{}
	for _, n := range nodes.Items {
		for _, condition := range n.Status.Conditions {
			silent[n.Name] = silent[n.Name] || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown
		}
	}
	pods, err := c.pods(ctx, o.Namespace, o.Spec.Selector)
	if err != nil {
		return 0, err
	}
	counted := map[string]bool{}
	for _, p := range pods {
		if silent[p.Spec.NodeName] && !podReady(&p) {
			counted[p.Spec.NodeName] = true
		}
	}
	return len(counted), nil
}

func (c *cluster) pods(ctx context.Context, namespace string, selector *metav1.LabelSelector) ([]corev1.Pod, error) {
	match, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("parse selector: %w", err)
	}
	var pods corev1.PodList
	if err := c.list(ctx, &pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: match}); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return pods.Items, nil
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// maxReasons is the maximum number of pods in a message.
const maxReasons = 3

// reasons returns why the pods of a workload are not ready, or why it has none. It ignores errors.
func (c *cluster) reasons(ctx context.Context, w workload) []string {
	if w.object == nil || w.object.GetUID() == "" {
		return nil
	}
	pods, err := c.pods(ctx, w.object.GetNamespace(), w.selector)
	if err != nil {
		return nil
	}
	var all []string
	for i := range pods {
		p := &pods[i]
		if podReady(p) || p.DeletionTimestamp != nil {
			continue
		}
		if len(all) == maxReasons {
			return append(all, "and more")
		}
		where := ""
		if p.Spec.NodeName != "" {
			where = " on " + p.Spec.NodeName
		}
		why := cmp.Or(podWhy(p), c.warning(ctx, p), "not ready, in phase "+string(p.Status.Phase))
		all = append(all, fmt.Sprintf("pod %s%s: %s", p.Name, where, why))
	}
	if len(pods) == 0 {
		if why := c.warning(ctx, w.object); why != "" {
			all = append(all, why)
		}
	}
	return all
}

// podWhy returns why a pod is not ready, from its status.
func podWhy(p *corev1.Pod) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return explain(condition.Reason, condition.Message)
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		waiting, ended := s.State.Waiting, cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
		switch {
		case waiting != nil && waiting.Reason == "PodInitializing":
		case waiting != nil && waiting.Reason == "ContainerCreating":
			return ""
		case waiting != nil && waiting.Reason == "CrashLoopBackOff" && ended != nil, waiting == nil && ended != nil && ended.ExitCode != 0:
			return fmt.Sprintf("container %s ended with status %d: %s", s.Name, ended.ExitCode, explain(ended.Reason, ended.Message))
		case waiting != nil:
			return fmt.Sprintf("container %s (%s): %s", s.Name, s.Image, explain(waiting.Reason, waiting.Message))
		case s.State.Running != nil && !s.Ready && !slices.ContainsFunc(p.Status.InitContainerStatuses,
			func(init corev1.ContainerStatus) bool { return init.Name == s.Name }):
			return ""
		}
	}
	return ""
}

// eventTime returns the latest of the three times of an event.
func eventTime(e *corev1.Event) time.Time {
	latest := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(latest) {
			latest = t
		}
	}
	return latest
}

// explain joins a reason and a message. Both may be empty.
func explain(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + strings.TrimSpace(message)
}

// warning returns the last warning event about an object, or an empty string.
func (c *cluster) warning(ctx context.Context, o client.Object) string {
	var events corev1.EventList
	err := c.list(ctx, &events, client.InNamespace(o.GetNamespace()), client.MatchingFieldsSelector{
		Selector: fields.SelectorFromSet(fields.Set{"involvedObject.uid": string(o.GetUID()), "type": corev1.EventTypeWarning}),
	})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	return explain(last.Reason, last.Message)
}
