package testenv

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// BuildAgent builds the program orrery-agent of this tree into dir and returns its path.
func BuildAgent(dir string) (binary string, err error) {
	binary = filepath.Join(dir, "orrery-agent")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "./cmd/orrery-agent")
	cmd.Dir = Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return binary, nil
}

// Agent is a process of orrery-agent, which connects a member to its hub in the sync mode Pull.
type Agent struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan error
}

// StartAgent starts one replica of the member's agent. binary is the path of orrery-agent, and
// replica the name of the replica. Requests of the agent to the member go through the member's
// recorder, if it has one. At the end of the test the agent is killed.
func (m *Member) StartAgent(t testing.TB, binary, replica string) *Agent {
	t.Helper()
	a := &Agent{ended: make(chan error, 1)}
	a.cmd = exec.Command(binary, "cluster", "--kubeconfig", m.kubeconfig, "--replica", replica)
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := StartFromLastingThread(a.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		a.ended <- a.cmd.Wait()
		close(a.ended)
	}()
	t.Cleanup(func() {
		a.Kill()
		if t.Failed() {
			t.Logf("the agent of %s:\n%s", m.Name, a.log.String())
		}
	})
	return a
}

// Kill ends the agent with SIGKILL and waits for its end. It may be called again.
func (a *Agent) Kill() {
	_ = a.cmd.Process.Kill()
	for range a.ended { // until the process has ended
	}
}

// Quit ends the agent with SIGQUIT, and returns its output, which ends with the stacks of its
// goroutines.
func (a *Agent) Quit() string {
	_ = a.cmd.Process.Signal(syscall.SIGQUIT)
	for range a.ended { // until the process has ended
	}
	return a.log.String()
}

// Wait waits until the agent has ended by itself, and returns the error with which it ended. If ctx
// ends before, it returns another error.
func (a *Agent) Wait(ctx context.Context) error {
	select {
	case err := <-a.ended:
		return err
	case <-ctx.Done():
		return errors.New("it goes on")
	}
}

// PID returns the process ID of the agent.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Listener returns the host:port at which agents reach the hub.
func (h *Hub) Listener(t testing.TB) string {
	t.Helper()
	var u *url.URL
	Eventually(t, "the hub says where agents find it", Patience, func() error {
		m, err := h.Find(context.Background(), "v1", "ConfigMap", "orrery-cluster", "listener.orrery.dev")
		if err != nil {
			return err
		}
		data, _ := m.Object["data"].(map[string]any)
		if u, err = url.Parse(fmt.Sprint(data["url"])); err != nil || u.Host == "" {
			return fmt.Errorf("that is %v: %w", data["url"], err)
		}
		return nil
	})
	return u.Host
}

// JoinByAgent runs "orrery cluster join NAME --pull --agent-process" with args for a member, and
// applies the printed manifest in the member. It starts no agent, and does not wait for the join.
// An agent that reads that manifest connects to the hub through the proxy through; nil means
// directly.
func (h *Hub) JoinByAgent(t testing.TB, m *Member, through *Network, args ...string) {
	t.Helper()
	cmd := exec.Command(h.binary, append([]string{"cluster", "join", m.Name, "--pull", "--agent-process", "--kubeconfig", h.Kubeconfig()}, args...)...)
	var says bytes.Buffer
	cmd.Stderr = &says
	manifest, err := cmd.Output()
	if err != nil {
		t.Fatalf("join %s by agent: %v\n%s", m.Name, err, says.String())
	}
	text := string(manifest)
	if through != nil {
		encode := func(address string) string { return base64.StdEncoding.EncodeToString([]byte("https://" + address)) }
		at := encode(h.Listener(t))
		if !strings.Contains(text, at) {
			t.Fatal("the manifest does not say where the hub is")
		}
		text = strings.ReplaceAll(text, at, encode(through.Address()))
	}
	m.Apply(t, text)
}
