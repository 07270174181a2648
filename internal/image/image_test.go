package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/image"
)

func options() image.Options {
	return image.Options{Name: "registry.example.com/orrery-agent:v1", Arch: "arm64", Path: "/orrery-agent", Program: []byte("a program"), User: 65532}
}

func files(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrite: every descriptor names content with its digest and size, the image contains the
// program unchanged, and a second image has the same bytes.
func TestWrite(t *testing.T) {
	var one, two bytes.Buffer
	digest, err := image.Write(&one, options())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := image.Write(&two, options()); err != nil || again != digest || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("a second image differs: %s, %s, %v", digest, again, err)
	}
	all := files(t, one.Bytes())
	type descriptor struct {
		Digest      string
		Size        int
		Annotations map[string]string
	}
	blob := func(d descriptor) []byte {
		t.Helper()
		content := all["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256(content)); got != d.Digest || len(content) != d.Size {
			t.Fatalf("%+v leads to %d bytes with the digest %s", d, len(content), got)
		}
		return content
	}
	read := func(content []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(content, into); err != nil {
			t.Fatal(err)
		}
	}
	var index struct{ Manifests []descriptor }
	read(all["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Digest != digest || index.Manifests[0].Annotations["io.containerd.image.name"] != options().Name {
		t.Fatalf("the index has %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(blob(index.Manifests[0]), &manifest)
	var config struct {
		Architecture string
		Config       struct {
			User       string
			Entrypoint []string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	read(blob(manifest.Config), &config)
	if config.Architecture != "arm64" || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/orrery-agent" {
		t.Errorf("the configuration is %+v", config)
	}
	layer := blob(manifest.Layers[0])
	if config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("the configuration has the layer %s, the manifest %s", config.RootFS.DiffIDs[0], manifest.Layers[0].Digest)
	}
	if got := string(files(t, layer)["orrery-agent"]); got != "a program" {
		t.Errorf("the program is %q", got)
	}
	var docker []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	read(all["manifest.json"], &docker)
	if docker[0].RepoTags[0] != options().Name || all[docker[0].Config] == nil || all[docker[0].Layers[0]] == nil {
		t.Errorf("docker load finds %+v", docker)
	}
}

// TestCheckName: a name must be a complete reference.
func TestCheckName(t *testing.T) {
	for name, good := range map[string]bool{
		"registry.example.com/orrery-agent:v1": true, "localhost:5000/a/b:latest": true,
		"orrery-agent": false, "orrery-agent:v1": false, "registry.example.com/orrery-agent": false, "UPPER/a:b": false, "a/b:": false, "": false,
	} {
		if err := image.CheckName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}
