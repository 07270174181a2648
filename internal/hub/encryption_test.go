package hub

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/testenv"
)

func TestEncrypt(t *testing.T) {
	a, b, made := secretKey{name: "a"}, secretKey{name: "b"}, secretKey{name: "made"}
	for name, c := range map[string]struct {
		there   encryption
		stored  storedSecrets
		want    encryption
		rewrite bool
		refused []string
	}{
		"NewHub":             {want: encryption{keys: []secretKey{made}}},
		"Restart":            {there: encryption{keys: []secretKey{a}}, stored: storedSecrets{keys: []string{"a"}}, want: encryption{keys: []secretKey{a}}},
		"NoSecretYet":        {there: encryption{keys: []secretKey{a}}, want: encryption{keys: []secretKey{a}}},
		"Upgrade":            {stored: storedSecrets{plain: true}, want: encryption{keys: []secretKey{made}, plain: true}, rewrite: true},
		"UpgradeInterrupted": {there: encryption{keys: []secretKey{a}, plain: true}, stored: storedSecrets{keys: []string{"a"}, plain: true}, want: encryption{keys: []secretKey{a}, plain: true}, rewrite: true},
		"UpgradeDone":        {there: encryption{keys: []secretKey{a}, plain: true}, stored: storedSecrets{keys: []string{"a"}}, want: encryption{keys: []secretKey{a}}},
		"OldBackupRestored":  {there: encryption{keys: []secretKey{a}}, stored: storedSecrets{plain: true}, want: encryption{keys: []secretKey{a}, plain: true}, rewrite: true},
		"Rotating":           {there: encryption{keys: []secretKey{b, a}}, stored: storedSecrets{keys: []string{"a", "b"}}, want: encryption{keys: []secretKey{b, a}}},
		"KeyLost":            {stored: storedSecrets{keys: []string{"a"}}, refused: []string{"key a", "FILE is missing", "restore FILE", "none is made"}},
		"KeyLostHalfWay":     {stored: storedSecrets{keys: []string{"a"}, plain: true}, refused: []string{"key a"}},
		"OtherKey":           {there: encryption{keys: []secretKey{b}}, stored: storedSecrets{keys: []string{"b", "a"}}, refused: []string{"key a", "FILE does not have"}},
		"OtherProvider":      {there: encryption{keys: []secretKey{b}}, stored: storedSecrets{foreign: "kms"}, refused: []string{`"kms"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got, rewrite, err := encrypt(c.there, c.stored, "FILE", func() secretKey { return made })
			for _, words := range c.refused {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("want a refusal that says %q, got: %v", words, err)
				}
			}
			if c.refused != nil {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(encryption{}, secretKey{})); diff != "" || rewrite != c.rewrite {
				t.Errorf("rewrite %v, want %v; %s", rewrite, c.rewrite, diff)
			}
		})
	}
}

// TestRotationSteps: everything that is written during a step can be read with the keys of the
// steps before and after.
func TestRotationSteps(t *testing.T) {
	old, fresh := secretKey{name: "20260101"}, secretKey{name: "20260202"}
	create := func() secretKey { return fresh }
	type step struct {
		keys    []secretKey
		rewrite bool
	}
	var got []step
	e := encryption{keys: []secretKey{old}}
	for began := false; ; began = true {
		next, ok := nextRotation(e, began, create)
		if !ok {
			break
		}
		got = append(got, step{next.want.keys, next.rewrite})
		e = next.want
	}
	want := []step{
		{[]secretKey{old, fresh}, false}, // the new key is used for reading
		{[]secretKey{fresh, old}, false}, // and for writing
		{[]secretKey{fresh}, true},       // all Secrets are written with it
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(step{}, secretKey{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// TestSecretsAreEncrypted takes one hub from a version without encryption to a rotated key.
func TestSecretsAreEncrypted(t *testing.T) {
	t.Parallel() // the test waits for long
	dir := filepath.Join(t.TempDir(), "hub")
	d := dataDir(dir)
	const value = "correct horse battery staple"

	// As an older server left it: with Secrets, but without a key.
	_, stop := run(t, embedded(dir))
	stop()
	if info, err := os.Stat(d.encryption()); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the key of a new hub: %v %v", info, err)
	}
	remove(t, d.encryption())
	unencrypted(t, dir, func(c kubernetes.Interface) { createSecret(t, c, "old", value) })
	oldest := backup(t, d)
	if !contains(t, oldest, value) {
		t.Fatal("the older hub has encrypted it")
	}

	h, stop := run(t, embedded(dir))
	createSecret(t, client(t, h.Config()), "new", value)
	checkSecrets(t, h, value, "old", "new")
	stored := storedNow(t, d)
	if stored.plain || len(stored.keys) != 1 {
		t.Fatalf("after the upgrade Secrets are stored so: %+v", stored)
	}
	if e := keysNow(t, d); e.plain || len(e.keys) != 1 || e.keys[0].name != stored.keys[0] {
		t.Errorf("keys: %s, plain %v; used: %v", named(e.keys), e.plain, stored.keys)
	}
	first := stored.keys[0]
	stop()
	encrypted, key := backup(t, d), read(t, d.encryption())

	t.Run("RefusesToStartWithoutTheKey", func(t *testing.T) {
		remove(t, d.encryption())
		refused(t, dir, first, d.encryption(), "is missing", "none is made")
	})
	t.Run("RefusesARestoredBackupWithoutTheKey", func(t *testing.T) {
		fresh := dataDir(filepath.Join(t.TempDir(), "hub"))
		restore(t, fresh, encrypted)
		refused(t, string(fresh), first, fresh.encryption(), "is missing")
	})
	t.Run("RefusesADamagedKeyAndDoesNotShowIt", func(t *testing.T) {
		write(t, d.encryption(), "oh: "+string(key))
		err := refused(t, dir, d.encryption(), "backup")
		if secret := mustKeys(t, key).keys[0].secret; strings.Contains(err.Error(), secret) {
			t.Error("the error has the key")
		}
		remove(t, d.encryption())
	})

	if err := writeFile(d.encryption(), key); err != nil {
		t.Fatal(err)
	}
	h, stop = run(t, embedded(dir))
	var steps []string
	if err := RotateKey(t.Context(), dir, func(step string) error { steps = append(steps, step); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(steps) != 3 {
		t.Errorf("steps: %q", steps)
	}
	stored = storedNow(t, d)
	if stored.plain || len(stored.keys) != 1 || stored.keys[0] == first {
		t.Errorf("after the rotation Secrets are stored so: %+v; the old key was %s", stored, first)
	}
	if e := keysNow(t, d); len(e.keys) != 1 || e.plain || named(e.keys) != stored.keys[0] {
		t.Errorf("keys: %s, plain %v; used: %v", named(e.keys), e.plain, stored.keys)
	}
	checkSecrets(t, h, value, "old", "new")
	stop()

	t.Run("ABackupFromBeforeTheRotationNeedsItsKey", func(t *testing.T) {
		rotated, now := backup(t, d), read(t, d.encryption())
		restore(t, d, encrypted)
		refused(t, dir, first, "does not have")
		if err := writeFile(d.encryption(), key); err != nil {
			t.Fatal(err)
		}
		h, stop := run(t, embedded(dir))
		checkSecrets(t, h, value, "old", "new")
		stop()
		restore(t, d, rotated)
		if err := writeFile(d.encryption(), now); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("ABackupFromBeforeTheUpgradeIsEncryptedAgain", func(t *testing.T) {
		restore(t, d, oldest)
		h, _ := run(t, embedded(dir))
		checkSecrets(t, h, value, "old")
		if stored := storedNow(t, d); stored.plain || len(stored.keys) != 1 {
			t.Errorf("Secrets are stored so: %+v", stored)
		}
	})
}

func TestRotateKeyRequiresAHubOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	err := RotateKey(t.Context(), dir, func(string) error { return nil })
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("want an error that names the directory and the flag, got: %v", err)
	}
}

func createSecret(t *testing.T, c kubernetes.Interface, name, value string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"value": value}}
	if _, err := c.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func checkSecrets(t *testing.T, h *Hub, value string, names ...string) {
	t.Helper()
	for _, name := range names {
		s, err := client(t, h.Config()).CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
		} else if string(s.Data["value"]) != value {
			t.Errorf("Secret %s: %q", name, s.Data)
		}
	}
}

func storedNow(t *testing.T, d dataDir) storedSecrets {
	t.Helper()
	stored, err := d.readStoredSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func keysNow(t *testing.T, d dataDir) encryption {
	t.Helper()
	e, err := d.readEncryption()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustKeys(t *testing.T, text []byte) encryption {
	t.Helper()
	d := dataDir(t.TempDir())
	write(t, d.encryption(), string(text))
	return keysNow(t, d)
}

// refused starts a hub that must refuse to start with an error that has all texts, and must not
// write a key.
func refused(t *testing.T, dir string, says ...string) error {
	t.Helper()
	before, _ := os.ReadFile(dataDir(dir).encryption())
	_, err := Start(t.Context(), embedded(dir), logr.Discard())
	if err == nil {
		t.Fatal("the hub has started")
	}
	for _, words := range says {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("it does not say %q: %v", words, err)
		}
	}
	if after, _ := os.ReadFile(dataDir(dir).encryption()); string(after) != string(before) {
		t.Error("it wrote keys")
	}
	return err
}

// unencrypted runs the hub's processes without encryption, as an older server did.
func unencrypted(t *testing.T, dir string, do func(kubernetes.Interface)) {
	t.Helper()
	o, err := complete(embedded(dir))
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := choosePorts(&o, dataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := chosen.release(); err != nil {
			t.Error(err)
		}
	}()
	p := plan(o)
	p.Processes[1].Command = slices.DeleteFunc(p.Processes[1].Command, func(arg string) bool { return strings.Contains(arg, "encryption") })
	s, err := process.New(p, process.Options{Dir: dataDir(dir).processes()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-s.Ready():
	case <-time.After(testenv.Patience):
		t.Fatal("the older hub is not ready")
	}
	h := &Hub{options: o, dir: dataDir(dir)}
	h.config = h.access()
	do(client(t, h.Config()))
}

func backup(t *testing.T, d dataDir) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(to, os.DirFS(filepath.Join(d.etcd(), "data"))); err != nil {
		t.Fatal(err)
	}
	return to
}

func restore(t *testing.T, d dataDir, from string) {
	t.Helper()
	data := filepath.Join(d.etcd(), "data")
	err := errors.Join(os.RemoveAll(data), os.MkdirAll(d.etcd(), 0o700), os.Chmod(string(d), 0o700), os.CopyFS(data, os.DirFS(from)), os.Chmod(data, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(d.version(), []byte("2\n")); err != nil { // marks a hub directory
		t.Fatal(err)
	}
}

// contains reports whether a file in a directory has the text.
func contains(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || strings.Contains(string(content), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
