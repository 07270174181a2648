package layers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOrdinaryUsers runs the script of `make test` for an ordinary user, with a fake go that
// only prints its arguments.
func TestOrdinaryUsers(t *testing.T) {
	cases := map[string]struct {
		code    string // exit code of the tests
		fail    bool
		missing string // packages
		says    string // about the missing packages
	}{
		"Pass": {code: "0"},
		"Fail": {code: "1", fail: true},
		"NoDatabases": {code: "0", missing: "postgresql", says: "; not run, because they need packages, the tests of internal/store against PostgreSQL and " +
			"MariaDB without ORRERY_TEST_POSTGRES_DSN and ORRERY_TEST_MYSQL_DSN: install postgresql, or run as root: make databases"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			// Other users can read the directory, unlike the one of t.TempDir.
			root, err := os.MkdirTemp("", "ordinary")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(root)
			files := map[string]string{
				"bin/orrery":                "",
				"bin/orrery-kube":           "",
				"bin/orrery-agent-any":      "",
				"internal/console/dist/any": "",
				"internal/console/any.go":   "",
				"hack/database-packages.sh": "#!/bin/sh\necho " + tc.missing + "\n",
				"bin/go": `#!/bin/sh
case "$*" in
version | list*-export*) echo any ;;
'list -m') echo example.org/m ;;
'list ./...') for p in test/lab internal/lab internal/lifecycle internal/lifecycle/host internal/lifecycle/node internal/provision internal/store test/e2e/documents test/layers; do echo example.org/m/$p; done ;;
*) echo "go $*"; exit ` + tc.code + ` ;;
esac
`,
			}
			for _, name := range []string{"hack/test.sh", "hack/go-tests.sh", "hack/phase.sh", "hack/digests.sh", "hack/times.sh"} {
				script, err := os.ReadFile(filepath.Join("..", "..", name))
				if err != nil {
					t.Fatal(err)
				}
				files[name] = string(script)
			}
			for path, content := range files {
				file := filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(root, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(filepath.Join(root, "hack", "test.sh"))
			cmd.Dir, cmd.Env = root, append(os.Environ(), "ORRERY_CACHE="+filepath.Join(root, "cache"), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
			if os.Geteuid() == 0 {
				const nobody = 65534
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			}
			out, err := cmd.Output()
			if (err != nil) != tc.fail {
				t.Fatalf("%v: %s", err, out)
			}
			lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			var ran []string
			for _, line := range lines {
				if command, ok := strings.CutPrefix(line, "go test -vet=off -ldflags=-w "); ok {
					ran = append(ran, command)
				}
			}
			if len(ran) != 3 || ran[0] != "-timeout 60m -p 2 ./internal/lifecycle ./internal/provision ./test/e2e/documents" || ran[1] != "-count 1 ./test/layers" ||
				!strings.Contains(ran[2], " ./test/spine/... ./internal/tunnel/agent ") ||
				!strings.HasSuffix(ran[2], " example.org/m/internal/lifecycle/node example.org/m/internal/store") {
				t.Errorf("it ran %q", ran)
			}
			want := "not run, because they need root: ./test/lab/... ./internal/lab ./internal/lifecycle/host and some tests of " +
				"./internal/lifecycle/node ./internal/lifecycle/unit; run them as root with: make lab-test" + tc.says
			if last := lines[len(lines)-1]; last != want {
				t.Errorf("its last line is %q, want %q", last, want)
			}
		})
	}
}
