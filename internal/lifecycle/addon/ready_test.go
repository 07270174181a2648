package addon

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/testenv"
)

const workloads = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "web:1"}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: "agent:1"}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: "db:1"}]}
`

// stage has the workloads in a namespace, and plays the controllers and kubelets.
type stage struct {
	t         *testing.T
	client    kubernetes.Interface
	namespace string
}

func newStage(t *testing.T) stage {
	t.Helper()
	g := group(t, workloads)
	mustApply(t, testenv.Config(0), g)
	return stage{t: t, client: kubernetes.NewForConfigOrDie(testenv.Config(0)), namespace: g.Namespace}
}

// status sets the status of web, agent or db.
func (s stage) status(resource, name, status string) {
	s.t.Helper()
	content, err := yaml.YAMLToJSON([]byte("status: " + status))
	if err != nil {
		s.t.Fatal(err)
	}
	err = s.client.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace(s.namespace).Resource(resource).Name(name).
		SubResource("status").Body(content).Do(s.t.Context()).Error()
	if err != nil {
		s.t.Fatal(err)
	}
}

// pod creates a pod of an app on a node, with a status.
func (s stage) pod(app, node, status string) *corev1.Pod {
	s.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: app + "-", Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: app, Image: app + ":1"}},
		},
	}
	if _, err := s.client.CoreV1().ServiceAccounts(s.namespace).Create(s.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil &&
		!strings.Contains(err.Error(), "already exists") {
		s.t.Fatal(err)
	}
	pod, err := s.client.CoreV1().Pods(s.namespace).Create(s.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(status), &pod.Status); err != nil {
		s.t.Fatal(err)
	}
	if pod, err = s.client.CoreV1().Pods(s.namespace).UpdateStatus(s.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	return pod
}

// node creates a node with the condition Ready.
func (s stage) node(name string, ready corev1.ConditionStatus) {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node, err := s.client.CoreV1().Nodes().Create(s.t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = s.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(s.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// warn records a warning event about an object.
func (s stage) warn(o metav1.Object, kind, reason, message string) {
	s.t.Helper()
	_, err := s.client.CoreV1().Events(s.namespace).Create(s.t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "e-"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: s.namespace, Name: o.GetName(), UID: o.GetUID()},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: metav1.Now(),
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
}

const (
	webUp   = "{observedGeneration: 1, replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2, conditions: [{type: Available, status: 'True'}]}"
	webDown = "{observedGeneration: 1, replicas: 2, updatedReplicas: 2, conditions: [{type: Available, status: 'False'}]}"
	agentUp = "{observedGeneration: 1, desiredNumberScheduled: 2, currentNumberScheduled: 2, updatedNumberScheduled: 2, numberReady: 2, numberAvailable: 2, numberMisscheduled: 0}"
	oneOf2  = "{observedGeneration: 1, desiredNumberScheduled: 2, currentNumberScheduled: 2, updatedNumberScheduled: 2, numberReady: 1, numberAvailable: 1, numberMisscheduled: 0}"
)

func TestReady(t *testing.T) {
	web, agent, db := ReadinessCheck{Kind: "Deployment", Name: "web"}, ReadinessCheck{Kind: "DaemonSet", Name: "agent", Nodes: 1}, ReadinessCheck{Kind: "StatefulSet", Name: "db"}
	cases := map[string]struct {
		check ReadinessCheck
		act   func(stage)
		// want lists parts of the error. It is empty if the group is ready.
		want []string
	}{
		"DeploymentUp": {web, func(s stage) { s.status("deployments", "web", webUp) }, nil},
		// One available pod of two is enough.
		"DeploymentAvailable": {web, func(s stage) {
			s.status("deployments", "web", "{observedGeneration: 1, replicas: 2, updatedReplicas: 2, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: 'True'}]}")
		}, nil},
		"DeploymentNotSeen": {web, func(stage) {}, []string{"its controller has not seen it yet"}},
		"DeploymentOldPods": {web, func(s stage) {
			s.status("deployments", "web", "{observedGeneration: 1, replicas: 3, updatedReplicas: 2, readyReplicas: 3, availableReplicas: 3, conditions: [{type: Available, status: 'True'}]}")
		}, []string{"1 pods of before are still there"}},
		"ImagePull": {web, func(s stage) {
			s.status("deployments", "web", webDown)
			s.pod("web", "", `{containerStatuses: [{name: web, image: "web:1", imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: "Back-off pulling image web:1"}}}]}`)
		}, []string{"0 of 2 pods are available", "pod web-", "container web (web:1): ImagePullBackOff: Back-off pulling image web:1"}},
		"Crash": {web, func(s stage) {
			s.status("deployments", "web", webDown)
			s.pod("web", "host-1", `{containerStatuses: [{name: web, image: "web:1", imageID: "", ready: false, restartCount: 3,
				state: {waiting: {reason: CrashLoopBackOff, message: "back-off 40s"}}, lastState: {terminated: {exitCode: 3, reason: Error, message: "no such option"}}}]}`)
		}, []string{" on host-1: container web ended with status 3: Error: no such option"}},
		"Pending": {web, func(s stage) {
			s.status("deployments", "web", webDown)
			s.pod("web", "", `{phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: "0/1 nodes are available: 1 Insufficient cpu."}]}`)
		}, []string{"Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."}},
		"Event": {web, func(s stage) {
			s.status("deployments", "web", webDown)
			pod := s.pod("web", "host-1", `{containerStatuses: [{name: web, image: "web:1", imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: ContainerCreating}}}]}`)
			s.warn(pod, "Pod", "FailedCreatePodSandBox", "plugin type=flannel failed: no subnet.env")
		}, []string{"FailedCreatePodSandBox: plugin type=flannel failed: no subnet.env"}},
		"DaemonSetUp":      {agent, func(s stage) { s.status("daemonsets", "agent", agentUp) }, nil},
		"DaemonSetNowhere": {agent, func(s stage) { s.status("daemonsets", "agent", "{observedGeneration: 1}") }, []string{"a kubelet has not registered"}},
		"DaemonSetNoPods": {agent, func(s stage) {
			s.status("daemonsets", "agent", "{observedGeneration: 1, desiredNumberScheduled: 2}")
			ds, err := s.client.AppsV1().DaemonSets(s.namespace).Get(s.t.Context(), "agent", metav1.GetOptions{})
			if err != nil {
				s.t.Fatal(err)
			}
			s.warn(ds, "DaemonSet", "FailedCreate", "pods are forbidden: violates PodSecurity")
		}, []string{"0 of 2 pods are made", "FailedCreate: pods are forbidden: violates PodSecurity"}},
		"DaemonSetNodeDown": {agent, func(s stage) {
			s.node("alive-1", corev1.ConditionTrue)
			s.node("starting-1", corev1.ConditionFalse)
			s.status("daemonsets", "agent", oneOf2)
			s.pod("agent", "alive-1", "{conditions: [{type: Ready, status: 'True'}]}")
			s.pod("agent", "starting-1", "{}")
		}, []string{"1 of 2 pods are available", "on starting-1: "}},
		// A dead host does not block the others.
		"DaemonSetNodeSilent": {agent, func(s stage) {
			s.node("alive-2", corev1.ConditionTrue)
			s.node("silent-2", corev1.ConditionUnknown)
			s.status("daemonsets", "agent", oneOf2)
			s.pod("agent", "alive-2", "{conditions: [{type: Ready, status: 'True'}]}")
			s.pod("agent", "silent-2", "{conditions: [{type: Ready, status: 'False'}]}")
		}, nil},
		"StatefulSetUp": {db, func(s stage) {
			s.status("statefulsets", "db", "{observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1}")
		}, nil},
		"StatefulSetDown": {db, func(s stage) {
			s.status("statefulsets", "db", "{observedGeneration: 1, replicas: 1, updatedReplicas: 1}")
		}, []string{"0 of 1 pods are available"}},
		"Missing": {ReadinessCheck{Kind: "Deployment", Name: "none"}, func(stage) {}, []string{"Deployment NS/none: it is not there"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			tc.act(s)
			ready := func(ctx context.Context) error {
				return Ready(ctx, testenv.Config(0), Group{Name: "g", Namespace: s.namespace, ReadinessChecks: []ReadinessCheck{tc.check}})
			}
			if len(tc.want) == 0 {
				if err := ready(within(t, testenv.Patience)); err != nil {
					t.Error(err)
				}
				return
			}
			var parts []string
			for _, part := range tc.want {
				parts = append(parts, strings.ReplaceAll(part, "NS", s.namespace))
			}
			ends(t, ready, parts...)
		})
	}
}

// TestReadyWaits: Ready returns as soon as the workload is ready.
func TestReadyWaits(t *testing.T) {
	s := newStage(t)
	done := make(chan error, 1)
	go func() {
		done <- Ready(within(t, testenv.Patience), testenv.Config(0),
			Group{Namespace: s.namespace, ReadinessChecks: []ReadinessCheck{{Kind: "Deployment", Name: "web"}}})
	}()
	s.status("deployments", "web", webUp)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReadyNoServer(t *testing.T) {
	cfg := testenv.Config(0)
	cfg.Host = "https://127.0.0.1:1"
	ends(t, func(ctx context.Context) error {
		return Ready(ctx, cfg, Group{Namespace: "x", ReadinessChecks: []ReadinessCheck{{Kind: "Deployment", Name: "web"}}})
	}, "connection refused")
}
