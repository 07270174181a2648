package unit

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// host is a machine on which a manager under test keeps units.
type host struct {
	Manager
	// self is the path of the test binary on the host.
	self string
	// definition returns the path, on this machine, of the definition of a unit.
	definition func(name string) string
	// runs and kill take PIDs of the host.
	runs func(pid int) bool
	kill func(t *testing.T, pid int, sig syscall.Signal)
}

// conform tests what every Manager must do. All unit names differ, so one host is enough.
func conform(t *testing.T, h *host) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *host){
		"Lifecycle":       testLifecycle,
		"Respawn":         testRespawn,
		"Crash":           testCrash,
		"NoExecutable":    testNoExecutable,
		"Words":           testWords,
		"LimitNOFILE":     testLimit,
		"KillModeGroup":   func(t *testing.T, h *host) { testKillMode(t, h, "") },
		"KillModeProcess": func(t *testing.T, h *host) { testKillMode(t, h, "process") },
		"DamagedByOthers": testDamaged,
		"Refuses":         testRefuses,
		"NotThere":        testNotThere,
		"ManyAtOnce":      testMany,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func (h *host) unit(name, role string, args ...string) plan.Unit {
	return plan.Unit{
		Name: name, Description: "Test of 100% \\", Command: append([]string{h.self, play, role}, args...),
	}
}

func (h *host) status(t *testing.T, name string) Status {
	t.Helper()
	all, err := h.Observe(t.Context(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	return all[name]
}

// run installs and starts the unit. The unit ends with the test.
func (h *host) run(t *testing.T, u plan.Unit) Status {
	t.Helper()
	h.install(t, u)
	return h.restart(t, u.Name)
}

func (h *host) install(t *testing.T, u plan.Unit) {
	t.Helper()
	if err := h.Install(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Remove(context.WithoutCancel(t.Context()), u.Name); err != nil {
			t.Error(err)
		}
	})
}

// restart restarts the unit and returns its status when it runs.
func (h *host) restart(t *testing.T, name string) Status {
	t.Helper()
	if err := h.Restart(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	var s Status
	eventually(t, name+" runs", func() bool {
		s = h.status(t, name)
		return s.Running
	})
	return s
}

// waitLog waits for the text in the log and returns the log.
func (h *host) waitLog(t *testing.T, name, text string) string {
	t.Helper()
	var log string
	eventually(t, fmt.Sprintf("the log of %s has %q", name, text), func() bool {
		var err error
		if log, err = h.Log(t.Context(), name, 100); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log, text)
	})
	return log
}

func testLifecycle(t *testing.T, h *host) {
	const name = "orrery-lifecycle"
	if s := h.status(t, name); s.Installed || s.Running {
		t.Errorf("before it is installed: got %+v", s)
	}
	u := h.unit(name, rolePolite, "one")
	h.install(t, u)
	s := h.status(t, name)
	if !s.Installed || s.DefinitionHash != Hash(u) || s.Running || s.PID != 0 || s.Detail == "" {
		t.Errorf("installed: got %+v, want it not to run, with a reason, as %s", s, Hash(u))
	}

	first := h.restart(t, name)
	want := Status{Installed: true, DefinitionHash: Hash(u), Running: true, PID: first.PID}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
	h.waitLog(t, name, "polite one")

	second := h.restart(t, name)
	if second.PID == first.PID || h.runs(first.PID) {
		t.Errorf("restarted: got PID %d after %d", second.PID, first.PID)
	}

	u.Command[len(u.Command)-1], u.InputHash = "two", "changed"
	h.install(t, u)
	if s := h.status(t, name); s.DefinitionHash != Hash(u) || s.PID != second.PID {
		t.Errorf("installed again: got %+v, want %s and still PID %d", s, Hash(u), second.PID)
	}
	third := h.restart(t, name)
	h.waitLog(t, name, "polite two")

	if err := h.Reload(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	h.waitLog(t, name, "hangup")
	if s := h.status(t, name); s.PID != third.PID || s.Restarts != 0 {
		t.Errorf("reloaded: got %+v, want it to be still PID %d", s, third.PID)
	}
	log, err := h.Log(t.Context(), name, 1)
	if err != nil || log != "hangup" {
		t.Errorf("last line of the log: got %q, %v", log, err)
	}

	for range 2 { // removing a missing unit is no error
		if err := h.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if h.runs(third.PID) {
		t.Error("removed: it still runs")
	}
	if s := h.status(t, name); s.Installed || s.DefinitionHash != "" || s.Running {
		t.Errorf("removed: got %+v", s)
	}
	if _, err := os.Lstat(h.definition(name)); !os.IsNotExist(err) {
		t.Errorf("definition after removal: %v", err)
	}
	if err := h.Restart(t.Context(), name); err == nil {
		t.Error("restart of a removed unit: got no error")
	}
}

func testRespawn(t *testing.T, h *host) {
	const name = "orrery-respawn"
	first := h.run(t, h.unit(name, rolePolite))
	h.kill(t, first.PID, syscall.SIGKILL)
	eventually(t, "it runs again", func() bool {
		s := h.status(t, name)
		return s.Running && s.PID != first.PID && s.Restarts == 1
	})
}

func testCrash(t *testing.T, h *host) {
	const name = "orrery-crash"
	h.install(t, h.unit(name, roleFail))
	if err := h.Restart(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says why it does not run", func() bool {
		s := h.status(t, name)
		return !s.Running && strings.Contains(s.Detail, "exit") && strings.Contains(s.Detail, "3")
	})
	eventually(t, "it is tried again", func() bool { return h.status(t, name).Restarts > 1 })
	h.waitLog(t, name, "failing")
}

// Restart may return an error. Status must show the reason later.
func testNoExecutable(t *testing.T, h *host) {
	const name = "orrery-missing"
	u := h.unit(name, rolePolite)
	u.Command[0] = "/no/such/binary"
	h.install(t, u)
	if err := h.Restart(t.Context(), name); err != nil && !strings.Contains(err.Error(), u.Command[0]) {
		t.Errorf("restart: got %v, want it to name %s", err, u.Command[0])
	}
	if s := h.status(t, name); s.Running || s.Detail == "" {
		t.Errorf("got %+v, want a reason why it does not run", s)
	}
}

func testWords(t *testing.T, h *host) {
	const name = "orrery-words"
	words := []string{
		"plain", "", " ", "two words", "tab\there", "line\nbreak", `"quoted"`, "it's", `back\slash`, `\n`, `\x41`, "100%", "%n", "%%", "%",
		"$HOME", "${HOME}", "$$", "$", "a$b", ";", "#comment", "-dash", "@at", "+plus", "!bang", "ümlaut", "\u0085", "\x01", "\u200b", "€𝄞",
		"--flag=a=b,c", "{a,b}", "*", "~", "`id`", "$(id)", "<>", "|", "&", "trailing\\", "\\",
	}
	alphabet := []rune("ab \t\n\r\"'\\$%{};#=@-ü\u0085\u2028€x09n")
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var word strings.Builder
		for range random.IntN(8) {
			word.WriteRune(alphabet[random.IntN(len(alphabet))])
		}
		words = append(words, word.String())
	}
	u := h.unit(name, roleDump, words...)
	u.Env = map[string]string{
		"A": "plain", "EMPTY": "", "SPACE": " two  words ", "QUOTES": `"'"`, "PERCENT": "100% %n", "DOLLAR": "$A ${A}", "SLASH": `\n\`,
		"LINES": "one\ntwo\tthree", "_Under1": "ümlaut", "HASH": "#;",
	}
	h.run(t, u)
	_, text, _ := strings.Cut(h.waitLog(t, name, `"Files":`), "dump ")
	var got dump
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(words, got.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	for name, value := range u.Env {
		if !slices.Contains(got.Env, name+"="+value) {
			t.Errorf("environment: %q has no %s=%q", got.Env, name, value)
		}
	}
	if !slices.ContainsFunc(got.Env, func(v string) bool { return strings.HasPrefix(v, "PATH=") && strings.Contains(v, "/usr/sbin") }) {
		t.Errorf("environment: %q has no PATH with /usr/sbin", got.Env)
	}
}

func testLimit(t *testing.T, h *host) {
	const name = "orrery-limit"
	u := h.unit(name, roleDump)
	u.LimitNOFILE = 4321
	h.run(t, u)
	_, text, _ := strings.Cut(h.waitLog(t, name, `"Files":`), "dump ")
	var got dump
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Files < 4321 {
		t.Errorf("limit of open files: got %d, want at least 4321", got.Files)
	}
}

func testKillMode(t *testing.T, h *host, mode string) {
	name := "orrery-parent" + mode
	u := h.unit(name, roleParent)
	u.KillMode = mode
	h.run(t, u)
	first := h.child(t, name, 1)
	h.restart(t, name)
	second := h.child(t, name, 2)
	if err := h.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	survive := mode == "process"
	for when, pid := range map[string]int{"restart": first, "removal": second} {
		if survive && !h.runs(pid) {
			t.Errorf("its child did not survive the %s", when)
		}
		if survive {
			h.kill(t, pid, syscall.SIGKILL)
		}
		eventually(t, "its child has ended after the "+when, func() bool { return !h.runs(pid) })
	}
}

// child returns the PID of the child that a parent unit has after its nth start.
func (h *host) child(t *testing.T, name string, n int) int {
	t.Helper()
	var pid int
	eventually(t, name+" has a child", func() bool {
		log, err := h.Log(t.Context(), name, 100)
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(log, "child ")
		if len(parts) != n+1 {
			return false
		}
		_, err = fmt.Sscan(parts[n], &pid)
		return err == nil
	})
	return pid
}

func testDamaged(t *testing.T, h *host) {
	const name = "orrery-damaged"
	u := h.unit(name, rolePolite)
	running := h.run(t, u)
	good, err := os.ReadFile(h.definition(name))
	if err != nil {
		t.Fatal(err)
	}
	for what, content := range map[string][]byte{
		"Changed":   []byte(strings.Replace(string(good), rolePolite, roleFail, 1)),
		"Truncated": good[:len(good)/2],
		"Empty":     {},
	} {
		if err := os.WriteFile(h.definition(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s := h.status(t, name)
		if !s.Installed || s.DefinitionHash == Hash(u) || s.PID != running.PID {
			t.Errorf("%s: got %+v, want it installed, with another hash, and PID %d as before", what, s, running.PID)
		}
	}
	h.install(t, u)
	if s := h.status(t, name); s.DefinitionHash != Hash(u) {
		t.Errorf("repaired: got %+v", s)
	}
}

func testRefuses(t *testing.T, h *host) {
	cases := map[string]func(*plan.Unit){
		"NoName":          func(u *plan.Unit) { u.Name = "" },
		"Path":            func(u *plan.Unit) { u.Name = "../orrery-refused" },
		"Option":          func(u *plan.Unit) { u.Name = "--orrery-refused" },
		"AfterPath":       func(u *plan.Unit) { u.After = []string{"a b"} },
		"NoCommand":       func(u *plan.Unit) { u.Command = nil },
		"RelativeCommand": func(u *plan.Unit) { u.Command = []string{"etcd"} },
		"CommandQuote":    func(u *plan.Unit) { u.Command = []string{`/bin/"x`} },
		"NulArgument":     func(u *plan.Unit) { u.Command = append(u.Command, "a\x00b") },
		"NoTextArgument":  func(u *plan.Unit) { u.Command = append(u.Command, "\xff") },
		"EnvName":         func(u *plan.Unit) { u.Env = map[string]string{"A=B": "secret"} },
		"EnvValue":        func(u *plan.Unit) { u.Env = map[string]string{"A": "secret\r"} },
		"KillMode":        func(u *plan.Unit) { u.KillMode = "none" },
		"RelativeMount":   func(u *plan.Unit) { u.Mounts = []string{"var/lib/etcd"} },
		"LinesInData":     func(u *plan.Unit) { u.Data, u.Established = "/data/*\nAssertPathExists=/other", "/etc/etcd.env" },
		"DataAlone":       func(u *plan.Unit) { u.Data = "/var/lib/etcd/*" },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			u := h.unit("orrery-refused", rolePolite)
			change(&u)
			err := h.Install(t.Context(), u)
			if err == nil {
				t.Fatal("got no error")
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("got %q, which has a value of the environment in it", err)
			}
			if _, err := os.Lstat(h.definition("orrery-refused")); !os.IsNotExist(err) {
				t.Errorf("there is a definition: %v", err)
			}
		})
	}
}

