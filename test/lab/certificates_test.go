package lab

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// renewsWhatExpired replaces all certificates of the cluster by expired ones, and restarts
// every process that uses them. Then etcd members refuse one another, no API server answers,
// and no kubelet can connect. One apply repairs the cluster, and moves no pod.
func (s *testbed) renewsWhatExpired(file string, hosts []*lab.Host) {
	s.T.Helper()
	pods := s.pods()
	s.expire(hosts)
	for _, h := range hosts {
		// The command runs in the host, because its processes have a PID namespace of their
		// own.
		if _, err := h.Run(s.T.Context(), "sh", "-c", `kill -9 $(pgrep -f "^/opt/orrery/bin/(etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy)( |$)")`); err != nil {
			s.T.Fatal(err)
		}
	}
	s.Eventually("no API server takes the administrator any more", func(ctx context.Context) error {
		if _, err := s.Client(hosts[0]).CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
			return errors.New("it does")
		}
		return nil
	})
	if out := s.Orrery("cluster", "certs", "list", "oak"); !strings.Contains(out, "expired") {
		s.T.Errorf("certs list:\n%s", out)
	}
	out := s.Orrery("cluster", "apply", "-f", file, "--yes")
	if strings.Contains(out, "drain") {
		s.T.Errorf("a node was drained:\n%s", out)
	}
	if out := s.Orrery("cluster", "certs", "list", "oak"); strings.Contains(out, "expired") || strings.Contains(out, "due") {
		s.T.Errorf("certs list after apply:\n%s", out)
	}
	if out := s.Orrery("cluster", "plan", "-f", file); !strings.Contains(out, "Nothing to do.") {
		s.T.Errorf("after apply there is still something to do:\n%s", out)
	}
	if now := s.pods(); now != pods {
		s.T.Errorf("pods moved or were made anew:\n%s\n%s", pods, now)
	}
}

// pods lists the pods of DNS with their nodes.
func (s *testbed) pods() string {
	s.T.Helper()
	return s.Kubectl("", "get", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns", "--sort-by=.metadata.name", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.spec.nodeName}{"\n"}{end}`)
}

// expire replaces all certificates on hosts and in the state by expired ones.
func (s *testbed) expire(hosts []*lab.Host) {
	s.T.Helper()
	files := lifecycle.Files(s.State)
	state, err := files.Load(s.T.Context(), "oak")
	if err != nil {
		s.T.Fatal(err)
	}
	var pairs []string // old and new texts, alternately
	for _, l := range plan.Leaves("oak", state.Applied) {
		pair := state.Keys[l.Name]
		expired := s.expired(pair.Cert, state.InUse()[l.Authority])
		pairs = append(pairs, string(pair.Cert), string(expired),
			base64.StdEncoding.EncodeToString(pair.Cert), base64.StdEncoding.EncodeToString(expired))
		pair.Cert = expired
		state.Keys[l.Name] = pair
	}
	if err := files.Save(s.T.Context(), state); err != nil {
		s.T.Fatal(err)
	}
	replaced, swap := 0, strings.NewReplacer(pairs...)
	for _, h := range hosts {
		err := filepath.WalkDir(filepath.Join(h.Root(), "etc", "kubernetes"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if now := []byte(swap.Replace(string(content))); !bytes.Equal(now, content) {
				replaced++
				return os.WriteFile(path, now, info.Mode().Perm())
			}
			return nil
		})
		if err != nil {
			s.T.Fatal(err)
		}
	}
	if replaced < 3*len(hosts) {
		s.T.Fatalf("%d files with certificates on %d hosts", replaced, len(hosts))
	}
}

// expired returns a certificate with the same key and names that expired an hour ago.
func (s *testbed) expired(cert []byte, by pki.KeyPair) []byte {
	s.T.Helper()
	block, _ := pem.Decode(cert)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		s.T.Fatal(err)
	}
	authority, err := by.Certificate()
	if err != nil {
		s.T.Fatal(err)
	}
	private, _ := pem.Decode(by.Key)
	var key *ecdsa.PrivateKey
	if key, err = x509.ParseECPrivateKey(private.Bytes); err != nil {
		s.T.Fatal(err)
	}
	leaf.NotBefore, leaf.NotAfter = time.Now().Add(-pki.LeafLifetime), time.Now().Add(-time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, leaf.PublicKey, key)
	if err != nil {
		s.T.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
