// Package lab builds clusters on hosts. These are namespaces of this machine with an sshd of
// their own, in which real etcd, API servers, kubelets and containerd run. The tests use only
// the command line or the hub, as users do.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/test/lab/site"
)

func TestMain(m *testing.M) { site.Main(m) }

// testbed adds the steps and checks of this package to a site.
type testbed struct{ *site.Site }

func newTestbed(t testing.TB, hosts int) *testbed { return &testbed{site.New(t, hosts)} }

// rolledOut waits until the pods of Deployment web match its spec.
func (s *testbed) rolledOut() {
	s.T.Helper()
	cs := s.Client(nil)
	s.Eventually("Deployment web has rolled out", func(ctx context.Context) error {
		d, err := cs.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		want := *d.Spec.Replicas
		if st := d.Status; st.ObservedGeneration != d.Generation || st.UpdatedReplicas != want || st.AvailableReplicas != want || st.Replicas != want {
			return fmt.Errorf("generation %d, status %+v", d.Generation, st)
		}
		return nil
	})
}

// snapshots returns snapshots of all hosts.
func (s *testbed) snapshots() map[string]lab.Snapshot {
	s.T.Helper()
	all := map[string]lab.Snapshot{}
	for _, h := range s.Hosts() {
		all[h.Name] = s.snapshot(h)
	}
	return all
}

func (s *testbed) snapshot(h *lab.Host) lab.Snapshot {
	s.T.Helper()
	snap, err := h.Snapshot(s.T.Context())
	if err != nil {
		s.T.Fatal(err)
	}
	return snap
}

// readyNodes returns the names of the ready nodes.
func readyNodes(ctx context.Context, cs kubernetes.Interface) ([]string, error) {
	nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ready []string
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				ready = append(ready, n.Name)
			}
		}
	}
	return ready, nil
}

// serves checks that the workload answers through its Service, that another pod finds it by DNS,
// and that logs and exec reach it.
func (s *testbed) serves(replicas int) {
	s.T.Helper()
	s.Kubectl(s.WebManifest(replicas), "apply", "-f", "-")
	cs := s.Client(nil)
	s.Eventually("the Job that asks the Service by its DNS name succeeds", func(ctx context.Context) error {
		job, err := cs.BatchV1().Jobs("default").Get(ctx, "ask", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if job.Status.Succeeded == 0 {
			return fmt.Errorf("job status %+v", job.Status)
		}
		return nil
	})
	s.Eventually("the Service answers on each host", func(ctx context.Context) error {
		svc, err := cs.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		nodes, err := readyNodes(ctx, cs)
		if err != nil {
			return err
		}
		if len(nodes) == 0 {
			return errors.New("no node is ready")
		}
		for _, name := range nodes {
			if _, err := s.Host(name).Run(ctx, "timeout", "3", "bash", "-c", `exec 3<>/dev/tcp/`+svc.Spec.ClusterIP+`/80 && printf "GET / HTTP/1.0\r\n\r\n" >&3 && grep -q "200 OK" <&3`); err != nil {
				return err
			}
		}
		return nil
	})
	if out := s.Kubectl("", "logs", "job/ask"); !strings.Contains(out, "web-") {
		s.T.Errorf("the log of the Job does not have the name of a pod of web: %q", out)
	}
}

// killWhenItSays starts a command, and kills it with SIGKILL as soon as it prints a line with
// the text. It reports whether it killed the command.
func (s *testbed) killWhenItSays(text string, args ...string) bool {
	s.T.Helper()
	return s.killWhen(func(output string) string {
		if strings.Contains(output, text) {
			return text
		}
		return ""
	}, args...) != ""
}

// killWhen starts a command, and kills it with SIGKILL as soon as find returns a text for the
// output so far. It returns that text, or "" if the command succeeded before.
func (s *testbed) killWhen(find func(output string) string, args ...string) string {
	s.T.Helper()
	cmd := s.Command(s.T.Context(), args...)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	killed := make(chan string, 1)
	var all bytes.Buffer
	go func() {
		found := ""
		buffer := make([]byte, 4096)
		for {
			n, err := read.Read(buffer)
			all.Write(buffer[:n])
			if found == "" {
				if found = find(all.String()); found != "" {
					cmd.Process.Kill()
				}
			}
			if err != nil {
				killed <- found
				return
			}
		}
	}()
	err := cmd.Wait()
	write.Close()
	found := <-killed
	if err != nil && found == "" {
		s.T.Fatalf("orrery %s: %v\n%s", strings.Join(args, " "), err, all.String())
	}
	return found
}
