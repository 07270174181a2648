package listener

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// lookInterval is the least time between two looks at the files of a certificate.
const lookInterval = time.Second

// certificate is a certificate in files, which somebody replaces.
type certificate struct {
	certFile, keyFile string
	log               logr.Logger

	mu     sync.Mutex
	looked time.Time
	read   [2][]byte // what was read last, whether it was of use or not
	pair   *tls.Certificate
}

func newCertificate(certFile, keyFile string, log logr.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	return c, c.load()
}

// get is for tls.Config. While the files are of no use, as one is replaced after the other, the certificate from before is.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= lookInterval {
		c.looked = now
		if err := c.load(); err != nil {
			c.log.Error(err, "The public listener keeps its certificate")
		}
	}
	return c.pair, nil
}

// load reads the files. What was read before is not judged, nor complained of, again.
func (c *certificate) load() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("read key of a certificate: %w", err)
	}
	if bytes.Equal(cert, c.read[0]) && bytes.Equal(key, c.read[1]) {
		return nil
	}
	c.read = [2][]byte{cert, key}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("read certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	c.pair = &pair
	certificateEnds.Set(float64(pair.Leaf.NotAfter.Unix()))
	return nil
}

// readAuthorities reads certificates in PEM.
func readAuthorities(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read authorities of the public listener: %w", err)
	}
	var certificates bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue // a key would be published
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
