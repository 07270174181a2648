package addon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// inventoryPrefix and the name of a group make the name of the ConfigMap with the group's
	// inventory.
	inventoryPrefix = "orrery-lifecycle-"
	// inventoryLabel is the label of ConfigMaps with inventories. Its value is the name of the group.
	inventoryLabel = "lifecycle.orrery.dev/inventory"
	// inventoryKey is the key of the inventory in its ConfigMap.
	inventoryKey = "objects"
)

// inventory lists the applied objects of a group, so that Prune finds those that the group no
// longer has. An object is listed from before its creation until it is pruned.
type inventory map[ref]record

// record describes a listed object as it was applied last. Both fields are "" until the first apply
// has succeeded.
type record struct {
	Digest      string `json:"digest,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// line is an entry of an inventory as the ConfigMap stores it.
type line struct {
	ref
	record
}

// inventories reads the inventories of all groups in the cluster, by group. It returns an error if
// one of them cannot be parsed.
func (c *cluster) inventories(ctx context.Context) (map[string]inventory, error) {
	var found corev1.ConfigMapList
	if err := c.list(ctx, &found, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{inventoryLabel}); err != nil {
		return nil, fmt.Errorf("list inventories: %w", err)
	}
	all := make(map[string]inventory, len(found.Items))
	for _, cm := range found.Items {
		var lines []line
		if err := json.Unmarshal([]byte(cm.Data[inventoryKey]), &lines); err != nil {
			return nil, fmt.Errorf("parse data.%s of ConfigMap %s/%s: %w: delete it, and what is in the spec is applied and remembered again",
				inventoryKey, cm.Namespace, cm.Name, err)
		}
		inv := make(inventory, len(lines))
		for _, l := range lines {
			inv[l.ref] = l.record
		}
		all[cm.Labels[inventoryLabel]] = inv
	}
	return all, nil
}

// save stores the inventory of a group. It deletes the stored inventory if inv is empty.
func (c *cluster) save(ctx context.Context, group string, inv inventory) error {
	named := func(data map[string]string) *unstructured.Unstructured {
		return configMap(metav1.NamespaceSystem, inventoryPrefix+group, map[string]string{managedByLabel: managedBy, inventoryLabel: group}, data)
	}
	if len(inv) == 0 {
		if err := retry(ctx, func() error { return client.IgnoreNotFound(c.client.Delete(ctx, named(nil))) }); err != nil {
			return fmt.Errorf("delete inventory of %s: %w", group, err)
		}
		return nil
	}
	lines := make([]line, 0, len(inv))
	for r, rec := range inv {
		lines = append(lines, line{r, rec})
	}
	slices.SortFunc(lines, func(a, b line) int { return a.compare(b.ref) })
	content, err := json.Marshal(lines)
	if err != nil {
		return fmt.Errorf("marshal inventory of %s: %w", group, err)
	}
	if _, err := c.apply(ctx, named(map[string]string{inventoryKey: string(content)}), false); err != nil {
		return fmt.Errorf("save inventory of %s: %w", group, err)
	}
	return nil
}

// compare returns the order of two object identities, as strings.Compare does: by group, kind,
// namespace and name.
func (r ref) compare(other ref) int {
	return cmp.Or(strings.Compare(r.Group, other.Group), strings.Compare(r.Kind, other.Kind),
		strings.Compare(r.Namespace, other.Namespace), strings.Compare(r.Name, other.Name))
}

// clone returns a copy. It is empty, and not nil, if inv is nil.
func (inv inventory) clone() inventory {
	if inv == nil {
		return inventory{}
	}
	return maps.Clone(inv)
}
