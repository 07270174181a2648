package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// rotation is the next step in replacing the key that encrypts Secrets. want is the content of the
// key file after the step. Secrets stay readable after each step, even if no other step follows:
// the new key is first used for reading, then for writing. When every Secret was written with the
// new key, the old keys are removed. what describes the step for users.
type rotation struct {
	want    encryption
	rewrite bool // every Secret is written before want is stored
	what    string
}

// nextRotation returns the next step in replacing the key that encrypts Secrets, for the present
// keys e; false if there is none. began is true if the new key was created already: then a single
// key means that the rotation is done. create returns a new key; it is called only for the step
// that adds one. e must have at least one key.
func nextRotation(e encryption, began bool, create func() secretKey) (rotation, bool) {
	newest := slices.MaxFunc(e.keys, func(a, b secretKey) int { return strings.Compare(a.name, b.name) })
	switch {
	case len(e.keys) == 1 && began:
		return rotation{}, false
	case len(e.keys) == 1:
		fresh := create()
		return rotation{want: encryption{keys: append(slices.Clone(e.keys), fresh), plain: e.plain}, what: "made key " + fresh.name}, true
	case e.keys[0] != newest:
		rest := slices.DeleteFunc(slices.Clone(e.keys), func(k secretKey) bool { return k == newest })
		return rotation{want: encryption{keys: append([]secretKey{newest}, rest...), plain: e.plain}, what: "Secrets are written with key " + newest.name}, true
	default:
		return rotation{
			want: encryption{keys: e.keys[:1]}, rewrite: true,
			what: "every Secret was written anew; dropped " + named(e.keys[1:]),
		}, true
	}
}

// RotateKey replaces the key that encrypts the Secrets of the hub with the data directory dir. The
// hub must run, and continues to work. RotateKey takes some minutes, because before each step it
// waits until the API server has loaded the result of the step before. If it is interrupted,
// another call continues. It calls say after each step with a text for users; an error of say ends
// RotateKey.
func RotateKey(ctx context.Context, dir string, say func(string) error) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("--data-dir %q: %w", dir, err)
	}
	d := dataDir(abs)
	if err := d.checkVersion(); err != nil {
		return err
	}
	if _, err := os.Stat(d.encryption()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no keys that encrypt Secrets: name the data directory of a hub with --data-dir; the API server that --kubeconfig named keeps its own", d)
	}
	config, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig())
	if err != nil {
		return fmt.Errorf("reach the hub: %w", err)
	}
	config.QPS, config.UserAgent, config.Timeout = -1, userAgent, time.Minute
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("reach the hub: %w", err)
	}
	for began := false; ; {
		e, err := d.readEncryption()
		if err != nil {
			return err
		}
		began = began || len(e.keys) > 1
		if made, _, _ := strings.Cut(e.keys[0].name, "-"); !began && made >= time.Now().UTC().Format(keyTime) {
			return fmt.Errorf("key %s was made at a time that has not passed yet on this machine: set its clock, or wait, for the newest key is the one that is kept", e.keys[0].name)
		}
		next, ok := nextRotation(e, began, func() secretKey { return newSecretKey(time.Now()) })
		if !ok {
			return nil
		}
		began = true
		// The wait is also before the first step, because the API server may not have loaded the result
		// of an earlier run.
		if err := waitLoaded(ctx, client, d.encryption()); err != nil {
			return err
		}
		if next.rewrite {
			if err := rewriteSecrets(ctx, client); err != nil {
				return err
			}
		}
		switch replaced, err := d.replaceEncryption(e, next.want); {
		case err != nil:
			return err
		case !replaced:
			continue // another process rotates the key, too
		}
		if err := say(next.what); err != nil {
			return err
		}
	}
}

// replaceEncryption writes want to the file with the keys that encrypt Secrets, if the file still
// has the content was. Otherwise it returns false without an error.
func (d dataDir) replaceEncryption(was, want encryption) (bool, error) {
	unlock, err := d.lockEncryption()
	if err != nil {
		return false, err
	}
	defer unlock()
	now, err := d.readEncryption()
	if err != nil || now.plain != was.plain || !slices.Equal(now.keys, was.keys) {
		return false, err
	}
	return true, d.writeEncryption(want)
}

// loadedMetric is the metric of the API server that has the hash of the file with the encryption
// keys that it uses.
const loadedMetric = "apiserver_encryption_config_controller_last_config_info"

// waitLoaded waits until the API server uses the keys in the file, for at most three minutes. The
// API server reads the file once a minute. If the API server does not answer, for example because
// it restarts, waitLoaded continues to wait.
func waitLoaded(ctx context.Context, client kubernetes.Interface, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the keys that encrypt Secrets: %w", err)
	}
	hash := fmt.Appendf(nil, "%x", sha256.Sum256(text))
	const often, patience = 2 * time.Second, 3 * time.Minute
	var last error
	err = wait.PollUntilContextTimeout(ctx, often, patience, true, func(ctx context.Context) (bool, error) {
		var metrics []byte
		if metrics, last = client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx); last != nil {
			return false, nil // the hub may be restarting
		}
		for line := range bytes.Lines(metrics) {
			if bytes.HasPrefix(line, []byte(loadedMetric+"{")) && bytes.Contains(line, hash) {
				return true, nil
			}
		}
		last = errors.New("it uses other keys still; the log of kube-apiserver says why")
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the hub's API server uses %s: %w; nothing is lost: see to it that the hub runs, and do this again", file, errors.Join(err, last))
	}
	return nil
}

// rewriteSecrets writes every Secret on the hub unchanged, so that the API server encrypts it with
// the first key. Conflicts and deleted Secrets are no errors.
func rewriteSecrets(ctx context.Context, client kubernetes.Interface) error {
	const page = 500
	for from := ""; ; {
		list, err := client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: page, Continue: from})
		if err != nil {
			return fmt.Errorf("list Secrets to write them anew: %w", err)
		}
		for i := range list.Items {
			s := &list.Items[i]
			_, err := client.CoreV1().Secrets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{FieldManager: fieldManager})
			// A Secret that was changed meanwhile was written with the present key by another
			// client.
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("write Secret %s/%s anew: %w", s.Namespace, s.Name, err)
			}
		}
		if from = list.Continue; from == "" {
			return nil
		}
	}
}
