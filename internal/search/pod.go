package search

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/store"
)

// podSummary has the cells of a pod in kubectl's table: ready containers, status and restarts. The
// status is one word for the state of all containers, which is not a field of the pod.
type podSummary struct{ ready, status, restarts string }

// summarize returns the cells of a pod as kubectl computes them. While an init container has not
// finished, the first such container defines the status. Otherwise the first container with a
// reason does.
func summarize(p *corev1.Pod) podSummary {
	c := podCount{status: or(p.Status.Reason, string(p.Status.Phase)), total: len(p.Spec.Containers)}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonSchedulingGated {
			c.status = corev1.PodReasonSchedulingGated
		}
	}
	initializing := c.initContainers(p)
	if !initializing || podIs(p, corev1.PodInitialized) {
		c.containers(p)
	}
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == "NodeLost":
		c.status = "Unknown"
	case p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
		c.status = "Terminating"
	}
	s := podSummary{ready: fmt.Sprintf("%d/%d", c.ready, c.total), status: c.status, restarts: strconv.Itoa(int(c.restarts))}
	if c.restarts > 0 && !c.last.IsZero() {
		s.restarts += fmt.Sprintf(" (%s ago)", since(c.last))
	}
	return s
}

// podCount sums up the containers of a pod, to compute a podSummary.
type podCount struct {
	status       string
	ready, total int
	restarts     int32
	last         time.Time // time of the last restart
}

func (c *podCount) restarted(s corev1.ContainerStatus) {
	c.restarts += s.RestartCount
	if t := s.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(c.last) {
		c.last = t.FinishedAt.Time
	}
}

// initContainers adds the init containers of a pod to c. It returns true if one has not finished,
// and sets the status from the first such one. Sidecars, which are init containers that keep
// running, count as containers.
func (c *podCount) initContainers(p *corev1.Pod) (initializing bool) {
	sidecars := map[string]bool{}
	for _, i := range p.Spec.InitContainers {
		if i.RestartPolicy != nil && *i.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[i.Name] = true
			c.total++
		}
	}
	of := podCount{}
	for i, s := range p.Status.InitContainerStatuses {
		of.restarted(s)
		if sidecars[s.Name] {
			c.restarted(s)
		}
		t, w := s.State.Terminated, s.State.Waiting
		switch {
		case t != nil && t.ExitCode == 0:
			continue
		case sidecars[s.Name] && s.Started != nil && *s.Started:
			if s.Ready {
				c.ready++
			}
			continue
		case t != nil:
			c.status = "Init:" + terminated(t)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			c.status = "Init:" + w.Reason
		default:
			c.status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		initializing = true
		break
	}
	if initializing && !podIs(p, corev1.PodInitialized) {
		c.restarts, c.last = of.restarts, of.last // no other containers have run yet
	}
	return initializing
}

// containers adds the containers of a pod to c, and sets the status from them.
func (c *podCount) containers(p *corev1.Pod) {
	running, failed := false, ""
	for _, s := range slices.Backward(p.Status.ContainerStatuses) {
		c.restarted(s)
		t, w := s.State.Terminated, s.State.Waiting
		switch {
		case w != nil && w.Reason != "":
			c.status = w.Reason
		case t != nil:
			c.status = terminated(t)
			if t.ExitCode != 0 {
				failed = c.status
			}
		case s.Ready && s.State.Running != nil:
			running = true
			c.ready++
		}
	}
	if c.status != "Completed" {
		return
	}
	// The status Completed of one container says nothing about the other containers.
	switch {
	case running && podIs(p, corev1.PodReady):
		c.status = "Running"
	case failed != "":
		c.status = failed
	case running:
		c.status = "NotReady"
	}
}

func terminated(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

func podIs(p *corev1.Pod, t corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		if podIs(p, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

// ended returns the condition Completed for the table row of a pod that has succeeded or failed, as
// API servers do; nil for any other pod.
func ended(row store.Row) []metav1.TableRowCondition {
	var pod struct {
		Status struct {
			Phase corev1.PodPhase `json:"phase"`
		} `json:"status"`
	}
	if json.Unmarshal(row.Body, &pod) != nil {
		return nil // the cells of the row report the error
	}
	completed := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(pod.Status.Phase)}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		completed.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		completed.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{completed}
}
