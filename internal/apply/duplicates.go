package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Some manifests have lists in which several elements have the same key, such as two variables
// with one name. API servers create such objects, and refuse to apply them. The hub writes such
// a manifest as a whole, and sets the managedFields that server-side apply would have set. See
// docs/design/0026-versions.md.

// refusesDuplicates reports whether an API server refused to apply a manifest because elements of a
// list have the same key.
func refusesDuplicates(err error) bool {
	return isServerError(err) && strings.Contains(err.Error(), "duplicate entries for key")
}

// ownershipAttempts bounds how often the managedFields are written if others keep changing the
// object.
const ownershipAttempts = 5

// writeWhole writes a manifest that cannot be applied, because elements of a list have the same
// key. It creates the object. With force it also changes an existing copy as a forced apply would.
// The error is errChanged if the object was created or changed meanwhile. A manifest with a UID
// creates no object: if the object is gone, the error is that of the read. An object that was
// written is returned even if its managedFields could not be set: it exists, and a Job in it runs.
func (t *task) writeWhole(ctx context.Context, manifest *unstructured.Unstructured, force bool) (applied *unstructured.Unstructured, created bool, err error) {
	client, o := t.queue.client, t.wanted.Object
	var live *unstructured.Unstructured
	if force {
		live, err = client.Get(ctx, o)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, false, err
		}
	}
	switch {
	case live == nil && manifest.GetUID() != "":
		// An object that was deleted meanwhile is not created again.
		return nil, false, cmp.Or(err, fmt.Errorf("write %s: %w", o, errChanged))
	case live == nil:
		created = true
		applied, err = client.Create(ctx, o, manifest.Object)
	default:
		desired := mergedCopy(manifest, live)
		if uid := manifest.GetUID(); uid != "" {
			desired.SetUID(uid)
		}
		applied, err = client.Replace(ctx, o, desired.Object)
	}
	if apierrors.IsAlreadyExists(err) || force && apierrors.IsConflict(err) {
		return nil, false, fmt.Errorf("write %s: %w", o, errChanged)
	}
	if err != nil {
		return nil, false, err
	}
	owned, err := t.ownAsApplied(ctx, manifest, applied)
	if err != nil {
		t.log(ctx).Info("wrote the manifest whole, and cannot say who owns its fields", "error", err.Error())
		return applied, created, nil
	}
	return owned, created, nil
}

