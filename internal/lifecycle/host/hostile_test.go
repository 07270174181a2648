package host

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// impostor runs an SSH server that is not OpenSSH or not honest.
func impostor(t *testing.T, config *ssh.ServerConfig, exec func(command string, ch ssh.Channel) (accepted bool)) Target {
	t.Helper()
	private, _, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	config.AddHostKey(key)
	return peer(t, func(c net.Conn) {
		_, channels, requests, err := ssh.NewServerConn(c, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for newChannel := range channels {
			ch, requests, err := newChannel.Accept()
			if err != nil {
				return
			}
			go func() {
				for r := range requests {
					var msg struct{ Command string }
					if r.Type == "exec" && ssh.Unmarshal(r.Payload, &msg) == nil {
						r.Reply(exec != nil, nil)
						if exec != nil {
							go func() {
								if exec(msg.Command, ch) {
									ch.Close()
								}
							}()
						}
					}
				}
			}()
		}
	})
}

// markers returns the start marker of a command, and the prompt for sudo.
func markers(command string) (start, prompt string) {
	_, rest, _ := strings.Cut(command, "-p ")
	prompt, rest, _ = strings.Cut(rest, " ")
	_, rest, _ = strings.Cut(rest, "' sh ")
	start, _, _ = strings.Cut(rest, " ")
	return start, prompt
}

func TestDishonestHost(t *testing.T) {
	start := func(command string, ch ssh.Channel) {
		marker, _ := markers(command)
		io.WriteString(ch, marker+"1\n")
		io.WriteString(ch.Stderr(), marker+"1\n")
	}
	cases := map[string]struct {
		exec func(command string, ch ssh.Channel) bool
		want string
	}{
		"RefusesCommands": {nil, "runs no commands"},
		"ShortExitStatus": {func(command string, ch ssh.Channel) bool {
			start(command, ch)
			ch.SendRequest("exit-status", false, []byte{1})
			return true
		}, "malformed"},
		"NoExitStatus": {func(command string, ch ssh.Channel) bool {
			start(command, ch)
			return true
		}, "without exit status"},
		"NothingAtAll": {func(string, ssh.Channel) bool { return true }, "sudo did not start the command"},
		"OtherPrompt": {func(_ string, ch ssh.Channel) bool {
			io.WriteString(ch.Stderr(), "Verification code: ")
			return false
		}, "Verification code:"},
		"PasswordEchoed": {func(command string, ch ssh.Channel) bool {
			_, prompt := markers(command)
			io.WriteString(ch.Stderr(), prompt)
			got := make([]byte, len(password))
			io.ReadFull(ch, got)
			ch.Stderr().Write(append([]byte("I know "), got...))
			return true
		}, "I know [hidden]"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := impostor(t, &ssh.ServerConfig{NoClientAuth: true}, tc.exec)
			target.User = "operator"
			c := connect(t, server.trusting(t), target)
			if name == "OtherPrompt" { // nothing ends it before the command is given up
				c.(*conn).target.Timeout = time.Second
			}
			err := c.Run(t.Context(), []string{"cat", "argument"}, strings.NewReader("input"), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "host cp-1: ") {
				t.Fatalf("want %q in %v", tc.want, err)
			}
			noSecrets(t, err.Error())
			if strings.Contains(err.Error(), "argument") {
				t.Errorf("shows the words of the command: %v", err)
			}
		})
	}
}

// TestKeyboardInteractive logs in where the server asks for the password as a question, as PAM
// does.
func TestKeyboardInteractive(t *testing.T) {
	cases := map[string]struct {
		questions []string
		accept    string
		tried     string // empty if the login works
	}{
		"Password":     {questions: []string{"Password: "}, accept: password},
		"Wrong":        {questions: []string{"Password: "}, accept: "other", tried: "the password (keyboard-interactive)"},
		"SecondFactor": {questions: []string{"Password: ", "Code: "}, accept: password, tried: "only a password is answered"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			asked := 0
			target := impostor(t, &ssh.ServerConfig{
				KeyboardInteractiveCallback: func(_ ssh.ConnMetadata, ask ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
					asked++
					answers, err := ask("", "", tc.questions, make([]bool, len(tc.questions)))
					if err == nil && answers[0] != tc.accept {
						err = errors.New("refused")
					}
					return nil, err
				},
			}, nil)
			_, err := server.trusting(t).Dial(t.Context(), target)
			var refused *Unauthorized
			switch {
			case tc.tried == "" && err != nil:
				t.Fatal(err)
			case tc.tried != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), tc.tried)):
				t.Fatalf("want %q in %v", tc.tried, err)
			case asked != 1:
				t.Errorf("tried %d times: the account may be locked", asked)
			}
			if err != nil {
				noSecrets(t, err.Error())
			}
		})
	}
}
