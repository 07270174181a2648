package console

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

// TestBuildWithoutNode: without Node, or with a Node that is too old, web/build.sh says which
// version it needs. It removes the page, also that of an earlier build, and does not fail.
func TestBuildWithoutNode(t *testing.T) {
	t.Parallel()
	node, noNode := exec.LookPath("node")
	npm, noNPM := exec.LookPath("npm")
	script, err := os.ReadFile(filepath.Join(testenv.Root(), "web", "build.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		version string // of Node; "" is none
		enough  bool
	}{
		"None": {"", false}, "18": {"18.20.4", false}, "20.18": {"20.18.3", false}, "20.19": {"20.19.0", true}, "22": {"22.1.0", true}, "Newer": {"100.0.0", true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.version != "" && (noNode != nil || noNPM != nil) {
				t.Skip("Node with npm is not on PATH")
			}
			dir := t.TempDir()
			bin, web, dist := filepath.Join(dir, "bin"), filepath.Join(dir, "web"), filepath.Join(dir, "internal", "console", "dist")
			for _, d := range []string{bin, filepath.Join(web, "dist"), filepath.Join(dist, "assets")} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			old := filepath.Join(dir, "version.cjs")
			for path, content := range map[string]string{
				filepath.Join(web, "build.sh"): string(script), filepath.Join(web, "dist", "index.html"): "earlier", filepath.Join(dist, ".gitkeep"): "",
				filepath.Join(dist, "index.html"): "earlier", filepath.Join(dist, "assets", "a.js"): "earlier",
				old: `Object.defineProperty(process, "versions", { value: { node: "` + tc.version + `" } })`,
			} {
				if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			tools := map[string]string{}
			for _, tool := range []string{"bash", "dirname", "find", "mkdir", "rm"} {
				if tools[tool], err = exec.LookPath(tool); err != nil {
					t.Fatal(err)
				}
			}
			if tc.version != "" {
				tools["node"], tools["npm"] = node, npm
			}
			for tool, path := range tools {
				if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
					t.Fatal(err)
				}
			}
			run := func(args ...string) (string, error) {
				var said bytes.Buffer
				cmd := exec.CommandContext(t.Context(), tools["bash"], append([]string{filepath.Join(web, "build.sh")}, args...)...)
				cmd.Env = []string{"PATH=" + bin, "HOME=" + dir, "NODE_OPTIONS=--require=" + old}
				cmd.Stdout, cmd.Stderr = &said, &said
				err := cmd.Run()
				return said.String(), err
			}
			if said, err := run("--node"); (err == nil) != tc.enough {
				t.Fatalf("is there Node: %v %s", err, said)
			}
			if tc.enough {
				return
			}
			said, err := run()
			if err != nil || !strings.Contains(said, "Node 20.19 or newer") || !strings.Contains(said, "left out") {
				t.Errorf("%v: %s", err, said)
			}
			left, err := filepath.Glob(filepath.Join(dist, "*"))
			if _, gone := os.Stat(filepath.Join(web, "dist")); err != nil || len(left) != 1 || filepath.Base(left[0]) != ".gitkeep" || !os.IsNotExist(gone) {
				t.Errorf("left of an earlier build: %v, %v", left, gone)
			}
		})
	}
}
