package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fetch gets a URL of the lab from the machine.
func fetch(t *testing.T, url string) (int, []byte, http.Header) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body, response.Header
}

// releases are paths of upstream's URLs, and of their checksums, for amd64.
var releases = map[string]struct{ path, sums string }{
	"Kubelet":    {"/dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet", "/dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet.sha256"},
	"Etcd":       {"/github.com/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-amd64.tar.gz", "/github.com/etcd-io/etcd/releases/download/v3.6.8/SHA256SUMS"},
	"Containerd": {"/github.com/containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-amd64.tar.gz", "/github.com/containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-amd64.tar.gz.sha256sum"},
	"Runc":       {"/github.com/opencontainers/runc/releases/download/v1.1.5/runc.amd64", "/github.com/opencontainers/runc/releases/download/v1.1.5/runc.sha256sum"},
	"CNIPlugins": {"/github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz", "/github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz.sha256"},
}

func TestMirror(t *testing.T) {
	for name, release := range releases {
		t.Run(name, func(t *testing.T) {
			before := lab.Requests(release.path)
			status, content, _ := fetch(t, lab.Mirror()+release.path)
			if status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			if got := lab.Requests(release.path) - before; got != 1 {
				t.Errorf("counted %d requests, want 1", got)
			}
			sum := sha256.Sum256(content)
			want := hex.EncodeToString(sum[:])
			if !strings.HasSuffix(release.sums, "kubelet.sha256") {
				want += "  " + path.Base(release.path) + "\n"
			}
			_, sums, _ := fetch(t, lab.Mirror()+release.sums)
			if diff := cmp.Diff(want, string(sums)); diff != "" {
				t.Errorf("checksums (-want +got):\n%s", diff)
			}
		})
	}
	if status, _, _ := fetch(t, lab.Mirror()+"/dl.k8s.io/v0.0.0/bin/linux/amd64/kubelet"); status != http.StatusNotFound {
		t.Errorf("status of an unknown version: %d", status)
	}
}

func TestMirrorRefuses(t *testing.T) {
	sums := releases["Etcd"].sums
	lab.Refuse(sums, 1)
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		if status, _, _ := fetch(t, lab.Mirror()+sums); status != want {
			t.Errorf("status %d, want %d", status, want)
		}
	}
}

// TestRegistry: each image is complete. Its manifest is there by tag and by digest, and its config
// and layers have the sizes and digests in the manifest.
func TestRegistry(t *testing.T) {
	type part struct {
		Digest string `json:"digest"`
		Size   int    `json:"size"`
	}
	base := "http://" + lab.Registry() + "/v2/"
	for _, image := range []string{
		"pause:3.10.1", "coredns/coredns:v1.14.7", "flannel-io/flannel:v0.28.4",
		"flannel-io/flannel-cni-plugin:v1.9.1-flannel1", "web:1",
	} {
		t.Run(image, func(t *testing.T) {
			name, tag, _ := strings.Cut(image, ":")
			status, manifest, header := fetch(t, base+name+"/manifests/"+tag)
			if status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			if got := header.Get("Docker-Content-Digest"); got != digest(manifest) {
				t.Errorf("digest of the manifest is %s, its header has %s", digest(manifest), got)
			}
			_, again, _ := fetch(t, base+name+"/manifests/"+digest(manifest))
			if diff := cmp.Diff(string(manifest), string(again)); diff != "" {
				t.Errorf("manifest by digest (-by tag +by digest):\n%s", diff)
			}
			var m struct {
				Config part   `json:"config"`
				Layers []part `json:"layers"`
			}
			if err := json.Unmarshal(manifest, &m); err != nil {
				t.Fatal(err)
			}
			for _, want := range append(m.Layers, m.Config) {
				_, blob, _ := fetch(t, base+name+"/blobs/"+want.Digest)
				if diff := cmp.Diff(want, part{Digest: digest(blob), Size: len(blob)}); diff != "" {
					t.Errorf("blob (-want +got):\n%s", diff)
				}
			}
		})
	}
	for _, missing := range []string{"pause/manifests/0", "pause/manifests/sha256:0", "nothing/manifests/1", "pause/blobs/sha256:0", "pause/tags"} {
		if status, _, _ := fetch(t, base+missing); status != http.StatusNotFound {
			t.Errorf("status of %s: %d", missing, status)
		}
	}
}

// TestContainerRuns: a host installs containerd from the mirror, pulls an image through a registry
// mirror and runs it. That is all that a kubelet needs of a host.
func TestContainerRuns(t *testing.T) {
	h := lab.Host("host-1")
	inHost(t, h, "set -e\nbusybox wget -q -O- "+lab.Mirror()+releases["Containerd"].path+" | tar -xzC /usr/local\n"+
		"mkdir -p /etc/containerd/certs.d/registry.k8s.io\n"+
		"printf 'server = \"http://"+lab.Registry()+"\"\\n' >/etc/containerd/certs.d/registry.k8s.io/hosts.toml\n"+
		"setsid containerd >/var/log/containerd.log 2>&1 </dev/null &")
	if err := until(t.Context(), func() error { _, err := h.Run(t.Context(), "ctr", "version"); return err }); err != nil {
		t.Fatal(err)
	}
	inHost(t, h, "ctr images pull --hosts-dir /etc/containerd/certs.d registry.k8s.io/web:1 2>&1")
	got := inHost(t, h, "ctr run --rm registry.k8s.io/web:1 one /web get "+lab.Mirror()+releases["Kubelet"].sums+" 2>&1 || true")
	if !strings.Contains(got, "dial tcp") { // a container without a network: it ran, and says so
		t.Errorf("the container says %q", got)
	}
	_, want, _ := fetch(t, lab.Mirror()+releases["Kubelet"].sums)
	got = inHost(t, h, "ctr run --rm --net-host registry.k8s.io/web:1 two /web get "+lab.Mirror()+releases["Kubelet"].sums)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the container got (-want +got):\n%s", diff)
	}
}
