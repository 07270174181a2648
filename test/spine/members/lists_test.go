package members

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"orrery.dev/orrery/test/spine"
)

const (
	// listed is the number of ConfigMaps in a list that is cut off, and listedBytes the size of
	// each. The list is larger than all buffers between a member and its reader.
	listed      = 24
	listedBytes = 600 << 10
)

// lists resets the network while lists are read through the agent of oak. Each list fails or is
// complete. A list must fail if little of it was read at the reset.
func (d *dialled) lists(t *testing.T) {
	t.Helper()
	ns := d.Namespace + "-lists"
	d.Oak.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	t.Cleanup(func() { d.Oak.Remove(t, "v1", "Namespace", "", ns) })
	random := rand.NewChaCha8([32]byte{}) // so that the data cannot be compressed
	for i := range listed {
		data := make([]byte, listedBytes*3/4)
		_, err := random.Read(data)
		d.Must(err)
		o := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"key": base64.StdEncoding.EncodeToString(data)}}}
		o.SetAPIVersion("v1")
		o.SetKind("ConfigMap")
		o.SetNamespace(ns)
		o.SetName(fmt.Sprint("c", i))
		d.Eventually("make "+o.GetName(), func() error {
			if err := d.Oak.Create(t.Context(), o.DeepCopy()); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil // the answer to an earlier attempt was lost
		})
	}
	d.Eventually("the root certificate is there", func() error {
		_, err := d.Oak.Find(t.Context(), "v1", "ConfigMap", ns, "kube-root-ca.crt")
		return err
	})
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: d.Hub.Kubeconfig()}, &clientcmd.ConfigOverrides{CurrentContext: "oak"},
	).ClientConfig()
	d.Must(err)
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(64 << 10)
		}
		return c, err
	}
	cfg.DisableCompression = true
	client, err := rest.HTTPClientFor(cfg)
	d.Must(err)
	defer client.CloseIdleConnections()
	read := func(after int64) (found int, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), spine.Patience)
		defer cancel()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api/v1/namespaces/"+ns+"/configmaps", nil)
		d.Must(err)
		answer, err := client.Do(q)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("it is answered with %s", answer.Status)
		}
		first, err := io.ReadAll(io.LimitReader(answer.Body, after))
		if err != nil {
			return 0, err
		}
		if after >= 0 {
			d.network[d.Oak].Reset()
		}
		rest, err := io.ReadAll(answer.Body)
		if err != nil {
			return 0, err
		}
		var list struct {
			Items []metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(append(first, rest...), &list); err != nil {
			t.Errorf("a list that was cut off after %d bytes ends well after %d, and is no list: %v", after, len(first)+len(rest), err)
		}
		return len(list.Items), nil
	}
	whole := func() error {
		found, err := read(-1)
		if err == nil && found < listed+1 { // and the root certificate
			t.Errorf("a list has %d of %d objects", found, listed+1)
		}
		return err
	}
	for _, after := range []int64{0, 1, 4 << 10, 64 << 10, 1 << 20, 10 << 20} {
		d.Eventually("a list that nobody cuts off is answered", whole)
		switch found, err := read(after); {
		case err == nil && found < listed+1:
			t.Errorf("a list that was cut off after %d bytes passed for whole with %d of %d objects", after, found, listed+1)
		case err == nil && after <= 64<<10:
			t.Errorf("a list of %d bytes was not cut off after %d", listed*listedBytes, after)
		}
	}
}
