package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// lookInterval is the interval between reads of the files of the public listener's certificate.
// They are also read after a change, but a changed symbolic link to the files is not noticed.
const lookInterval = time.Minute

// certificate is the TLS certificate of the public listener, in files that can be replaced. Several
// goroutines may use it.
type certificate struct {
	files *dynamiccertificates.DynamicCertKeyPairContent
	every time.Duration
	log   logr.Logger

	mu   sync.Mutex
	read [2][]byte // content of the files of pair
	pair *tls.Certificate
}

// newCertificate returns the certificate in the files, which it reads once; run reads them again
// later. It is an error if the files are missing or invalid, or if the key does not belong to the
// certificate.
func newCertificate(certFile, keyFile string, log logr.Logger) (*certificate, error) {
	files, err := dynamiccertificates.NewDynamicServingContentFromFiles("public", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s with key %s: %w", certFile, keyFile, err)
	}
	c := &certificate{files: files, every: lookInterval, log: log}
	_, err = c.get(nil)
	return c, err
}

// run reads the files of the certificate until ctx ends. While they are invalid, because one file
// is replaced after the other, the earlier certificate stays in use, and the failure is logged.
func (c *certificate) run(ctx context.Context) {
	go c.files.Run(ctx, 1)
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := c.files.RunOnce(ctx); err != nil {
				c.log.Error(err, "The public listener keeps its certificate")
			}
		}
	}
}

// get implements tls.Config.GetCertificate. It ignores its argument, which may be nil. When the
// certificate has changed, it sets the metric of the certificate's expiry.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, key := c.files.CurrentCertKeyContent()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != nil && bytes.Equal(cert, c.read[0]) && bytes.Equal(key, c.read[1]) {
		return c.pair, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of the public listener: %w", err)
	}
	c.read, c.pair = [2][]byte{cert, key}, &pair
	certificateEnds.Set(float64(pair.Leaf.NotAfter.Unix()))
	return c.pair, nil
}

// readAuthorities returns the certificates in a PEM file, which agents are to trust. It leaves out
// other blocks, such as keys. It is an error if the file has no certificate, or one that cannot be
// parsed.
func readAuthorities(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read authorities of the public listener: %w", err)
	}
	var certificates bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue // a key must not be published
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("read authorities of the public listener in %s: %w", file, err)
		}
		certificates.Write(pem.EncodeToMemory(block))
	}
	if certificates.Len() == 0 {
		return nil, fmt.Errorf("--public-ca-file %s: there is no certificate in it", file)
	}
	return certificates.Bytes(), nil
}
