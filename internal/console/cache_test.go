package console

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
)

// checkout is a directory like the repository's, with web/build.sh and stand-ins for the page's
// sources.
type checkout struct {
	t          *testing.T
	dir, cache string
	ran        string // a file that names the tools that ran
	bin        string // the directory of the tools
}

// npmStub installs a vite that writes the sources into the page. With FAIL set, vite is killed half
// way.
const npmStub = `#!/usr/bin/env bash
echo npm >>"$RAN"
mkdir -p node_modules/.bin
[ -z "${FAIL:-}" ] || kill -9 $$
cat >node_modules/.bin/vite <<'VITE'
#!/usr/bin/env bash
echo vite >>"$RAN"
mkdir -p dist/assets
cat src/main.ts >dist/index.html
echo code >dist/assets/a.js
VITE
chmod +x node_modules/.bin/vite
`

// nodeStub has a version that is new enough, and compresses nothing.
const nodeStub = `#!/usr/bin/env bash
[ "$1" != -p ] || echo "${NODE_VERSION:-v20.19.0}"
`

func newCheckout(t *testing.T, cache, bin string) *checkout {
	t.Helper()
	c := &checkout{t: t, dir: t.TempDir(), cache: cache, bin: bin}
	c.ran = filepath.Join(c.dir, "ran")
	script, err := os.ReadFile(filepath.Join(testenv.Root(), "web", "build.sh"))
	if err != nil {
		t.Fatal(err)
	}
	c.write("web/build.sh", string(script))
	for _, name := range []string{
		"web/src/main.ts", "web/public/icon.svg", "web/index.html", "web/package.json", "web/package-lock.json", "web/vite.config.ts",
		"web/tsconfig.json", "web/compress.mjs", "internal/console/dist/.gitkeep",
	} {
		c.write(name, name)
	}
	return c
}

func (c *checkout) write(name, content string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// build runs web/build.sh, and returns the tools that it ran, and the embedded page if it
// succeeded.
func (c *checkout) build(env ...string) (ran, page string) {
	c.t.Helper()
	_ = os.Remove(c.ran)
	cmd := exec.CommandContext(c.t.Context(), "bash", filepath.Join(c.dir, "web", "build.sh"))
	cmd.Env = append([]string{"PATH=" + c.bin + ":" + os.Getenv("PATH"), "ORRERY_CACHE=" + c.cache, "RAN=" + c.ran}, env...)
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(c.ran)
	ran = strings.Join(strings.Fields(string(log)), " ")
	if err != nil {
		c.t.Logf("%v: %s", err, out)
		return ran, ""
	}
	embedded, err := os.ReadFile(filepath.Join(c.dir, "internal", "console", "dist", "index.html"))
	if err != nil {
		c.t.Fatal(err)
	}
	return ran, string(embedded)
}

// TestBuildByContent checks that web/build.sh runs npm and vite once for each content of their
// input, in any checkout and with any file times.
func TestBuildByContent(t *testing.T) {
	t.Parallel()
	bin, cache := t.TempDir(), t.TempDir()
	for name, script := range map[string]string{"npm": npmStub, "node": nodeStub} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := newCheckout(t, cache, bin)
	expect := func(c *checkout, what, ran, page string, env ...string) {
		t.Helper()
		if r, p := c.build(env...); r != ran || p != page {
			t.Errorf("%s: ran %q and embedded %q, want %q and %q", what, r, p, ran, page)
		}
	}
	const first = "web/src/main.ts"
	expect(c, "npm is killed", "npm", "", "FAIL=yes")
	expect(c, "the first build", "npm vite", first)
	expect(c, "nothing changed", "", first)
	now := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(c.dir, "web/src/main.ts"), now, now); err != nil {
		t.Fatal(err)
	}
	expect(c, "a newer file with the same content", "", first)
	expect(newCheckout(t, cache, bin), "another checkout", "", first)

	c.write("web/src/main.ts", "changed")
	if err := os.Chtimes(filepath.Join(c.dir, "web/src/main.ts"), time.Unix(0, 0), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	expect(c, "an older file with other content", "vite", "changed")
	c.write("web/src/main.ts", first)
	expect(c, "the first content again", "", first)
	if err := os.Rename(filepath.Join(c.dir, "web/public/icon.svg"), filepath.Join(c.dir, "web/public/other.svg")); err != nil {
		t.Fatal(err)
	}
	expect(c, "a file with another name", "vite", first)
	expect(c, "another Node", "npm vite", first, "NODE_VERSION=v22.1.0")
	c.write("web/package-lock.json", "other packages")
	expect(c, "other packages", "npm vite", first)

	for i := range 10 {
		c.write("web/src/main.ts", strings.Repeat("x", i+1))
		c.build()
	}
	for _, kind := range []string{"pages", "packages"} {
		kept, err := os.ReadDir(filepath.Join(cache, "web", kind))
		if err != nil || len(kept) == 0 || len(kept) > 5 {
			t.Errorf("kept %d %s, want 1 to 5: %v", len(kept), kind, err)
		}
	}
	c.write("web/src/main.ts", first)
	expect(c, "a page that the cache does not have any more", "vite", first)
}
