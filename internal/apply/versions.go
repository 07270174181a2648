package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/manifest"
)

// Copies whose managedFields have another version of their kind than the one that is applied.
// See docs/design/0026-versions.md.

// inVersion returns the managedFields of an object, in which all entries of its API group are moved
// to the version in which the object was read. The entries keep only the fields that the object has
// there, and entries of the same manager are merged. It returns false if all entries are in that
// version already. It is pure.
func inVersion(live *unstructured.Unstructured) ([]metav1.ManagedFieldsEntry, bool) {
	version := live.GroupVersionKind().GroupVersion()
	var entries []metav1.ManagedFieldsEntry
	changed := false
	for _, entry := range live.GetManagedFields() {
		of, err := schema.ParseGroupVersion(entry.APIVersion)
		if err == nil && of.Group == version.Group && of != version {
			changed = true
			entry.APIVersion = version.String()
			entry.FieldsV1 = encodedSet(fieldsIn(entry).within(live.Object))
		}
		i := slices.IndexFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == entry.Manager && e.Operation == entry.Operation && e.Subresource == entry.Subresource && e.APIVersion == entry.APIVersion
		})
		if i < 0 {
			entries = append(entries, entry)
			continue
		}
		if entries[i].Time.Before(entry.Time) {
			entries[i].Time = entry.Time
		}
		entries[i].FieldsV1 = encodedSet(merge(fieldsIn(entries[i]), fieldsIn(entry)))
	}
	return entries, changed
}

// applyToCopy applies to an object that is our copy. An API server compares the applied object
// with the live one in the versions of all entries of managedFields. If it cannot, because a
// version is gone or lacks a field of the object, it refuses the apply with an internal error.
// The entries are then moved to the version of the manifest, and the object is applied again.
// If the entries cannot be moved, the error is that of the apply.
func (t *task) applyToCopy(
	ctx context.Context, client manifest.Client, object map[string]any, force bool,
) (applied *unstructured.Unstructured, created bool, err error) {
	applied, created, err = client.Apply(ctx, t.wanted.Object, object, force, false)
	if !refusesVersions(err) {
		return applied, created, err
	}
	moved, problem := t.moveManagers(ctx)
	if problem != nil {
		t.log(ctx).V(1).Info("cannot move the managed fields", "error", problem.Error())
	}
	if !moved {
		return nil, false, err
	}
	t.log(ctx).Info("moved the managed fields to the version that is applied", "version", t.wanted.Manifest.GetAPIVersion(), "error", err.Error())
	return client.Apply(ctx, t.wanted.Object, object, force, false)
}

// moveManagers moves the managedFields of the copy to the version in which the copy was read. moved
// is false, without an error, if they are in that version already or the copy cannot be read. An
// error is that of the write.
func (t *task) moveManagers(ctx context.Context) (moved bool, err error) {
	live, err := t.queue.client.Get(ctx, t.wanted.Object)
	if err != nil {
		return false, nil //nolint:nilerr // why the apply failed says more
	}
	entries, changed := inVersion(live)
	if !changed {
		return false, nil
	}
	_, err = t.setManagers(ctx, live, entries)
	return err == nil, err
}

// setManagers sets the managedFields of an object and returns the object. An API server that
// cannot compare the object in the version of an entry drops all entries, and reports success.
// Then the entries are set once more, in the version in which the object was read. The error
// is errChanged if the object changed since live was read.
func (t *task) setManagers(ctx context.Context, live *unstructured.Unstructured, entries []metav1.ManagedFieldsEntry) (*unstructured.Unstructured, error) {
	set, err := t.queue.client.SetManagers(ctx, t.wanted.Object, live.GetResourceVersion(), entries)
	if err == nil && len(entries) > 0 && len(set.GetManagedFields()) == 0 {
		with := &unstructured.Unstructured{Object: maps.Clone(live.Object)}
		metadata, _ := with.Object["metadata"].(map[string]any)
		with.Object["metadata"] = maps.Clone(metadata)
		with.SetManagedFields(entries)
		entries, _ = inVersion(with)
		set, err = t.queue.client.SetManagers(ctx, t.wanted.Object, set.GetResourceVersion(), entries)
	}
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("take over the fields of %s: %w", t.wanted.Object, errChanged)
	}
	return set, err
}

// refusesVersions reports whether an API server refused an apply because it cannot compare the
// object in a version of managedFields. A conversion webhook that does not answer is another
// case: the API server can convert the object once the webhook answers.
func refusesVersions(err error) bool {
	if !isServerError(err) || refusesDuplicates(err) || strings.Contains(err.Error(), "conversion webhook") {
		return false
	}
	return slices.ContainsFunc([]string{
		"request to convert CR to an invalid group/version", "failed to compare objects: ", "failed to convert old object: ", "failed to convert new object: ", "failed to prune fields: ",
	}, func(message string) bool { return strings.Contains(err.Error(), message) })
}

// isServerError reports whether an API server answered with an internal error of its own.
func isServerError(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError
}
