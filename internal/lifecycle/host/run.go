package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// start writes a line with the marker ($1) and the process group to both outputs, and then becomes
	// the command. It sets LC_ALL, PATH and HOME, which differ between sudo, root and distributions.
	start = `m=$1; shift; read -r _ _ _ _ g _ </proc/$$/stat; echo "$m$g"; echo "$m$g" >&2; ` +
		`LC_ALL=C; HOME=~root; PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; ` +
		`export LC_ALL HOME PATH; exec "$@"`

	// stop terminates the process group $1, and kills it after 5 s. sshd sends signals only as the
	// user.
	stop = `kill -s TERM -- "-$1" || exit 0; i=0; while kill -s 0 -- "-$1" 2>/dev/null; do ` +
		`case $i in 50) kill -s KILL -- "-$1";; 60) exit 1;; esac; i=$((i+1)); sleep 0.1; done`

	// stopTimeout is how long Run waits for the command to end after ctx has ended, and how long
	// it tries to stop the command.
	stopTimeout = 10 * time.Second

	// maxCommand is the maximum length of one argument of the host's shell (MAX_ARG_STRLEN).
	maxCommand = 128<<10 - 1
)

// Run implements Conn. It runs argv as root in a session of its own, after waiting for a free one
// if maxSessions are in use.
func (c *conn) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	return c.run(ctx, c.sessions, argv, stdin, stdout, true)
}

// run runs argv in a session, after waiting for a free slot in sessions, which is c.sessions or
// c.spare. If ctx ends, it returns the cause, after about stopTimeout at the latest, even if the
// host does not answer.
//
// If stoppable is true, run stops the command when ctx ends. Otherwise the command keeps running.
// After run has returned, it makes no new use of stdin and stdout.
func (c *conn) run(
	ctx context.Context, sessions chan struct{}, argv []string, stdin io.Reader, stdout io.Writer, stoppable bool,
) error {
	if len(argv) == 0 {
		return fmt.Errorf("host %s: run a command: it has no words", c.target.Name)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	e := newExecution(c, argv, newInput(stdin, fail), newOutput(stdout, fail))
	e.sessions, e.stoppable = sessions, stoppable
	if len(e.command) > maxCommand {
		return fmt.Errorf("host %s: run %s: its words are %d bytes, more than a host takes: give them as its input",
			c.target.Name, argv[0], len(e.command))
	}
	select {
	case sessions <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("host %s: run %s: %w", c.target.Name, argv[0], context.Cause(ctx))
	case <-c.alive.Done():
		return c.lost()
	}
	var err error
	done := make(chan struct{})
	go func() {
		defer func() { <-sessions }()
		defer close(done)
		err = e.run(ctx)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
	}
	// Do not wait for a host that does not answer. Its session ends with the connection.
	select {
	case <-done:
	case <-time.After(stopTimeout):
	}
	e.input.end()
	e.output.end()
	return fmt.Errorf("host %s: run %s: %w", c.target.Name, argv[0], context.Cause(ctx))
}

// execution is one command that runs in one session of a conn. It is used once.
type execution struct {
	conn      *conn
	program   string        // argv[0], for messages
	command   string        // for the host's shell
	sudo      bool          // sudo starts the command, because the user is not root
	sessions  chan struct{} // see conn.run
	stoppable bool          // see conn.run

	input          *input
	output         *output
	stdout, stderr *markerWriter
	complaints     *tail // standard error of the command

	session *ssh.Session
	pipe    io.WriteCloser // standard input of the command, or of sudo
	asked   bool           // sudo has asked for the password
	refusal SudoReason     // why the password was useless; set before the session ends

	started chan struct{} // closed when group is set
	group   string        // the command's process group
	ended   chan struct{} // closed when the session has ended
}

// newExecution prepares the execution of argv on c, without a request to the host.
func newExecution(c *conn, argv []string, in *input, out *output) *execution {
	marker, prompt := rand.Text(), rand.Text()
	e := &execution{
		conn: c, program: argv[0], sudo: c.target.User != "root", input: in, output: out,
		complaints: &tail{redactor: c.redactor}, started: make(chan struct{}), ended: make(chan struct{}),
	}
	e.stdout = &markerWriter{marker: []byte(marker), before: &tail{redactor: c.redactor}, after: out}
	e.stderr = &markerWriter{
		marker: []byte(marker), opened: e.start, before: &tail{redactor: c.redactor}, after: e.complaints,
	}
	words := append([]string{"/bin/sh", "-c", start, "sh", marker}, argv...)
	if e.sudo {
		// sudo's messages depend on LC_ALL. It prompts on standard error and reads standard input.
		words = append([]string{"env", "LC_ALL=C", "sudo", "-S", "-p", prompt, "--"}, words...)
		e.stderr.prompt, e.stderr.asked = []byte(prompt), e.answer
	}
	e.command = "exec " + Quote(words...)
	return e
}

// run starts the command and returns when it has ended. If ctx ends, it first tries to stop the
// command, and returns the cause. An error is an *ExitError, *LoginRefused, *SudoRefused or
// *Unreachable where one of these applies.
func (e *execution) run(ctx context.Context) error {
	t := e.conn.target
	if err := e.open(ctx); err != nil {
		if e.conn.ask() != nil {
			<-e.conn.alive.Done()
			return e.conn.lost()
		}
		return fmt.Errorf("host %s: run %s: %w", t.Name, e.program, err)
	}
	defer func() { _ = e.session.Close() }() // an error means that the session has ended already
	stopped := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		defer close(stopped)
		e.cancel(ctx)
	})
	overdue := time.AfterFunc(t.Timeout, e.giveUp)
	defer overdue.Stop()
	go e.feed()

	err := e.session.Wait()
	close(e.ended)
	e.input.end()
	if !unwatch() {
		<-stopped // wait for cancel, which also ends children of the command
		return context.Cause(ctx)
	}
	var exit *ssh.ExitError
	switch {
	case err != nil && !errors.As(err, &exit) && e.conn.ask() != nil:
		<-e.conn.alive.Done()
		return e.conn.lost()
	case !e.stderr.open:
		return e.notStarted(exit)
	case exit != nil:
		return &ExitError{Host: t.Name, Command: e.program, Code: exit.ExitStatus(), Stderr: e.complaints.String()}
	case err != nil:
		return fmt.Errorf("host %s: run %s: %w", t.Name, e.program, err)
	}
	return nil
}

