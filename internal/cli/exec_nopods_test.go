package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestExecWithoutPods: exec and attach to a workload without pods end with an error that says that
// it has no pods. Other errors of the cluster, and pods, are passed on.
func TestExecWithoutPods(t *testing.T) {
	const none = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`
	for name, tc := range map[string]struct {
		code  int    // of the list
		list  string // its answer
		ends  bool   // the watch ends at once
		wants string // in the error; "": a pod is found
	}{
		"NoPods":     {code: http.StatusOK, list: none, wants: "deploy/web has no pods in cluster oak; the command waits up to 20ms for one"},
		"WatchEnded": {code: http.StatusOK, list: none, ends: true, wants: "deploy/web has no pods in cluster oak"},
		"Refused": {
			code: http.StatusForbidden, list: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"pods is forbidden","code":403}`, wants: "pods is forbidden",
		},
		"APod": {code: http.StatusOK, list: strings.Replace(none, "[]", `[{"metadata":{"name":"web-1","namespace":"shop"}}]`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch q := r.URL.Query(); {
				case r.URL.Path != "/api/v1/namespaces/shop/pods" || q.Get("labelSelector") != "app=web", q.Has("sendInitialEvents"):
					http.Error(w, "{}", http.StatusBadRequest)
				case q.Get("watch") == "":
					w.WriteHeader(tc.code)
					_, _ = w.Write([]byte(tc.list))
				default:
					w.WriteHeader(http.StatusOK)
					w.(http.Flusher).Flush()
					if !tc.ends {
						<-r.Context().Done()
					}
				}
			}))
			defer server.Close()
			web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
			web.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			timeout := 20 * time.Millisecond
			if tc.ends {
				timeout = time.Hour
			}
			find := podOf("deploy/web", "oak")
			pod, err := find(&below{config: &rest.Config{Host: server.URL}}, web, timeout)
			switch {
			case tc.wants == "":
				if err != nil || pod.Name != "web-1" {
					t.Errorf("pod %v, error %v", pod, err)
				}
			case err == nil || !strings.Contains(err.Error(), tc.wants):
				t.Errorf("error %v, want %q", err, tc.wants)
			}
			// A pod needs no further request.
			own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
			if pod, err := find(&below{config: &rest.Config{Host: "http://127.0.0.1:1"}}, own, time.Hour); err != nil || pod != own {
				t.Errorf("pod %v, error %v", pod, err)
			}
		})
	}
}
