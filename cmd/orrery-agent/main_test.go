package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// largest is how large the agent may be: every host of every cluster gets it.
const largest = 15_000_000

// build makes the agent as make agent does.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orrery-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return path
}

// TestFile: the agent is small, and needs nothing of the host that it is brought to.
func TestFile(t *testing.T) {
	path := build(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the agent has %.1f MB", float64(info.Size())/1e6)
	if info.Size() > largest {
		t.Errorf("the agent has %d bytes, more than %d: see what it imports, with go list -deps ./cmd/orrery-agent", info.Size(), largest)
	}
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Error("the agent is linked dynamically")
		}
	}
}

// TestCommands: the program does what the engine, units and the boot script ask it to.
func TestCommands(t *testing.T) {
	path := build(t)
	backends := filepath.Join(t.TempDir(), "none")
	for name, tc := range map[string]struct {
		args  string
		stdin string
		code  int
		says  string
	}{
		"Help":               {args: "--help", says: "node observe"},
		"NoCommand":          {args: "", code: 2, says: "--help"},
		"UnknownCommand":     {args: "node aply", code: 2, says: `unknown command "aply"`},
		"UnknownFlag":        {args: "node observe --all", code: 2, says: "all"},
		"UnexpectedArgument": {args: "node observe all", code: 2, says: `unexpected argument "all"`},
		"CheckBadRequest":    {args: "node check", stdin: "{", code: 1, says: "read request"},
		"ServeNoToken":       {args: "node serve", stdin: "{}\n", code: 1, says: "no token"},
		"ApplyOtherProtocol": {args: "node apply", stdin: "{\"protocol\":99}\n", says: "asked in 99"},
		"LoadBalancerNoFile": {args: "node loadbalancer --listen 127.0.0.1:0 --backends " + backends, code: 1, says: backends},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(path, strings.Fields(tc.args)...)
			cmd.Stdin = strings.NewReader(tc.stdin)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(string(out), tc.says) {
				t.Errorf("exit code %d, want %d; it says %q, want %q in it", code, tc.code, out, tc.says)
			}
		})
	}
	t.Run("Observe", func(t *testing.T) {
		out, err := exec.Command(path, "node", "observe").Output()
		if err != nil {
			t.Skipf("this machine's record is not ours to read: %v", err)
		}
		var applied plan.Applied
		if err := json.Unmarshal(out, &applied); err != nil || applied.Protocol != node.Protocol {
			t.Errorf("it says %q, %v", out, err)
		}
	})
	t.Run("LoadBalancer", func(t *testing.T) {
		backend, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer backend.Close()
		if err := os.WriteFile(backends, []byte(backend.Addr().String()+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path, "node", "loadbalancer", "--listen", "127.0.0.1:0", "--backends", backends)
		said, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// It asks the backend how it is, which is the sign that it runs.
		if conn, err := backend.Accept(); err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		io.Copy(&log, said)
		if err := cmd.Wait(); err != nil {
			t.Errorf("after a signal: %v\n%s", err, log.String())
		}
	})
}
