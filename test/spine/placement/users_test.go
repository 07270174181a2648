package placement

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// user is a user with a certificate of the hub, and only with the rights that roles give.
type user struct {
	*testenv.API
	config *rest.Config
}

// newUser creates a user as an administrator does, with a CertificateSigningRequest.
func newUser(w *spine.World, name string) *user {
	w.Helper()
	cfg, err := w.Hub.Config()
	w.Must(err)
	clients, err := kubernetes.NewForConfig(cfg)
	w.Must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.Must(err)
	asked, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	w.Must(err)
	private, err := x509.MarshalECPrivateKey(key)
	w.Must(err)

	requests := clients.CertificatesV1().CertificateSigningRequests()
	r := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: asked}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}
	w.Eventually("ask for a certificate of "+name, func() error {
		if _, err := requests.Create(w.Context(), r, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil // an earlier attempt had no answer
	})
	w.Cleanup(func() { _ = requests.Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{}) })
	w.Eventually("approve the certificate of "+name, func() error {
		is, err := requests.Get(w.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		is.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"},
		}
		_, err = requests.UpdateApproval(w.Context(), name, is, metav1.UpdateOptions{})
		return err
	})
	w.Eventually("the certificate of "+name, func() error {
		if r, err = requests.Get(w.Context(), name, metav1.GetOptions{}); err == nil && len(r.Status.Certificate) == 0 {
			err = errors.New("not signed yet")
		}
		return err
	})

	own := rest.AnonymousClientConfig(cfg)
	own.CertData = r.Status.Certificate
	own.KeyData = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	api, err := testenv.NewAPI(own)
	w.Must(err)
	return &user{API: api, config: own}
}

// ask reads a path of the hub, and repeats that until the hub answers and is not busy.
func (u *user) ask(w *spine.World, path string) (code int, body []byte) {
	w.Helper()
	w.Eventually("ask for "+path, func() (err error) {
		if code, body, err = u.get(w.Context(), path); err == nil && (code >= http.StatusInternalServerError || code == http.StatusTooManyRequests) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	return code, body
}

// get reads a path of the hub, and returns the body and the status code of the answer.
func (u *user) get(ctx context.Context, path string) (code int, body []byte, err error) {
	c, err := rest.HTTPClientFor(u.config)
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.config.Host+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}
