package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	kubernetesFiles = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}
	hostFiles       = []string{"etcd", "containerd", "runc", "cni-plugins"}
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func load(t *testing.T, texts ...string) *Catalog {
	t.Helper()
	c, err := Load(write(t, texts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, texts ...string) []string {
	t.Helper()
	var paths []string
	for _, text := range texts {
		path := filepath.Join(t.TempDir(), "catalog.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestBuiltinHasAllOfEachRelease(t *testing.T) {
	c := load(t)
	if diff := cmp.Diff([]string{"v1.34", "v1.35", "v1.36"}, c.Supported()); diff != "" {
		t.Error(diff)
	}
	for _, minor := range c.Supported() {
		for _, patch := range []string{".0", ".3", ".99", ".0-rc.1"} {
			version := minor + patch
			for _, arch := range []string{"amd64", "arm64"} {
				files, err := c.Files(version, arch, append(kubernetesFiles, hostFiles...)...)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range files {
					if text := f.URL + f.ChecksumURL; strings.Contains(text, "{{") || !strings.HasPrefix(f.ChecksumURL, "https://") || len(f.Members) == 0 {
						t.Errorf("%+v", f)
					}
				}
			}
			for _, name := range []string{"pause", "coredns", "flannel", "flannel-cni-plugin"} {
				if _, err := c.Image(version, name); err != nil {
					t.Error(err)
				}
			}
			for _, name := range []string{"calico", "cilium", "kubeovn"} {
				if _, err := c.Plugin(version, name); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func TestUpstream(t *testing.T) {
	c := load(t)
	files, err := c.Files("v1.36.3", "arm64", "kubelet", "etcd", "containerd", "runc", "cni-plugins")
	if err != nil {
		t.Fatal(err)
	}
	const github = "https://github.com/"
	want := []File{
		{
			Name: "kubelet", Version: "v1.36.3", Arch: "arm64", Members: map[string]string{"": "kubelet"},
			URL:         "https://dl.k8s.io/v1.36.3/bin/linux/arm64/kubelet",
			ChecksumURL: "https://dl.k8s.io/v1.36.3/bin/linux/arm64/kubelet.sha256",
		},
		{
			Name: "etcd", Version: "v3.6.8", Arch: "arm64", Archive: "tar.gz",
			Members:     map[string]string{"etcd-v3.6.8-linux-arm64/etcd": "etcd", "etcd-v3.6.8-linux-arm64/etcdctl": "etcdctl"},
			URL:         github + "etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-arm64.tar.gz",
			ChecksumURL: github + "etcd-io/etcd/releases/download/v3.6.8/SHA256SUMS",
		},
		{
			Name: "containerd", Version: "v2.4.2", Arch: "arm64", Archive: "tar.gz",
			Members:     map[string]string{"bin/containerd": "containerd", "bin/containerd-shim-runc-v2": "containerd-shim-runc-v2", "bin/ctr": "ctr"},
			URL:         github + "containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-arm64.tar.gz",
			ChecksumURL: github + "containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-arm64.tar.gz.sha256sum",
		},
		{
			Name: "runc", Version: "v1.5.2", Arch: "arm64", Members: map[string]string{"": "runc"},
			URL:         github + "opencontainers/runc/releases/download/v1.5.2/runc.arm64",
			ChecksumURL: github + "opencontainers/runc/releases/download/v1.5.2/runc.sha256sum",
		},
	}
	if diff := cmp.Diff(want, files[:4]); diff != "" {
		t.Error(diff)
	}
	if got := files[4].Members["./loopback"]; got != "loopback" {
		t.Errorf("%+v", files[4])
	}
}

func TestImagesAndPlugins(t *testing.T) {
	c := load(t)
	got := map[string]any{}
	for _, name := range []string{"pause", "coredns", "flannel", "flannel-cni-plugin"} {
		reference, err := c.Image("v1.36.3", name)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = reference
	}
	for _, name := range []string{"calico", "cilium", "kubeovn"} {
		plugin, err := c.Plugin("v1.36.3", name)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = plugin
	}
	want := map[string]any{
		"pause":              "registry.k8s.io/pause:3.10.1",
		"coredns":            "registry.k8s.io/coredns/coredns:v1.14.2",
		"flannel":            "ghcr.io/flannel-io/flannel:v0.28.4",
		"flannel-cni-plugin": "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1",
		"calico":             Plugin{Manifest: "https://raw.githubusercontent.com/projectcalico/calico/v3.32.2/manifests/calico.yaml"},
		"cilium":             Plugin{Chart: &Chart{Repo: "https://helm.cilium.io", Name: "cilium", Version: "1.20.2"}},
		"kubeovn":            Plugin{Chart: &Chart{Repo: "https://kubeovn.github.io/kube-ovn", Name: "kube-ovn", Version: "v1.16.6"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMerge(t *testing.T) {
	type result struct{ Version, URL, Digest, ChecksumURL string }
	const minor = `
kubernetes:
  v1.37: {versions: {etcd: v3.7.3, runc: v1.6.0}}
`
	for name, c := range map[string]struct {
		texts            []string
		kubernetes, file string
		want             result
	}{
		"AnotherVersion": {
			[]string{`kubernetes: {v1.36: {versions: {runc: v1.1.5}}}`},
			"v1.36.3", "runc",
			result{"v1.1.5", "https://github.com/opencontainers/runc/releases/download/v1.1.5/runc.amd64", "", "https://github.com/opencontainers/runc/releases/download/v1.1.5/runc.sha256sum"},
		},
		"OthersStay": {
			[]string{`kubernetes: {v1.36: {versions: {runc: v1.1.5}}}`},
			"v1.35.4", "runc",
			result{"v1.5.2", "https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.amd64", "", "https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum"},
		},
		"NewMinor": {
			[]string{minor},
			"v1.37.1", "kubelet",
			result{"v1.37.1", "https://dl.k8s.io/v1.37.1/bin/linux/amd64/kubelet", "", "https://dl.k8s.io/v1.37.1/bin/linux/amd64/kubelet.sha256"},
		},
		"PatchOfMinor": {
			[]string{`kubernetes: {v1.36.4: {versions: {etcd: v3.6.9}}}`},
			"v1.36.4", "etcd",
			result{"v3.6.9", "https://github.com/etcd-io/etcd/releases/download/v3.6.9/etcd-v3.6.9-linux-amd64.tar.gz", "", "https://github.com/etcd-io/etcd/releases/download/v3.6.9/SHA256SUMS"},
		},
		"PatchTakesTheRest": {
			[]string{`kubernetes: {v1.36.4: {versions: {etcd: v3.6.9}}}`},
			"v1.36.4", "runc",
			result{"v1.5.2", "https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.amd64", "", "https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum"},
		},
		"OtherPatchesStay": {
			[]string{`kubernetes: {v1.36.4: {versions: {etcd: v3.6.9}}}`},
			"v1.36.3", "etcd",
			result{"v3.6.8", "https://github.com/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-amd64.tar.gz", "", "https://github.com/etcd-io/etcd/releases/download/v3.6.8/SHA256SUMS"},
		},
		"Digest": {
			[]string{`digests: {kubelet/v1.36.3/amd64: "` + someDigest + `"}`},
			"v1.36.3", "kubelet",
			result{"v1.36.3", "https://dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet", someDigest, "https://dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet.sha256"},
		},
		"AnotherURL": {
			[]string{`files: {runc: {url: "http://files.example.com/runc-{{number}}"}}`, `digests: {runc/v1.5.2/amd64: "` + someDigest + `"}`},
			"v1.36.3", "runc",
			result{"v1.5.2", "http://files.example.com/runc-1.5.2", someDigest, ""},
		},
		"LastFileCounts": {
			[]string{`kubernetes: {v1.36: {versions: {runc: v1.1.5}}}`, `kubernetes: {v1.36: {versions: {runc: v1.2.0}}}`},
			"v1.36.3", "runc",
			result{"v1.2.0", "https://github.com/opencontainers/runc/releases/download/v1.2.0/runc.amd64", "", "https://github.com/opencontainers/runc/releases/download/v1.2.0/runc.sha256sum"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := load(t, c.texts...).Files(c.kubernetes, "amd64", c.file)
			if err != nil {
				t.Fatal(err)
			}
			f := files[0]
			if diff := cmp.Diff(c.want, result{f.Version, f.URL, f.Digest, f.ChecksumURL}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSupportedIsInOrder(t *testing.T) {
	c := load(t, `kubernetes: {v1.100: {}, v1.9.1: {versions: {runc: v1.1.0}}, v1.36.4: {versions: {runc: v1.1.0}}}`)
	if diff := cmp.Diff([]string{"v1.9.1", "v1.34", "v1.35", "v1.36", "v1.100"}, c.Supported()); diff != "" {
		t.Error(diff)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"NoYAML":              {"{", []string{"catalog.yaml", "parse"}},
		"UnknownField":        {"kubernets: {}", []string{`unknown field "kubernets"`}},
		"NoRelease":           {"kubernetes: {1.36: {}}", []string{`kubernetes["1.36"]`, "such as v1.36"}},
		"NoVersion":           {"kubernetes: {v1.36: {versions: {runc: newest}}}", []string{`kubernetes["v1.36"].versions.runc`, `"newest" is not a version`}},
		"UnknownComponent":    {"kubernetes: {v1.36: {versions: {crio: v1.36.0}}}", []string{`kubernetes["v1.36"].versions.crio`}},
		"DoesNotFit":          {"kubernetes: {v1.36: {versions: {etcd: v3.4.0}}}", []string{`etcd: v3.4.0 does not fit Kubernetes v1.36, which needs >=3.5.24 <3.7.0`}},
		"PatchDoesNotFit":     {"kubernetes: {v1.36.3: {versions: {containerd: v1.7.0}}}", []string{`kubernetes["v1.36.3"].versions.containerd: v1.7.0 does not fit Kubernetes v1.36.3`}},
		"NoRange":             {"kubernetes: {v1.36: {fits: {runc: new}}}", []string{`kubernetes["v1.36"].fits.runc`}},
		"NoURL":               {"files: {runc: {url: runc}}", []string{`files.runc.url: "runc" is not an http or https URL`}},
		"NoChecksumURL":       {`files: {runc: {url: "https://x/runc", checksum: "ftp://x"}}`, []string{`files.runc.checksum`}},
		"UnknownPlaceholder":  {`files: {runc: {url: "https://x/{{os}}"}}`, []string{`files.runc.url: {{os}} is not known here; there are {{version}}`}},
		"UnknownArchive":      {`files: {runc: {url: "https://x/runc", archive: zip}}`, []string{`files.runc.archive: "zip"`}},
		"ArchiveWithoutFiles": {`files: {runc: {url: "https://x/runc", archive: tar}}`, []string{`files.runc.members`}},
		"FilesWithoutArchive": {`files: {runc: {url: "https://x/runc", members: {runc: runc}}}`, []string{`files.runc.members: only an archive has members`}},
		"MemberIsNoName":      {`files: {runc: {url: "https://x/runc", archive: tar, members: {runc: ../../etc/passwd}}}`, []string{`files.runc.members["runc"]`}},
		"ImageWithoutHost":    {`images: {pause: "pause:{{version}}"}`, []string{`images.pause`}},
		"PluginWithNothing":   {`plugins: {calico: {}}`, []string{`plugins.calico: exactly one of manifest and chart`}},
		"PluginWithBoth":      {`plugins: {calico: {manifest: "https://x", chart: {repo: "https://x", name: x, version: "1.0.0"}}}`, []string{`plugins.calico: exactly one`}},
		"ChartWithoutRepo":    {`plugins: {calico: {chart: {repo: x, name: x, version: "1.0.0"}}}`, []string{`plugins.calico.chart.repo`}},
		"NoDigest":            {`digests: {runc/v1.5.2/amd64: abc}`, []string{`digests["runc/v1.5.2/amd64"]: "abc"`}},
		"DigestOfNothing":     {`digests: {crio/v1.5.2/amd64: "` + someDigest + `"}`, []string{`digests["crio/v1.5.2/amd64"]: not the name`}},
		"AllAtOnce":           {"kubernetes: {1.36: {}}\nfiles: {runc: {url: runc}}", []string{`kubernetes["1.36"]`, `files.runc.url`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(write(t, c.text)...)
			if err == nil {
				t.Fatal("there was no error")
			}
			for _, part := range append(c.want, "catalog.yaml") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
		})
	}
	if _, err := Load("/nowhere/catalog.yaml"); err == nil || !strings.Contains(err.Error(), "/nowhere/catalog.yaml") {
		t.Error(err)
	}
}

func TestUnknown(t *testing.T) {
	files := func(kubernetes, arch, name string) func(*Catalog) error {
		return func(c *Catalog) error { _, err := c.Files(kubernetes, arch, name); return err }
	}
	for name, c := range map[string]struct {
		text string
		ask  func(*Catalog) error
		want []string
	}{
		"Newer":           {"", files("v1.37.0", "amd64", "kubelet"), []string{"v1.37.0", "the nearest are v1.36, v1.35, v1.34", `kubernetes["v1.37"]`, "--catalog"}},
		"Older":           {"", files("v1.29.1", "amd64", "kubelet"), []string{"the nearest are v1.34, v1.35, v1.36"}},
		"AnotherMajor":    {"", files("v2.35.1", "amd64", "kubelet"), []string{"the nearest are v1.35, v1.34, v1.36"}},
		"OnlyAMinor":      {"", files("v1.36", "amd64", "kubelet"), []string{`"v1.36" is not a version of Kubernetes such as v1.36.3`}},
		"WithoutV":        {"", files("1.36.3", "amd64", "kubelet"), []string{`"1.36.3" is not a version`}},
		"Path":            {"", files("v1.36.3/../x", "amd64", "kubelet"), []string{`is not a version`}},
		"Architecture":    {"", files("v1.36.3", "riscv64", "kubelet"), []string{`"riscv64"`, "amd64"}},
		"File":            {"", files("v1.36.3", "amd64", "crio"), []string{`"crio"`, "containerd, etcd", "--catalog"}},
		"Image":           {"", func(c *Catalog) error { _, err := c.Image("v1.36.3", "x"); return err }, []string{`"x"`, "coredns, flannel"}},
		"ImagesRelease":   {"", func(c *Catalog) error { _, err := c.Image("v1.33.3", "pause"); return err }, []string{"the nearest are v1.34"}},
		"Plugin":          {"", func(c *Catalog) error { _, err := c.Plugin("v1.36.3", "weave"); return err }, []string{`"weave"`, "calico, cilium, kubeovn", "network.manifest"}},
		"PluginsRelease":  {"", func(c *Catalog) error { _, err := c.Plugin("v1.33.3", "calico"); return err }, []string{"the nearest are v1.34"}},
		"PartOfARelease":  {"kubernetes: {v1.37: {versions: {runc: v1.5.2}}}", files("v1.37.0", "amd64", "etcd"), []string{"no version of etcd for Kubernetes v1.37.0", `kubernetes["v1.37"].versions`}},
		"WithoutImage":    {"kubernetes: {v1.37: {versions: {runc: v1.5.2}}}", func(c *Catalog) error { _, err := c.Image("v1.37.0", "pause"); return err }, []string{"no version of pause"}},
		"WithoutPlugin":   {"kubernetes: {v1.37: {versions: {runc: v1.5.2}}}", func(c *Catalog) error { _, err := c.Plugin("v1.37.0", "calico"); return err }, []string{"no version of calico"}},
		"WithoutChecksum": {`files: {runc: {url: "https://x/runc"}}`, files("v1.36.3", "amd64", "runc"), []string{`digests["runc/v1.5.2/amd64"]`, "files.runc.checksum"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.ask(load(t, c.text))
			if err == nil {
				t.Fatal("there was no error")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
		})
	}
}
