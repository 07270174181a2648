package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/image"
	"orrery.dev/orrery/internal/lifecycle/content"
)

// newAgentImage returns the command "orrery agent-image", which builds the container image of the
// agent for clusters whose agent connects to the hub.
func newAgentImage(s streams) *cobra.Command {
	var name, arch, file, output string
	cmd := &cobra.Command{
		Use:   "agent-image --image REGISTRY/NAME:TAG --output FILE",
		Short: "Build the container image of the agent",
		Long: `Make the container image of the agent that clusters are joined by, for "orrery cluster join
--pull". It is an archive that "ctr images import", "docker load", "podman load" and "skopeo copy
oci-archive:FILE" take, made from the agent beside this executable without a container runtime. The
same agent gives the same bytes; what is printed is the digest by which a registry knows the image.`,
		Example: `  orrery agent-image --image registry.example.com/orrery-agent:v1 --output agent.tar`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			switch {
			case name == "":
				return usageError{errors.New("--image is required: the name that the image is to have, such as registry.example.com/orrery-agent:v1")}
			case output == "":
				return usageError{errors.New("--output is required: the file to write")}
			}
			if err := image.CheckName(name); err != nil {
				return usageError{fmt.Errorf("--image %w", err)}
			}
			if file == "" {
				if file, err = content.AgentFile(arch); err != nil {
					return err
				}
			}
			found, err := archOf(file)
			if err != nil {
				return fmt.Errorf("--agent %s: %w", file, err)
			}
			if found != arch {
				return fmt.Errorf("--agent %s: is built for %s, and --arch is %s", file, found, arch)
			}
			program, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read --agent: %w", err)
			}
			digest, err := writeImage(output, image.Options{Name: name, Arch: arch, Path: image.AgentPath, Program: program, User: image.AgentUser})
			if err != nil {
				return fmt.Errorf("--output: %w", err)
			}
			return say(s.out, "%s@%s\n", name, digest)
		},
	}
	cmd.Flags().StringVar(&name, "image", "", "name that the image is to have, with registry and tag")
	cmd.Flags().StringVar(&arch, "arch", cmp.Or(map[string]string{"arm64": "arm64"}[runtime.GOARCH], "amd64"), "architecture: amd64 or arm64")
	cmd.Flags().StringVar(&file, "agent", "", "the agent (default: orrery-agent-linux-ARCH beside this executable)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write the archive to")
	return cmd
}

// writeImage writes a container image as an archive to path, in one step and readable for all
// users. It replaces an existing file. digest is the digest of the image in a registry.
func writeImage(path string, o image.Options) (digest string, err error) {
	err = disk.Writer{}.Write(path, 0o644, func(w io.Writer) error {
		digest, err = image.Write(w, o)
		return err
	})
	return digest, err
}
