package node

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// life is the sequence of requests for a host.
type life struct {
	before   map[string]string
	requests []Request
	streams  []string
}

func newLife(t *testing.T) life {
	archive := targz(t, map[string]string{"bin/bridge": "bridge of 1.9", "bin/loopback": "loopback of 1.9", "README": "no"})
	kubelet, newer := "kubelet of 1.36.1", "kubelet of 1.36.3"
	create := request(
		plan.Step{ID: "sweep", Sweep: &plan.Sweep{Paths: []string{"/var/log/pods", "/var/log/there"}}},
		plan.Step{ID: "packages", Packages: &plan.Packages{Manager: "apt", Names: []string{"conntrack"}}},
		plan.Step{ID: "modules", Modules: &plan.Modules{Path: "/etc/modules-load.d/orrery.conf", Names: []string{"overlay"}}},
		plan.Step{ID: "sysctls", Sysctls: &plan.Sysctls{Path: "/etc/sysctl.d/95-orrery.conf", Values: map[string]string{"net.ipv4.ip_forward": "1", "vm.swappiness": "0"}}},
		plan.Step{ID: "etcd/data", Directory: &plan.Directory{Path: "/var/lib/etcd", Mode: "0700", Owned: true}},
		plan.Step{ID: "kubelet/data", Directory: &plan.Directory{Path: "/var/lib/kubelet", Mode: "0750", Owned: true}},
		plan.Step{ID: "cni/config", Directory: &plan.Directory{Path: "/etc/cni/net.d", Mode: "0755"}},
		plan.Step{ID: "cni/plugins", Artifact: &plan.Artifact{
			Blob: digestOf([]byte(archive)), Archive: "tar.gz", Mode: "0755",
			Files: map[string]string{"bin/bridge": "/opt/cni/bin/bridge", "./bin/loopback": "/opt/cni/bin/loopback"},
		}},
		plan.Step{ID: "kubelet/binary", Artifact: &plan.Artifact{
			Blob: digestOf([]byte(kubelet)), Mode: "0755", Files: map[string]string{"": "/opt/orrery/bin/kubelet"},
		}},
		plan.Step{ID: "pki/ca", File: &plan.File{Path: "/etc/kubernetes/pki/ca.key", Mode: "0600", Content: "key", Secret: true}},
		fileStep("crictl", "/etc/crictl.yaml", "ours"),
		fileStep("resolv", "/etc/resolv", "was a link"),
		plan.Step{ID: "hook", Script: &plan.Script{Run: "true", Undo: "false"}},
		plan.Step{ID: "kubelet/unit", Unit: &plan.Unit{Name: "orrery-kubelet", Command: []string{"kubelet"}, InputHash: "1"}},
		plan.Step{ID: "kubelet/probe", Probe: &plan.Probe{TCP: "127.0.0.1:10250", Timeout: time.Minute}},
	)
	change := request()
	for _, step := range create.Steps {
		switch step.ID {
		case "crictl", "hook":
			continue
		case "kubelet/binary":
			step.Artifact = &plan.Artifact{Blob: digestOf([]byte(newer)), Mode: "0755", Files: map[string]string{"": "/opt/orrery/bin/kubelet"}}
		case "cni/plugins":
			a := *step.Artifact
			a.Files = map[string]string{"bin/bridge": "/opt/cni/bin/bridge"}
			step.Artifact = &a
		case "sysctls":
			step.Sysctls = &plan.Sysctls{Path: step.Sysctls.Path, Values: map[string]string{"net.ipv4.ip_forward": "1", "fs.inotify.max_user_watches": "9"}}
		case "kubelet/unit":
			step.Unit = &plan.Unit{Name: "orrery-kubelet", Command: []string{"kubelet", "--v=2"}, InputHash: "2"}
		case "resolv":
			step = fileStep("resolv", "/etc/resolv", "changed")
		}
		change.Steps = append(change.Steps, step)
	}
	change.Steps = append(change.Steps, fileStep("registry", "/etc/containerd/certs.d/docker.io/hosts.toml", "mirror"))
	change.Remove = []string{"crictl", "hook", "never-applied"}
	change.Release = true
	return life{
		before: map[string]string{
			"/etc/crictl.yaml": "of the user", "/etc/resolv": "->../run/resolv", "/opt/cni/bin/bridge": "bridge of the user",
			"/etc/cni/net.d/10-user.conf": "of the user", "/var/lib/kubelet/": "", "/var/log/there/log": "stays", "/var/lib/other": "stays",
			AgentPath: "agent",
		},
		requests: []Request{create, change, removal()},
		streams:  []string{archive, kubelet, newer},
	}
}

