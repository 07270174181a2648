package host

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestSecretIsHidden(t *testing.T) {
	target := Target{Name: "cp-1", Password: password, SudoPassword: password, PrivateKey: Secret(server.key)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		noSecrets(t, fmt.Sprintf(verb, target), fmt.Sprintf(verb, target.Password), fmt.Sprintf(verb, &target))
		if strings.Contains(fmt.Sprintf(verb, target.Password), fmt.Sprintf("%x", password)) {
			t.Errorf("%s shows the secret", verb)
		}
	}
	out, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	noSecrets(t, string(out), target.Password.String())
}

// TestTailHides writes a secret in pieces, at every distance from the cut.
func TestTailHides(t *testing.T) {
	r := newRedactor(Target{Password: password, SudoPassword: password + " battery", PrivateKey: Secret(server.key)})
	line := strings.Split(string(server.key), "\n")[1]
	for _, secret := range []string{password, password + " battery", line} {
		for after := range 2 * tailSize {
			tl := &tail{redactor: r}
			half := len(secret) / 2
			for _, p := range []string{"before " + secret[:half], secret[half:], strings.Repeat("x", after)} {
				tl.Write([]byte(p))
			}
			got := strings.TrimLeft(tl.String(), "x")
			for i := range len(secret) - 4 {
				if strings.Contains(got, secret[i:i+5]) {
					t.Fatalf("%d after: shows %q in %.80q", after, secret[i:i+5], got)
				}
			}
		}
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	tl := &tail{redactor: newRedactor(Target{Password: password})}
	for i := range 10000 {
		fmt.Fprintf(tl, "line %d\n", i)
	}
	if got := tl.String(); !strings.HasSuffix(got, "\nline 9999") || !strings.HasPrefix(got, "line ") || len(got) > tailSize {
		t.Errorf("got %d bytes: %.40q", len(got), got)
	}
}
