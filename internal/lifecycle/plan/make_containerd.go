package plan

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// containerd returns the steps for the container runtime. If the cluster joins the hub with an
// agent of its own (join mode Pull), a last step makes the image of that agent.
func (h *hostMaker) containerd() []Step {
	program := h.artifact(fileContainerd, binDir, DisruptionRestart)
	config := file("containerd/config", containerdDir+"/config.toml", h.containerdConfig(), DisruptionRestart)
	steps := []Step{
		program,
		h.artifact(fileRunc, binDir, DisruptionNone), // runc starts once for each container
		h.artifact(fileCNIPlugins, cniBinDir, DisruptionNone),
		config,
	}
	steps = append(steps, h.registries()...)
	steps = append(steps,
		unit("containerd", Unit{
			Name: unitContainerd, Description: h.describe("Container runtime"),
			Command: []string{binDir + "/containerd", "--config", containerdDir + "/config.toml"}, Env: runtimeEnv(),
			KillMode: "process", Delegate: true, Notify: true, LimitNOFILE: 1 << 20,
		}, program, config),
		Step{ID: "containerd/probe", Probe: &Probe{TCP: "unix:" + containerdSocket, Timeout: time.Minute, Unit: unitContainerd}},
	)
	if h.spec.Join == clusterv1alpha1.Pull {
		steps = append(steps, h.agentImage())
	}
	return steps
}

// AgentImage is the name of the image of the agent that keeps a cluster joined to the hub in join
// mode Pull. Each host builds the image from its own agent executable, so no registry has it. The
// kubelet does not garbage-collect the image.
const AgentImage = "localhost/orrery-agent:host"

// agentImage returns the step that builds AgentImage on the host and imports it into containerd.
// The step changes with the agent, so another version of the agent builds the image again.
func (h *hostMaker) agentImage() Step {
	agent := h.in.Agents[h.facts.Arch]
	if agent == "" {
		h.lackf("the agent for %s, of which host %s is to make an image, is not known", h.facts.Arch, h.Name)
	}
	ctr := fmt.Sprintf("%s/ctr --address %s --namespace k8s.io images", binDir, containerdSocket)
	return Step{ID: "agent/image", Disruption: DisruptionNone, Script: &Script{Timeout: time.Minute, Run: fmt.Sprintf(`# of agent %[1]s
set -eu
archive=$(mktemp)
trap 'rm -f "$archive"' EXIT
%[2]s/orrery node image --name %[3]s >"$archive"
%[4]s import "$archive"
%[4]s label %[3]s io.cri-containerd.pinned=pinned
`, agent, binDir, AgentImage, ctr)}}
}

// containerdConfig returns the content of containerd's config.toml.
func (h *hostMaker) containerdConfig() string {
	image, ok := h.in.Images[imagePause]
	if !ok {
		h.lackf("the reference of image %s is not known", imagePause)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "version = 3\n")
	fmt.Fprintf(&b, "\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = %s\n", toml(image))
	fmt.Fprintf(&b, "\n[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = %s\n", toml(registryDir))
	if !h.facts.OOMScoreAdj {
		fmt.Fprintf(&b, "\n[plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = true\n")
	}
	const runtime = "plugins.'io.containerd.cri.v1.runtime'"
	fmt.Fprintf(&b, "\n[%s.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n", runtime)
	fmt.Fprintf(&b, "\n[%s.containerd.runtimes.runc.options]\n  BinaryName = %s\n  SystemdCgroup = true\n", runtime, toml(binDir+"/runc"))
	fmt.Fprintf(&b, "\n[%s.cni]\n  bin_dirs = [%s]\n  conf_dir = %s\n", runtime, toml(cniBinDir), toml(cniConfDir))
	return b.String()
}

// registries returns the steps for containerd's hosts.toml files, with their directories: one for
// each registry with mirrors and each insecure registry in the spec. containerd reads these files
// at each pull, so a change restarts nothing.
func (h *hostMaker) registries() []Step {
	r := h.spec.Registry
	var steps []Step
	add := func(registry, server string, mirrors ...string) {
		dir := registryDir + "/" + registry
		var b strings.Builder
		fmt.Fprintf(&b, "server = %s\n", toml(server))
		for _, mirror := range mirrors {
			fmt.Fprintf(&b, "\n[host.%s]\n  capabilities = ['pull', 'resolve']\n", toml(mirror))
			if u, err := url.Parse(mirror); err == nil && u.Scheme == "https" && slices.Contains(r.InsecureRegistries, u.Host) {
				fmt.Fprintf(&b, "  skip_verify = true\n")
			}
		}
		steps = append(steps,
			directory("directory/registry/"+registry, dir),
			file("containerd/registry/"+registry, dir+"/hosts.toml", b.String(), DisruptionNone))
	}
	if len(r.RegistryMirrors) > 0 {
		add(dockerHub, "https://registry-1.docker.io", r.RegistryMirrors...)
	}
	for _, registry := range unique(slices.Clone(r.InsecureRegistries)) {
		add(registry, "https://"+registry, "https://"+registry, "http://"+registry)
	}
	return steps
}

// toml returns a text as a quoted string of TOML. The quoted form of JSON is valid in TOML.
func toml(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil { // a string can always be marshaled
		return `""`
	}
	return string(quoted)
}