// mess creates the files that components leave in their directories.
func mess(t *testing.T, n *Node) {
	furnish(t, n, map[string]string{
		"/var/lib/etcd/member/wal": "data", "/var/lib/kubelet/pods/1/volume": "data", "/var/log/pods/1/0.log": "log",
		"/etc/cni/net.d/20-added-by-user.conf": "of the user",
	})
}

// copyHost copies a host with its times and hard links.
func copyHost(t *testing.T, from, to *Node) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from.Root, to.Root).CombinedOutput(); err != nil {
		t.Fatalf("copy host: %v\n%s", err, out)
	}
}

// TestKilledAnywhere kills the agent at every point of a host's life. The repeated request must
// have the result of an undisturbed run, and a removal must restore the host.
func TestKilledAnywhere(t *testing.T) {
	l := newLife(t)
	// The life without kills.
	n := host(t, l.before)
	before := tree(t, n, true)
	var after []map[string]string
	for i, req := range l.requests {
		done(t, n, req, l.streams...)
		after = append(after, tree(t, n, false))
		if i == 0 {
			mess(t, n)
		}
	}
	delete(before, AgentPath) // removed with the directories made for it
	for dir := range before {
		if strings.HasPrefix(AgentPath, dir+"/") && dir != "/opt" {
			delete(before, dir)
		}
	}
	withUser := func(want map[string]string, messy bool, got map[string]string) map[string]string {
		const added = "/etc/cni/net.d/20-added-by-user.conf"
		if messy {
			want[added] = got[added]
		}
		return want
	}
	got := tree(t, n, true)
	sameTree(t, "after the removal of an undisturbed run", got, withUser(before, true, got))
	delete(before, "/etc/cni/net.d/20-added-by-user.conf")

	for phase, req := range l.requests {
		t.Run(fmt.Sprintf("Request%d", phase), func(t *testing.T) {
			start := host(t, l.before)
			for i, earlier := range l.requests[:phase] {
				done(t, start, earlier, l.streams...)
				if i == 0 {
					mess(t, start)
				}
			}
			points := 0
			for kill := 1; ; kill++ {
				resumed, removed := Rooted(filepath.Join(memoryDir(t), "host")), Rooted(filepath.Join(memoryDir(t), "host"))
				copyHost(t, start, resumed)
				if !agent(t, resumed.Root, req, kill, l.streams...) {
					break
				}
				points++
				copyHost(t, resumed, removed)
				what := fmt.Sprintf("after a kill at point %d ", kill)

				done(t, removed, removal())
				got := tree(t, removed, true)
				want := withUser(maps.Clone(before), phase > 0, got)
				sameTree(t, what+"and a removal", got, want)

				done(t, resumed, req, l.streams...)
				sameTree(t, what+"and the same request", tree(t, resumed, false), after[phase])
				if req.RemoveAll {
					continue
				}
				applied, err := resumed.Observe(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, step := range applied.Steps {
					if step.Drift != "" || !step.Complete {
						t.Errorf("%s: step %+v", what, step)
					}
				}
				done(t, resumed, removal())
				got = tree(t, resumed, true)
				sameTree(t, what+"the same request and a removal", got, withUser(maps.Clone(before), phase > 0, got))
			}
			if least := len(req.Steps); points <= least {
				t.Errorf("killed at %d points, want more than %d", points, least)
			}
		})
	}
}
