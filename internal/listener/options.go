package listener

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Options of the listener. The zero value uses the hub's own certificate and address.
type Options struct {
	// Address is where to listen, host:port. "" is the bind address of the hub, with a port that is
	// chosen once and stored. Port 0 means such a port, too.
	Address string
	// URL by which clusters and browsers reach the listener. "": https:// and the address.
	URL string
	// CertFile and KeyFile are the certificate and its key in PEM. They are read again when they
	// change. "": a certificate of the hub's own authority.
	CertFile, KeyFile string
	// CAFile has the authorities of the public certificate, in PEM. "": the hub's authority
	// for the hub's certificate, and the system's authorities with CertFile.
	CAFile string
}

// AddFlags adds the flags of the listener, which begin with --public, and sets the options to "".
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Address, "public-address", "",
		"host:port on which agents of clusters are let in (default: --bind-address, and a free port that is picked at the first start and kept, as is port 0)")
	fs.StringVar(&o.URL, "public-url", "", "https URL by which clusters reach --public-address, such as that of a balancer (default: https:// and that address)")
	fs.StringVar(&o.CertFile, "public-tls-cert-file", "", "certificate of --public-url in PEM, read again when it changes (default: one of the hub's own authority)")
	fs.StringVar(&o.KeyFile, "public-tls-key-file", "", "key of --public-tls-cert-file in PEM")
	fs.StringVar(&o.CAFile, "public-ca-file", "",
		"authorities in PEM that agents are to trust as --public-url, where theirs do not know its certificate (default: the hub's own, or with --public-tls-cert-file none)")
}

// Host returns the host of o.URL, without its port. It is "" if o.URL is empty or invalid.
func (o *Options) Host() string {
	u, err := url.Parse(o.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Validate returns an error with all mistakes in the options, or nil. It reads no files. The zero
// value is valid.
func (o *Options) Validate() error {
	var errs []error
	if o.Address != "" {
		host, port, err := net.SplitHostPort(o.Address)
		if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || host != "" && net.ParseIP(host) == nil {
			errs = append(errs, fmt.Errorf("--public-address %q: want IP:PORT", o.Address))
		}
	}
	if o.URL != "" {
		u, err := url.Parse(o.URL)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			errs = append(errs, fmt.Errorf("--public-url %q: want https://HOST or https://HOST:PORT", o.URL))
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("--public-tls-cert-file, --public-tls-key-file: one does not work without the other"))
	}
	return errors.Join(errs...)
}

// url returns the URL of a listener at address (host:port), without a slash at its end. It is
// o.URL, or https:// and the address. Without o.URL it is "" for an unspecified address, such as
// 0.0.0.0. Invalid options are an error.
func (o *Options) url(address string) (string, error) {
	if err := o.Validate(); err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", address, err)
	}
	if ip := net.ParseIP(host); o.URL == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return "", nil // an unspecified address has no single URL
	}
	return strings.TrimRight(cmp.Or(o.URL, "https://"+address), "/"), nil
}
