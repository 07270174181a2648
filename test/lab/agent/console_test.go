package agent

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

// talkative is a workload with a shell in its pods. Text that the test writes to the output of
// a pod's first process appears in the pod's log. The container ends when the file /data/end
// exists.
const talkative = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: talk, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: talk}}
  template:
    metadata: {labels: {app: talk}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: talk
        image: %s/web:1
        command: [/tools/sh, -c, 'echo a life begins; until [ -e /data/end ]; do sleep 1; done; rm /data/end; echo it ends']
        env: [{name: PATH, value: /tools}]
        volumeMounts: [%s{name: data, mountPath: /data}]
      volumes:
      - {name: busybox, hostPath: {path: /bin/busybox, type: File}}
      - {name: data, emptyDir: {}}
`

// readInBrowser opens logs and shells of the cluster in the console, in a browser. The
// Deployment web exists already.
func (s *testbed) readInBrowser(t *testing.T, hub string) {
	t.Helper()
	testenv.Page()
	testenv.Inputs(t, "hack/console.sh", "hack/phase.sh", "hack/browser-packages.sh", "web/build.sh", "web/package-lock.json", "web/vitest.lab.config.ts", "web/test/browser")
	var tools strings.Builder
	for _, tool := range []string{"sh", "sleep", "rm", "stty"} {
		fmt.Fprintf(&tools, "{name: busybox, mountPath: /tools/%s}, ", tool)
	}
	s.Kubectl(fmt.Sprintf(talkative, s.Registry(), tools.String()), "apply", "-f", "-")
	s.Kubectl("", "rollout", "status", "deployment/talk", "--timeout=20m")
	cmd := exec.CommandContext(t.Context(), filepath.Join(testenv.Root(), "hack", "console.sh"))
	cmd.Env = append(os.Environ(), "CONSOLE_DATA="+filepath.Dir(hub), "CONSOLE_CONFIG=vitest.lab.config.ts", "CHROMIUM="+s.browser())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the console in a browser: %v\n%s", err, out)
	}
	if strings.HasPrefix(string(out), "not run") {
		t.Skip(string(out))
	}
	t.Logf("%s", out)
}

// browser returns a program that runs Chromium in a network of its own. Chromium aborts
// requests when any link of its network appears or disappears, as the links of other labs do
// meanwhile.
func (s *testbed) browser() string {
	s.T.Helper()
	network, err := s.ClientNetwork(s.T.Context())
	if err != nil {
		s.T.Fatal(err)
	}
	path := filepath.Join(s.Dir, "chromium")
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s '%s' \"$@\"\n", network, cmp.Or(os.Getenv("CHROMIUM"), "/usr/bin/chromium"))
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		s.T.Fatal(err)
	}
	return path
}
