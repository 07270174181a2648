package hub

import (
	"context"
	"fmt"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
)

// connect reads the kubeconfig of --kubeconfig, requests the version of its API server once, and
// sets h.config for that server. An API server that does not answer is an error.
func (h *Hub) connect(ctx context.Context) error {
	path := h.options.Kubeconfig
	loaded, err := loadExternal(path)
	if err != nil {
		return err
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	if err := client.RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return fmt.Errorf("--kubeconfig %s: ask %s for its version: %w", path, config.Host, err)
	}
	h.config = config
	return nil
}
