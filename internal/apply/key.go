package apply

import (
	"context"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/mark"
)

// ensureKey returns the key that signs the hub's marks on copies. At the first start it creates the
// key in a Secret, and the Secret's namespace. A Secret with a key of another size is an error.
// Without its key the hub recognizes no existing copy. Every backup of the hub contains the key.
func ensureKey(ctx context.Context, hub client.Client, reader client.Reader) (mark.Key, error) {
	name := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: mark.KeySecret}
	for {
		found := &corev1.Secret{}
		err := reader.Get(ctx, name, found)
		if err == nil {
			if len(found.Data[mark.KeyField]) != mark.KeySize {
				return nil, fmt.Errorf("secret %s: %s must hold %d bytes; restore it from a backup of the hub", name, mark.KeyField, mark.KeySize)
			}
			return found.Data[mark.KeyField], nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get secret %s: %w", name, err)
		}
		key := make([]byte, mark.KeySize)
		if _, err := rand.Read(key); err != nil {
			return nil, fmt.Errorf("make the key that signs the hub's marks on copies: %w", err)
		}
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name.Namespace}}
		if err := hub.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create namespace %s: %w", name.Namespace, err)
		}
		made := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
			Immutable:  new(true), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{mark.KeyField: key},
		}
		switch err := hub.Create(ctx, made); {
		case err == nil:
			return key, nil
		case !apierrors.IsAlreadyExists(err): // if it exists, another process created it first
			return nil, fmt.Errorf("create secret %s: %w", name, err)
		}
	}
}
