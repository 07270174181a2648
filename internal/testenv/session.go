package testenv

import (
	"encoding/json"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// ServeSession answers an exec or attach as a kubelet does: run gets what the client types, and says how the command ended.
func ServeSession(w http.ResponseWriter, r *http.Request, run func(in io.Reader, out io.Writer) metav1.Status) error {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return err
	}
	streams := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return nil
	}
	defer conn.Close()
	query, named := r.URL.Query(), map[string]httpstream.Stream{}
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
			return nil
		case <-conn.CloseChan():
			return nil
		}
	}
	text, err := json.Marshal(run(named[corev1.StreamTypeStdin], named[corev1.StreamTypeStdout]))
	if err != nil {
		return err
	}
	_, _ = named[corev1.StreamTypeError].Write(text) // whoever asked may have gone
	for _, stream := range named {
		_ = stream.Close()
	}
	<-conn.CloseChan() // what is on its way would be lost
	return nil
}
