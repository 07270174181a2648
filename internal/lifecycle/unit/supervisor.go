package unit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/process"
)

// NewSupervisor returns the Manager of a host without systemd. All files are below root. The supervisor is started by the
// first Restart and ends when no unit is left. It is the command, which must call Supervise with the same root; unset, it
// is this program with `node supervise --root ROOT`.
//
// Delegate needs nothing there: its units are in the control group of the supervisor and may make others.
func NewSupervisor(root string, command ...string) Manager {
	return &supervisor{layout: newLayout(root), command: command}
}

// layout is where the files of the supervisor are.
type layout struct {
	root  string
	units string // definitions
	state string // the supervisor's own log, and a directory for each unit with its log and its pidfile
	run   string // the socket and the lock
}

func newLayout(root string) layout {
	root = filepath.Join("/", root)
	return layout{
		root:  root,
		units: filepath.Join(root, "var/lib/orrery/node/units"),
		state: filepath.Join(root, "var/lib/orrery/node/supervisor"),
		run:   filepath.Join(root, "run/orrery"),
	}
}

func (l layout) definition(name string) string { return filepath.Join(l.units, name+".json") }
func (l layout) unit(name string) string       { return filepath.Join(l.state, name) }
func (l layout) unitLog(name string) string    { return filepath.Join(l.state, name, name+".log") }
func (l layout) log() string                   { return filepath.Join(l.state, "log") }
func (l layout) lock() string                  { return filepath.Join(l.run, "supervisor.lock") }

// read returns the installed unit.
func (l layout) read(name string) (plan.Unit, error) {
	var u plan.Unit
	content, err := os.ReadFile(l.definition(name))
	if err != nil {
		return u, fmt.Errorf("read definition of unit %s: %w", name, err)
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&u); err != nil {
		return u, fmt.Errorf("read definition of unit %s: %s is damaged, install the unit again: %w", name, l.definition(name), err)
	}
	if err := check(u); err != nil || u.Name != name {
		return u, errors.Join(fmt.Errorf("read definition of unit %s: %s is not it, install the unit again", name, l.definition(name)), err)
	}
	return u, nil
}

// socket in the directory run. The path goes through an open file, because the address of a socket is at most 107 bytes.
func socket(run *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/supervisor.sock", run.Fd()) }

type supervisor struct {
	layout
	command []string
}

// Observe implements Manager. Where no supervisor is, nothing runs.
func (s *supervisor) Observe(ctx context.Context, names []string) (map[string]Status, error) {
	query := url.Values{"name": names}
	running := map[string]Status{}
	err := s.call(ctx, http.MethodGet, "/units?"+query.Encode(), &running)
	alone := errors.Is(err, errAlone)
	if err != nil && !alone {
		return nil, fmt.Errorf("observe units: %w", err)
	}
	boots := s.boot().installed()
	all := make(map[string]Status, len(names))
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
		status := running[name]
		if alone {
			status.Detail = "the supervisor does not run"
		}
		u, err := s.read(name)
		status.Installed = !errors.Is(err, os.ErrNotExist)
		if err == nil && boots { // one that would not come back after a boot is not what was installed
			status.DefinitionHash = Hash(u)
		}
		all[name] = status
	}
	return all, nil
}

// Install implements Manager.
func (s *supervisor) Install(_ context.Context, u plan.Unit) error {
	if err := check(u); err != nil {
		return err
	}
	content, err := json.MarshalIndent(u, "", "  ")
	if err != nil {
		return fmt.Errorf("install unit %s: %w", u.Name, err)
	}
	command, err := s.supervise()
	if err != nil {
		return fmt.Errorf("install unit %s: %w", u.Name, err)
	}
	// Whoever is killed between the two has a definition, the removal of which takes both away.
	if err := write(s.definition(u.Name), 0o600, append(content, '\n')); err != nil {
		return fmt.Errorf("install unit %s: %w", u.Name, err)
	}
	if err := s.boot().install(command); err != nil {
		return fmt.Errorf("install unit %s: %w", u.Name, err)
	}
	return nil
}

// Restart implements Manager.
func (s *supervisor) Restart(ctx context.Context, name string) error {
	if _, err := s.read(name); err != nil {
		return err
	}
	err := s.ensure(ctx, func(started int) error {
		return s.call(ctx, http.MethodPost, fmt.Sprintf("/units/%s/restart?%s=%d", name, startedParameter, started), nil)
	})
	if err != nil {
		return fmt.Errorf("restart unit %s: %w", name, err)
	}
	return nil
}

// Reload implements Manager.
func (s *supervisor) Reload(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.call(ctx, http.MethodPost, "/units/"+name+"/reload", nil); err != nil {
		return fmt.Errorf("reload unit %s: %w", name, err)
	}
	return nil
}

