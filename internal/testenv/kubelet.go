package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Kubelet simulates the kubelet of one node, for an API server without real nodes. It serves logs
// that a test sets, and runs a few commands.
type Kubelet struct {
	t         testing.TB
	lock      sync.Mutex
	logs      map[string][]logged // by POD/CONTAINER
	last      url.Values          // of the last request for a log
	commands  []string
	onCommand func()
}

// logged is a line of a log with its time.
type logged struct {
	at   time.Time
	text string
}

// StartKubelet creates a Node in the cluster of, and serves the API of its kubelet until the test
// ends. The Node is ready and unschedulable, so KWOK does not change it.
func StartKubelet(t testing.TB, of *rest.Config, node string) *Kubelet {
	t.Helper()
	k := &Kubelet{t: t, logs: map[string][]logged{}}
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	nodes := kubernetes.NewForConfigOrDie(of).CoreV1().Nodes()
	resources := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: u.Hostname()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable:     resources("2", "4Gi"), Capacity: resources("4", "8Gi"),
		},
	}
	tried := false
	Eventually(t, "create node "+node, Patience, func() error {
		_, err := nodes.Create(t.Context(), made, metav1.CreateOptions{})
		if tried && apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt succeeded, and its response was lost
		}
		if apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		tried = true
		return err
	})
	t.Cleanup(func() {
		Eventually(t, "delete node "+node, Patience, func() error {
			err := nodes.Delete(context.WithoutCancel(t.Context()), node, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	})
	return k
}

// Says adds a line to the log of a container, which is POD/CONTAINER. second is the second in the
// time of the line.
func (k *Kubelet) Says(container string, second int, text string) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.logs[container] = append(k.logs[container], logged{time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC), text})
}

// Asked returns the query parameters of the last request for a log; nil if there was none.
func (k *Kubelet) Asked() url.Values {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.last
}

// Commands returns the commands that were executed, each as one text, in their order.
func (k *Kubelet) Commands() []string {
	k.lock.Lock()
	defer k.lock.Unlock()
	return slices.Clone(k.commands)
}

// OnCommand sets a function that is called for each command before the response; nil removes it.
func (k *Kubelet) OnCommand(f func()) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.onCommand = f
}

// ServeHTTP implements http.Handler. It serves the logs, exec and attach of the kubelet API.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // WHAT/NAMESPACE/POD/CONTAINER
	if len(segments) != 4 {
		http.NotFound(w, r)
		return
	}
	switch segments[0] {
	case "containerLogs":
		k.serveLog(w, r, segments[2]+"/"+segments[3])
	case "exec", "attach":
		k.serveSession(w, r, segments)
	default:
		http.NotFound(w, r)
	}
}

// serveLog writes the log of the container of, which is POD/CONTAINER, as the query asks for it. A
// container without a log is an error.
func (k *Kubelet) serveLog(w http.ResponseWriter, r *http.Request, of string) {
	k.lock.Lock()
	k.last = r.URL.Query()
	lines := k.logs[of]
	k.lock.Unlock()
	if lines == nil {
		http.Error(w, "the container is waiting to start", http.StatusBadRequest)
		return
	}
	if tail, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
		lines = lines[max(0, len(lines)-tail):]
	}
	for _, line := range lines {
		if r.URL.Query().Get("timestamps") == "true" {
			fmt.Fprint(w, line.at.Format(time.RFC3339Nano), " ")
		}
		fmt.Fprintln(w, line.text)
	}
	if r.URL.Query().Get("follow") == "true" {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// serveSession serves an exec or attach over SPDY. at is the kind, namespace, pod and container.
// The command cat copies its input, and false ends with exit code 3. Other commands are echoed with
// the name of the container. An attach writes that name.
func (k *Kubelet) serveSession(w http.ResponseWriter, r *http.Request, at []string) {
	query := r.URL.Query()
	if at[0] == "exec" {
		k.lock.Lock()
		k.commands = append(k.commands, strings.Join(query["command"], " "))
		f := k.onCommand
		k.lock.Unlock()
		if f != nil {
			f()
		}
	}
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		k.t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	named := map[string]httpstream.Stream{}
	want := 1
	for _, kind := range []string{"input", "output", "error", "stdin", "stdout", "stderr"} {
		if on := query.Get(kind); on == "1" || on == "true" {
			want++
		}
	}
	for len(named) < want {
		select {
		case s := <-streams:
			named[s.Headers().Get(corev1.StreamType)] = s
		case <-r.Context().Done():
			return
		case <-conn.CloseChan():
			return
		}
	}
	end := metav1.Status{Status: metav1.StatusSuccess}
	out := named[corev1.StreamTypeStdout]
	switch command := query["command"]; {
	case at[0] == "attach":
		fmt.Fprintf(out, "attached to %s/%s/%s\n", at[1], at[2], at[3])
	case command[0] == "cat":
		_, _ = io.Copy(out, named[corev1.StreamTypeStdin])
	case command[0] == "false":
		end = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated with exit code 3", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "3"}},
		}}
	default:
		fmt.Fprintf(out, "%s in %s/%s/%s\n", strings.Join(command, " "), at[1], at[2], at[3])
	}
	text, err := json.Marshal(end)
	if err != nil {
		k.t.Error(err)
	}
	_, _ = named[corev1.StreamTypeError].Write(text)
	for _, stream := range named {
		_ = stream.Close()
	}
	<-conn.CloseChan() // closing before the client would lose data
}
