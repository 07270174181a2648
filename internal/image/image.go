// Package image builds images with a single program, without a container runtime. The same
// program always gives the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

const (
	// AgentPath is the path of the program orrery-agent in the image of the agent.
	AgentPath = "/orrery-agent"
	// AgentUser is the number of the user, and of the group, as which the agent runs in its image.
	AgentUser = 65532
)

// Options describe the image that Write builds.
type Options struct {
	// Name is the reference of the image after the archive is imported into a container runtime, such
	// as registry.example.com/orrery-agent:v1.
	Name string
	// Arch is the architecture of the program, such as amd64.
	Arch string
	// Path of the program in the image, absolute, such as /orrery-agent. Program is the content of
	// the file.
	Path    string
	Program []byte
	// User is the number of the user, and of the group, as which the program runs.
	User int
}

// reference matches a complete Options.Name: registry, path and tag. All parts are required,
// because container runtimes add different defaults.
var reference = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*(?::[0-9]+)?)/[a-z0-9._/-]+:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// CheckName returns an error unless name is a complete reference of an image, as Options.Name must
// be. It has a registry, a path and a tag, and is in lower case before the tag.
func CheckName(name string) error {
	if !reference.MatchString(name) {
		return fmt.Errorf("%q: want REGISTRY/NAME:TAG, such as registry.example.com/orrery-agent:v1", name)
	}
	return nil
}

// digest returns the digest of content in the format of images: sha256:HEX.
func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// descriptor refers to a blob of the image, in the OCI format.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

// platform is the platform of an image, in the OCI format.
type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// file is a file in a tar archive. name is its path without a leading slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

// Write builds an image with one program, and writes it to w as a tar archive in the OCI image
// layout. docker load reads the archive, too. It returns the digest of the manifest, under which a
// registry stores the image.
//
// A name that CheckName refuses is an error, and so is a missing program, path or architecture.
func Write(w io.Writer, o Options) (string, error) {
	if err := CheckName(o.Name); err != nil {
		return "", err
	}
	if o.Arch == "" || o.Path == "" || len(o.Program) == 0 {
		return "", errors.New("an image needs a program, a path and an architecture")
	}
	var layer bytes.Buffer
	if err := archive(&layer, []file{{o.Path[1:], 0o555, o.Program}}); err != nil {
		return "", fmt.Errorf("make the layer: %w", err)
	}
	user := fmt.Sprintf("%d:%d", o.User, o.User)
	config, err := json.Marshal(map[string]any{
		"architecture": o.Arch, "os": "linux",
		"config":  map[string]any{"Entrypoint": []string{o.Path}, "User": user, "Env": []string{"PATH=/"}},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
		"history": []any{map[string]any{"created_by": "orrery agent-image"}},
	})
	if err != nil {
		return "", fmt.Errorf("encode the configuration: %w", err)
	}
	describe := func(kind string, content []byte) descriptor {
		return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: digest(content), Size: len(content)}
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": describe("config.v1+json", config), "layers": []descriptor{describe("layer.v1.tar", layer.Bytes())},
	})
	if err != nil {
		return "", fmt.Errorf("encode the manifest: %w", err)
	}
	listed := describe("manifest.v1+json", manifest)
	listed.Platform = &platform{o.Arch, "linux"}
	tag := o.Name[strings.LastIndexByte(o.Name, ':')+1:]
	listed.Annotations = map[string]string{"io.containerd.image.name": o.Name, "org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{listed},
	})
	if err != nil {
		return "", fmt.Errorf("encode the index: %w", err)
	}
	blob := func(content []byte) file {
		return file{"blobs/sha256/" + digest(content)[len("sha256:"):], 0o444, content}
	}
	docker, err := json.Marshal([]any{map[string]any{
		"Config": blob(config).name, "RepoTags": []string{o.Name}, "Layers": []string{blob(layer.Bytes()).name},
	}})
	if err != nil {
		return "", fmt.Errorf("encode the list of images: %w", err)
	}
	err = archive(w, []file{
		{"oci-layout", 0o444, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", 0o444, index},
		{"manifest.json", 0o444, docker},
		blob(manifest), blob(config), blob(layer.Bytes()),
	})
	if err != nil {
		return "", fmt.Errorf("write the archive: %w", err)
	}
	return listed.Digest, nil
}

// archive writes files to w as a tar archive. The files have no owner and a constant time, so that
// the same files give the same bytes.
func archive(w io.Writer, files []file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	return t.Close()
}