// Remove implements Manager. The definition goes first, so that a supervisor that is killed meanwhile and comes back does
// not start the unit again.
func (s *supervisor) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := remove(s.definition(name)); err != nil {
		return fmt.Errorf("remove unit %s: %w", name, err)
	}
	var answer removed
	err := s.call(ctx, http.MethodDelete, "/units/"+name, &answer)
	if errors.Is(err, errAlone) {
		answer.Last, err = true, nil
	}
	for err == nil && answer.Last {
		err = s.removeAlone(name)
		if !errors.Is(err, errLocked) {
			break
		}
		select { // the supervisor ends, or is about to listen
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(startPoll):
			err = s.call(ctx, http.MethodDelete, "/units/"+name, &answer)
			if errors.Is(err, errAlone) {
				err = nil
			}
		}
	}
	if err != nil {
		return fmt.Errorf("remove unit %s: %w", name, err)
	}
	return nil
}

// removeAlone removes what a supervisor that ended, or was killed, left of the unit. None is started for that: it would
// start all other units too.
func (s *supervisor) removeAlone(name string) error {
	unlock, err := lock(s.lock())
	if err != nil {
		return err
	}
	defer unlock()
	if err := process.Clean(s.unit(name)); err != nil {
		return err
	}
	if left, err := filepath.Glob(s.definition("*")); err != nil || len(left) > 0 {
		return err
	}
	return errors.Join(s.boot().remove(), remove(filepath.Join(s.run, "supervisor.sock")), remove(s.log()), remove(s.log()+".1"))
}

// Log implements Manager.
func (s *supervisor) Log(_ context.Context, name string, lines int) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	log, err := tail(s.unitLog(name), lines)
	if err != nil {
		return "", fmt.Errorf("read log of unit %s: %w", name, err)
	}
	return log, nil
}

// startedParameter of a restart is the PID of the supervisor that was started for it, if one was.
const startedParameter = "started"

// removed is the answer to a removal.
type removed struct {
	// Last is true when there is no other unit, so that the supervisor ends.
	Last bool `json:"last"`
}

// errAlone: there is no supervisor, or it ended before it answered.
var errAlone = errors.New("no supervisor runs")

// call asks the supervisor, which must be there.
func (s *supervisor) call(ctx context.Context, method, path string, answer any) error {
	run, err := os.Open(s.run)
	if errors.Is(err, os.ErrNotExist) {
		return errAlone
	} else if err != nil {
		return fmt.Errorf("open directory of the supervisor's socket: %w", err)
	}
	defer run.Close() //nolint:errcheck // only names a directory
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket(run))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask the supervisor: %w", err)
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED),
		errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errAlone
	case err != nil:
		return fmt.Errorf("ask the supervisor: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // the answer was read
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("read answer of the supervisor: %w", err)
	case resp.StatusCode == http.StatusServiceUnavailable:
		return errAlone // it is about to end
	case resp.StatusCode != http.StatusOK:
		return errors.New(strings.TrimSpace(string(body)))
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("read answer of the supervisor: %w", err)
	}
	return nil
}

const (
	// startPatience is what a supervisor may take to start, or the one before it to end.
	startPatience = 30 * time.Second
	startPoll     = 10 * time.Millisecond
	// startPause is waited before another one is started, while one that is about to end holds the lock.
	startPause = 200 * time.Millisecond
)

// ensure calls f, and starts a supervisor if f finds none; f is given the PID of that.
func (s *supervisor) ensure(ctx context.Context, f func(started int) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("the supervisor does not answer; see %s", s.log()))
	defer cancel()
	var started int
	var ended chan error // of the one that was started
	var pause time.Time
	for {
		err := f(started)
		if !errors.Is(err, errAlone) {
			return err
		}
		if ended == nil && time.Now().After(pause) {
			if started, ended, err = s.start(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("start supervisor: %w; the end of %s: %s", err, s.log(), lastLines(s.log()))
			}
			// Another one runs, or is about to end.
			started, ended, pause = 0, nil, time.Now().Add(startPause)
		case <-time.After(startPoll):
		}
	}
}

func lastLines(path string) string {
	end, err := tail(path, 5)
	if err != nil {
		return err.Error()
	}
	return end
}

// supervise is the command that is the supervisor.
func (s *supervisor) supervise() ([]string, error) {
	if len(s.command) > 0 {
		return s.command, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find program of the supervisor: %w", err)
	}
	return []string{self, "node", "supervise", "--root", s.root}, nil
}

// environment of the supervisor. Units get it, as they would from systemd, whatever that of the session is.
func environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
}

// start starts a supervisor that outlives this process and the session that this process belongs to.
func (s *supervisor) start() (pid int, ended chan error, err error) {
	command, err := s.supervise()
	if err != nil {
		return 0, nil, err
	}
	if err := os.MkdirAll(s.state, 0o700); err != nil {
		return 0, nil, fmt.Errorf("start supervisor: %w", err)
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, nil, fmt.Errorf("start supervisor: %w", err)
	}
	defer log.Close()                               //nolint:errcheck // the supervisor has its own
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it outlives whoever starts it
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Go opens its own files so that they are not inherited. Those that this process inherited itself, a pipe of its
	// session perhaps, would keep the session open. Kernels before 5.11 cannot do this, and need it only then.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start supervisor: %w", err)
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd.Process.Pid, ended, nil
}