// ownAsApplied sets the managedFields of an object that was written whole, as if the manifest had
// been applied, and returns the object. If others change the object meanwhile, it reads the object
// again, at most ownershipAttempts times; then the error is errChanged.
func (t *task) ownAsApplied(ctx context.Context, manifest, written *unstructured.Unstructured) (owned *unstructured.Unstructured, err error) {
	for range ownershipAttempts {
		owned, err = t.setManagers(ctx, written, asApplied(manifest, written, time.Now()))
		if !errors.Is(err, errChanged) {
			return owned, err
		}
		if written, err = t.queue.client.Get(ctx, t.wanted.Object); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("take over the fields of %s: %w", t.wanted.Object, errChanged)
}

// isWhole reports whether an entry of managedFields comes from a create or update by the hub, and
// not from server-side apply. The hub creates or updates an object where it writes a manifest as a
// whole.
func isWhole(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == workv1alpha2.FieldManager && entry.Operation == metav1.ManagedFieldsOperationUpdate && entry.Subresource == ""
}

// asApplied returns the managedFields of an object as if the manifest had been applied: our
// server-side apply owns the fields of the manifest, also those that others own as well. It is
// pure.
func asApplied(manifest, live *unstructured.Unstructured, now time.Time) []metav1.ManagedFieldsEntry {
	var entries []metav1.ManagedFieldsEntry
	var all fieldSet
	for _, entry := range live.GetManagedFields() {
		if entry.Subresource == "" && entry.APIVersion == manifest.GetAPIVersion() {
			all = merge(all, fieldsIn(entry))
		}
		if !isOurs(entry) && !isWhole(entry) {
			entries = append(entries, entry)
		}
	}
	at := metav1.NewTime(now)
	return append(entries, metav1.ManagedFieldsEntry{
		Manager: workv1alpha2.FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: manifest.GetAPIVersion(), Time: &at,
		FieldsType: "FieldsV1", FieldsV1: encodedSet(all.within(manifest.Object)),
	})
}

// mergedCopy returns the copy with the fields of the manifest. Fields that only the hub owned
// and that the manifest lacks are removed; all others stay. A list whose elements cannot be
// told apart becomes that of the manifest. It is pure and changes neither argument.
func mergedCopy(manifest, live *unstructured.Unstructured) *unstructured.Unstructured {
	var ours, theirs fieldSet
	for _, entry := range live.GetManagedFields() {
		switch set := fieldsIn(entry); {
		case entry.APIVersion != manifest.GetAPIVersion():
		case isOurs(entry), isWhole(entry):
			ours = merge(ours, set)
		default:
			theirs = merge(theirs, set)
		}
	}
	fields, _ := mergedValue(manifest.Object, runtime.DeepCopyJSON(live.Object), ours, theirs, false).(map[string]any)
	return &unstructured.Unstructured{Object: runtime.DeepCopyJSON(fields)}
}

// mergedValue returns the merged value for mergedCopy. wanted is the value in the manifest, and is
// that in the copy. ours are the fields in the value that the hub owned, and theirs those that
// others own. whole is true if the hub owned the value as a whole, which the manifest then
// replaces.
func mergedValue(wanted, is any, ours, theirs fieldSet, whole bool) any {
	switch wanted := wanted.(type) {
	case map[string]any:
		fields, isMap := is.(map[string]any)
		if !isMap || whole {
			return wanted
		}
		out := maps.Clone(fields)
		for key := range ours {
			name, isField := strings.CutPrefix(key, "f:")
			if _, asked := wanted[name]; !isField || asked {
				continue
			}
			part, _ := ours.at(key)
			of, others := theirs[key].(map[string]any)
			if left := remaining(fields[name], part, of, others); left != nil {
				out[name] = left
			} else {
				delete(out, name)
			}
		}
		for name, value := range wanted {
			part, all := ours.at("f:" + name)
			of, _ := theirs.at("f:" + name)
			out[name] = mergedValue(value, fields[name], part, of, all)
		}
		return out
	case []any:
		elements, isList := is.([]any)
		names := elementNames(wanted, elements)
		if !isList || whole || names == nil {
			return wanted
		}
		return mergedList(wanted, elements, names, ours, theirs)
	}
	return wanted
}

// mergedList merges two lists for mergedCopy: first the elements of the manifest, then those
// elements of the copy that others own or that the hub did not own. names returns the name by which
// elements correspond.
func mergedList(wanted, elements []any, names func(any) string, ours, theirs fieldSet) []any {
	has := map[string]any{}
	for _, element := range elements {
		has[names(element)] = element
	}
	out := make([]any, 0, len(wanted))
	asked := map[string]bool{}
	for i, element := range wanted {
		asked[names(element)] = true
		part, all := ours.at(ours.element(element, i))
		of, _ := theirs.at(theirs.element(element, i))
		out = append(out, mergedValue(element, has[names(element)], part, of, all))
	}
	for i, element := range elements {
		_, owned := ours[ours.element(element, i)]
		_, others := theirs[theirs.element(element, i)]
		if !asked[names(element)] && (!owned || others) {
			out = append(out, element)
		}
	}
	return out
}

// remaining returns what stays of a value in the copy (is) that the manifest lacks; nil: nothing.
// ours and theirs are the fields in the value that the hub and others own. others is true if others
// own the value, too.
func remaining(is any, ours, theirs fieldSet, others bool) any {
	fields, isMap := is.(map[string]any)
	elements, isList := is.([]any)
	switch {
	case others && len(theirs) == 0: // others own the whole value
		return is
	case isMap && len(ours) > 0:
		out := maps.Clone(fields)
		for key := range ours {
			name, isField := strings.CutPrefix(key, "f:")
			if !isField {
				continue
			}
			part, _ := ours.at(key)
			of, also := theirs[key].(map[string]any)
			if left := remaining(fields[name], part, of, also); left != nil {
				out[name] = left
			} else {
				delete(out, name)
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case isList && len(ours) > 0:
		left := slices.DeleteFunc(slices.Clone(elements), func(element any) bool {
			i := slices.IndexFunc(elements, func(e any) bool { return sameText(e, element) })
			_, owned := ours[ours.element(element, i)]
			_, also := theirs[theirs.element(element, i)]
			return owned && !also
		})
		if len(left) > 0 {
			return left
		}
		return nil
	case others:
		return is
	}
	return nil
}
