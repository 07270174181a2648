package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Target implements lifecycle.Environment: it returns how a host of the cluster is reached over
// SSH, with the credentials in the cluster's file. A bastion without credentials uses those of the
// host, and a bastion without a user the user of the host. A reference to a Secret is an error,
// because only a hub has Secrets.
func (environment) Target(_ context.Context, h clusterv1alpha1.Host) (host.Target, error) {
	if h.SecretRef != nil {
		return host.Target{}, secretRefError("secretRef", "password, privateKey or privateKeyPath")
	}
	t := host.Target{
		Name: h.Name, Address: h.Address, Port: int(h.Port), User: h.User,
		Password: host.Secret(h.Password), SudoPassword: host.Secret(h.SudoPassword),
		PrivateKey: host.Secret(h.PrivateKey), PrivateKeyPath: h.PrivateKeyPath,
		Timeout: time.Duration(h.Timeout) * time.Second,
	}
	b := h.Bastion
	if b == nil {
		return t, nil
	}
	if b.SecretRef != nil {
		return host.Target{}, secretRefError("bastion.secretRef", "bastion.password or bastion.privateKeyPath")
	}
	through := host.Target{
		Name: b.Address, Address: b.Address, Port: int(b.Port), User: cmp.Or(b.User, h.User), Timeout: t.Timeout,
		Password: host.Secret(b.Password), PrivateKeyPath: b.PrivateKeyPath,
	}
	if b.Password == "" && b.PrivateKeyPath == "" {
		through.Password, through.PrivateKey, through.PrivateKeyPath = t.Password, t.PrivateKey, t.PrivateKeyPath
	}
	t.Bastion = &through
	return t, nil
}

// ExternalEtcd implements lifecycle.Environment: it reads from this machine the files with which
// the cluster is a client of an external etcd. For a file that e does not name, the content in the
// result is nil. A reference to a Secret is an error.
func (environment) ExternalEtcd(_ context.Context, e clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error) {
	if e.SecretRef != nil {
		return nil, secretRefError("etcd.external.secretRef", "caFile, certFile and keyFile")
	}
	keys := &plan.ExternalEtcd{}
	for _, f := range []struct {
		field, path string
		content     *[]byte
	}{
		{"caFile", e.CAFile, &keys.CA},
		{"certFile", e.CertFile, &keys.Cert},
		{"keyFile", e.KeyFile, &keys.Key},
	} {
		if f.path == "" {
			continue
		}
		content, err := os.ReadFile(f.path)
		if err != nil {
			return nil, fmt.Errorf("read etcd.external.%s: %w", f.field, err)
		}
		*f.content = content
	}
	return keys, nil
}

// secretRefError returns the error for a field of a cluster's file that refers to a Secret. instead
// names the fields that the user should set.
func secretRefError(field, instead string) error {
	return fmt.Errorf("%s names a Secret, which only a hub has: give %s in the file, or apply the Cluster to a hub", field, instead)
}