func testNotThere(t *testing.T, h *host) {
	const name = "orrery-never"
	if err := h.Restart(t.Context(), name); err == nil {
		t.Error("Restart: got no error")
	}
	if err := h.Reload(t.Context(), name); err == nil {
		t.Error("Reload: got no error")
	}
	if err := h.Remove(t.Context(), name); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if log, err := h.Log(t.Context(), name, 10); err != nil || log != "" {
		t.Errorf("Log: got %q, %v, want none", log, err)
	}
	if all, err := h.Observe(t.Context(), nil); err != nil || len(all) != 0 {
		t.Errorf("Observe of nothing: got %v, %v", all, err)
	}
}

func testMany(t *testing.T, h *host) {
	var names []string
	for i := range 5 {
		u := h.unit(fmt.Sprintf("orrery-many-%d", i), rolePolite)
		u.After = names[max(0, i-1):]
		names = append(names, u.Name)
		h.run(t, u)
	}
	all, err := h.Observe(t.Context(), append(names, "orrery-other"))
	if err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for _, name := range names {
		if !all[name].Running {
			t.Errorf("%s: got %+v, want it to run", name, all[name])
		}
		pids[all[name].PID] = true
	}
	if len(pids) != len(names) {
		t.Errorf("PIDs: got %v, want one for each of %d units", pids, len(names))
	}
	if len(all) != len(names)+1 || all["orrery-other"].Installed {
		t.Errorf("a unit that is not there among others: got %+v", all)
	}
}
