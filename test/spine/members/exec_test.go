package members

import (
	"bytes"
	"context"
	endian "encoding/binary"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// endless is a stream in which each part has its position. After its end the stream is
// repeated.
var endless = func() []byte {
	var all []byte
	for i := range uint64(1 << 18) {
		all = endian.BigEndian.AppendUint64(all, i)
	}
	return all
}()

// said reads that stream.
type said struct{ at int }

func (s *said) Read(p []byte) (int, error) {
	n := copy(p, endless[s.at%len(endless):])
	s.at += n
	return n, nil
}

// heard checks the echo of that stream. It calls reached when the echo has until bytes.
type heard struct {
	at, until int
	reached   func()
	wrong     error
}

func (h *heard) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		want := endless[h.at%len(endless):]
		n := min(len(rest), len(want))
		if !bytes.Equal(rest[:n], want[:n]) && h.wrong == nil {
			h.wrong = fmt.Errorf("of bytes %d to %d not all are as they were sent", h.at, h.at+n)
		}
		rest, h.at = rest[n:], h.at+n
	}
	if h.at >= h.until && h.reached != nil {
		h.reached()
		h.reached = nil
	}
	return len(p), nil
}

// execs resets the network during execs through the agent of oak. The client gets an error and
// the correct beginning of the output, no command runs twice, and the next exec works.
func (d *dialled) execs(t *testing.T) {
	oak, network := d.Oak, d.network[d.Oak]
	kubelet := testenv.StartKubelet(t, oak.DirectConfig(), "kubelet")
	oak.Apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: `+d.Namespace+`}
spec: {nodeName: kubelet, terminationGracePeriodSeconds: 0, containers: [{name: shell, image: example.org/shell:1}]}
`)
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: d.Hub.Kubeconfig()}, &clientcmd.ConfigOverrides{CurrentContext: "oak"},
	).ClientConfig()
	d.Must(err)
	try := func(container, command string, in io.Reader, out io.Writer) error {
		u := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/shell/exec?container=%s&command=%s&stdin=%t&stdout=true", cfg.Host, d.Namespace, container,
			strings.ReplaceAll(command, " ", "&command="), in != nil)
		// kubectl's executor would run an unanswered command again with SPDY.
		executor, err := remotecommand.NewWebSocketExecutor(rest.CopyConfig(cfg), http.MethodGet, u)
		d.Must(err)
		ctx, cancel := context.WithTimeout(t.Context(), spine.Patience)
		defer cancel()
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out})
		if ctx.Err() != nil {
			t.Fatalf("exec of %s goes on: %v", command, err)
		}
		return err
	}
	// A probe that is cut off makes oak unreachable until the next probe. Until then the hub
	// answers itself, also if the agent has not dialed again yet. In neither case oak was asked.
	notReached := regexp.MustCompile(`cluster "oak" (is unreachable|does not answer: dial )`)
	run := func(container, command string, in io.Reader, out io.Writer) error {
		var err error
		d.Eventually("oak is reachable for "+command, func() error {
			if err = try(container, command, in, out); err != nil && notReached.MatchString(err.Error()) {
				return err
			}
			return nil
		})
		return err
	}
	var all []string
	for i, after := range []int{0, 0, 1, 64 << 10, 4 << 20} {
		if err := run("absent", "true", nil, io.Discard); err == nil { // this leaves a connection open
			t.Error("an exec in a container that is not there ended well")
		}
		cut := &heard{until: after}
		if after > 0 {
			cut.reached = network.Reset
		} else {
			kubelet.OnCommand(network.Reset)
		}
		command := fmt.Sprintf("cat %d", i)
		if err := run("shell", command, &said{}, cut); err == nil {
			t.Errorf("exec of %s ended well when it was cut off after %d bytes", command, cut.at)
		}
		if cut.wrong != nil {
			t.Errorf("%s: %v", command, cut.wrong)
		}
		kubelet.OnCommand(nil)
		var out bytes.Buffer
		next := fmt.Sprintf("echo %d", i)
		want := next + " in " + d.Namespace + "/shell/shell\n"
		if err := run("shell", next, nil, &out); err != nil || out.String() != want {
			t.Errorf("the next exec says %q, %v, want %q", out.String(), err, want)
		}
		all = append(all, command, next)
	}
	if ran := kubelet.Commands(); !slices.Equal(ran, all) {
		t.Errorf("ran %q, want %q", ran, all)
	}
}