// open opens a session and starts the shell command e.command in it. ctx limits only the wait for a
// session.
func (e *execution) open(ctx context.Context) error {
	session, err := e.conn.session(ctx, e.sessions)
	if err != nil {
		return err
	}
	e.session, session.Stdout, session.Stderr = session, e.stdout, e.stderr
	if e.pipe, err = session.StdinPipe(); err != nil {
		return err
	}
	if session.Start(e.command) != nil { // its error may contain secrets of the command
		_ = session.Close()
		return errors.New("its sshd runs no commands for this user")
	}
	return nil
}

// session opens an SSH session. If sshd refuses it, session tries again: sshd may still be closing
// other sessions, or allow fewer of them. It gives up when ctx ends. It also gives up after
// t.Timeout if no other session of sessions is open.
func (c *conn) session(ctx context.Context, sessions chan struct{}) (*ssh.Session, error) {
	deadline := time.Now().Add(c.target.Timeout)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		session, err := c.client.NewSession()
		var refused *ssh.OpenChannelError
		if err == nil || !errors.As(err, &refused) {
			return session, err
		}
		if len(sessions) == 1 && time.Now().After(deadline) { // no other session uses up the limit
			return nil, fmt.Errorf("open a session (see MaxSessions in its sshd_config): %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// start records that the command has started. group is the number of its process group. It is
// called once, when the marker arrives on standard error.
func (e *execution) start(group string) {
	e.group = group
	close(e.started)
}

// answer is called for each password prompt of sudo. It sends the password at the first prompt. A
// second prompt means that the password was wrong. Then, or if there is no password, it records the
// reason in e.refusal and closes the session.
func (e *execution) answer() {
	switch {
	case e.asked:
		e.refusal = WrongPassword
	case e.conn.target.SudoPassword == "":
		e.refusal = NeedsPassword
	default:
		e.asked = true
		// The error at the end of the session says more.
		_, _ = io.WriteString(e.pipe, string(e.conn.target.SudoPassword)+"\n")
		return
	}
	_ = e.session.Close()
}

// giveUp closes the session if the command has not started. It is called after the target's
// Timeout.
func (e *execution) giveUp() {
	select {
	case <-e.started:
	default:
		_ = e.session.Close()
	}
}

// feed copies the input to the command and closes the pipe at the end of the input. With sudo it
// waits until the command has started, because sudo would read the input. After an error of the
// input the pipe stays open, so that the command does not take a part for the whole.
func (e *execution) feed() {
	if e.sudo {
		select {
		case <-e.started:
		case <-e.ended:
			return
		}
	}
	if e.input.copyTo(e.pipe) {
		_ = e.pipe.Close() // a command may end before its input does
	}
}

// cancel closes the session after ctx has ended. Before, it stops the process group of the command
// if the execution is stoppable and the command has started. It takes about stopTimeout at most.
func (e *execution) cancel(ctx context.Context) {
	ctx, release := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer release()
	defer func() { _ = e.session.Close() }()
	if !e.stoppable {
		return
	}
	select {
	case <-e.started:
	case <-e.ended:
	case <-ctx.Done():
	}
	select {
	case <-e.ended: // its process group may already be another's
		return
	default:
	}
	// Group 0 means that the host's PID namespace hides it. Group 1 is never a command's.
	if group, err := strconv.Atoi(e.group); err == nil && group > 1 {
		err := e.conn.run(ctx, e.conn.spare, []string{"sh", "-c", stop, "sh", e.group}, nil, nil, false)
		if err != nil {
			_ = e.session.Signal(ssh.SIGTERM) // the process group could not be killed
		}
	}
}

// notStarted returns the error of a command that did not start: a SudoRefused if sudo was to start
// it, else a LoginRefused. It is never nil. exit has the exit status of the session; nil: the
// session ended without one.
func (e *execution) notStarted(exit *ssh.ExitError) error {
	t := e.conn.target
	output := strings.TrimSpace(e.stderr.said() + "\n" + e.stdout.said())
	if !e.sudo {
		return &LoginRefused{Host: t.Name, User: t.User, Output: output}
	}
	return &SudoRefused{Host: t.Name, User: t.User, Reason: e.sudoReason(exit, output), Output: output}
}
