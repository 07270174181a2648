package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/render"
)

// Fields that the cluster set in a copy stay by themselves if the manifest lacks them:
// server-side apply leaves fields alone that are not ours. This file is about fields of a
// manifest for which a copy may keep another value: replicas that are scaled in the cluster,
// node ports, the storage of a claim that grew, and the completions of a Job that began with
// another share.

// retains reports whether a manifest has fields for which a copy may keep another value.
func retains(manifest *unstructured.Unstructured) bool {
	return interpreter.KeepsReplicas(manifest) || interpreter.HasCompletions(manifest) || len(interpreter.NodePorts(manifest)) > 0 ||
		requestsStorage(manifest)
}

// retained returns a manifest without the fields that an existing object (live) keeps: those that
// withoutKept removes. From an object that the hub did not create or takes back, it also removes
// fields that a controller of Kubernetes or an autoscaler set. managedFields decide that each time,
// even if the hub set the field first. It is pure and changes neither argument.
func retained(manifest, live *unstructured.Unstructured) *unstructured.Unstructured {
	if wasBefore(manifest) || wasBefore(live) || live.GetAnnotations()[workv1alpha2.DigestAnnotation] == "" {
		manifest = withoutControllers(manifest, live)
	}
	return withoutKept(manifest, live)
}

// withoutKept returns a manifest without the values that an existing object (live) keeps: replicas,
// if the template leaves them to the cluster; node ports that the object did not get from us; a
// storage request below that of the object. It has the completions of live for a Job whose
// completions cannot be changed. It is pure and changes neither argument.
func withoutKept(manifest, live *unstructured.Unstructured) *unstructured.Unstructured {
	if interpreter.KeepsReplicas(manifest) {
		manifest = render.WithoutReplicas(manifest)
	}
	if fixed := interpreter.FixedCompletions(manifest, live); fixed != nil {
		manifest = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(manifest.Object)}
		manifest.Object["spec"].(map[string]any)["completions"] = *fixed //nolint:forcetypeassert // it has completions
	}
	manifest = withGrownStorage(manifest, live)
	has := interpreter.NodePorts(live)
	if len(has) == 0 || len(interpreter.NodePorts(manifest)) == 0 {
		return manifest
	}
	manifest = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(manifest.Object)}
	ports, _, _ := unstructured.NestedFieldNoCopy(manifest.Object, "spec", "ports")
	list, _ := ports.([]any)
	for _, p := range list {
		port, ok := p.(map[string]any)
		if !ok {
			continue
		}
		number, _, _ := unstructured.NestedInt64(port, "port")
		protocol, _, _ := unstructured.NestedString(port, "protocol")
		if protocol == "" {
			protocol = "TCP"
		}
		key, err := json.Marshal(map[string]any{"port": number, "protocol": protocol})
		if err != nil {
			continue
		}
		if is, there := has[fmt.Sprintf("%d/%s", number, protocol)]; there && is != port["nodePort"] &&
			!slices.Contains(owners(live, "f:spec", "f:ports", "k:"+string(key), "f:nodePort"), workv1alpha2.FieldManager) {
			delete(port, "nodePort")
		}
	}
	return manifest
}

// owners returns the field managers that own a field of an object, in the order of managedFields;
// nil: none. path consists of keys of a fieldSet, such as "f:spec".
func owners(o *unstructured.Unstructured, path ...string) (managers []string) {
	for _, entry := range o.GetManagedFields() {
		if fieldsIn(entry).has(path...) {
			managers = append(managers, entry.Manager)
		}
	}
	return managers
}

// retain returns the part of a manifest that is sent to a cluster that has the object already:
// without the fields that the object keeps. If necessary it reads the object, and changes its
// managedFields by shareReplicas and inherit. It returns the whole manifest if the object is gone.
// The error is errChanged if the object changes meanwhile.
func (t *task) retain(ctx context.Context, manifest *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if !retains(manifest) && !wasBefore(manifest) && t.at.Digest != "" {
		return manifest, nil
	}
	live, err := t.queue.client.Get(ctx, t.wanted.Object)
	if apierrors.IsNotFound(err) {
		return manifest, nil // the apply creates the object again
	}
	if err != nil {
		return nil, err
	}
	if interpreter.KeepsReplicas(manifest) {
		if err := t.shareReplicas(ctx, live); err != nil {
			return nil, err
		}
	}
	if live, err = t.inherit(ctx, manifest, live); err != nil {
		return nil, err
	}
	return retained(manifest, live), nil
}

// shareReplicas makes a second field manager of the hub own the replicas of a copy, before the
// manager that applies the manifests gives them up. Otherwise the API server would reset them to
// the default. A client that scales the copy takes the field from both managers. It does nothing
// unless only the manager of the manifests owns the replicas.
func (t *task) shareReplicas(ctx context.Context, live *unstructured.Unstructured) error {
	path := interpreter.ReplicasField(live)
	owned := make([]string, 0, len(path))
	for _, name := range path {
		owned = append(owned, "f:"+name)
	}
	if by := owners(live, owned...); len(by) != 1 || by[0] != workv1alpha2.FieldManager {
		return nil
	}
	n, found, err := unstructured.NestedInt64(live.Object, path...)
	if !found || err != nil {
		return nil //nolint:nilerr // there is nothing to give up
	}
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(t.wanted.Manifest.GroupVersionKind())
	o.SetNamespace(live.GetNamespace())
	o.SetName(live.GetName())
	o.SetUID(live.GetUID())
	if err := unstructured.SetNestedField(o.Object, n, path...); err != nil {
		return fmt.Errorf("share replicas of %s: %w", t.wanted.Object, err)
	}
	_, _, err = t.applyToCopy(ctx, t.queue.client.As(workv1alpha2.ReplicasFieldManager), o.Object, false)
	if apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		return nil // somebody scaled it just now, and owns the field
	}
	return err
}

// applyManifest applies a manifest. sent is the manifest that was accepted: without node ports that
// the cluster has given to other Services, or does not have. A manifest whose lists have duplicate
// keys is written by writeWhole. created is true if the object did not exist. Without force, the
// error is errChanged if the object exists. Only an error that says that nothing was stored ends
// Known.Unsure. Otherwise a copy could appear after the cluster counts as having none, and nothing
// would remove that copy.
func (t *task) applyManifest(
	ctx context.Context, manifest *unstructured.Unstructured, force bool,
) (sent, applied *unstructured.Unstructured, created bool, err error) {
	defer func() {
		if !force && err != nil && apierrors.IsConflict(err) {
			return // the object cannot be read, and may be an earlier copy
		}
		if err != nil && refusesWrite(err) {
			t.update(func(s *state) { s.acts.Unsure = false })
		}
		// The reason InternalError, as of a webhook, is given before the write; an error of etcd has no
		// reason. The history of the cluster may not reach back as long as a webhook fails, and the run
		// would be lost.
		if err != nil && (refusesWrite(err) || apierrors.ReasonForError(err) == metav1.StatusReasonInternalError) {
			t.unsent()
		}
	}()
	for {
		if force {
			applied, created, err = t.applyToCopy(ctx, t.queue.client, manifest.Object, true)
		} else {
			applied, created, err = t.create(ctx, manifest)
		}
		if err == nil {
			return manifest, applied, created, nil
		}
		if refusesDuplicates(err) {
			t.log(ctx).Info("elements of a list have the same key: the manifest is written whole", "error", err.Error())
			applied, created, err = t.writeWhole(ctx, manifest, force)
			return manifest, applied, created, err
		}
		less := withoutPorts(manifest, err)
		if less == nil {
			return manifest, nil, false, err
		}
		t.log(ctx).Info("the cluster does not have the hub's node port", "error", err.Error())
		manifest = less
	}
}

// create applies a manifest where no object is expected. An object that exists stays as it was: our
// marks on the object of somebody else would let the hub delete that object later. create then
// gives the object to the mirror, and the error is errChanged, or the conflict if the object cannot
// be read. Kubernetes ignores the version of an object that an apply creates, but does not promise
// that. So after a conflict without an object, create applies the manifest itself.
func (t *task) create(ctx context.Context, manifest *unstructured.Unstructured) (applied *unstructured.Unstructured, created bool, err error) {
	q := t.queue
	applied, created, err = q.client.Apply(ctx, t.wanted.Object, ofNoVersion(manifest).Object, false, false)
	if !apierrors.IsConflict(err) {
		return applied, created, err
	}
	found, unread := q.client.Get(ctx, t.wanted.Object)
	switch {
	case apierrors.IsNotFound(unread):
		return q.client.Apply(ctx, t.wanted.Object, manifest.Object, false, false)
	case unread != nil:
		return nil, false, err
	}
	t.log(ctx).Info("an object exists that the hub was to create; it stays as it is")
	t.update(func(s *state) { s.acts.Unsure = false })
	q.applier.mirror.Observe(q.name(), t.wanted.Object.Resource, found)
	return nil, false, fmt.Errorf("create %s: %w", t.wanted.Object, errChanged)
}

// ofNoVersion returns a copy of a manifest with a resourceVersion that no object has. An apply of
// the copy never changes an object. The copy shares values with the manifest.
func ofNoVersion(manifest *unstructured.Unstructured) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: maps.Clone(manifest.Object)}
	metadata, _ := o.Object["metadata"].(map[string]any)
	o.Object["metadata"] = maps.Clone(metadata)
	o.SetResourceVersion(strconv.FormatInt(math.MaxInt64, 10))
	return o
}

// nodePortField matches the path of a node port in an error of the API server.
var nodePortField = regexp.MustCompile(`^spec\.ports\[(\d+)\]\.nodePort$`)

// withoutPorts returns a copy of a manifest without the node ports that an error is about. It is
// nil if the error is about anything else, too, or about no node port.
func withoutPorts(manifest *unstructured.Unstructured, err error) *unstructured.Unstructured {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil || len(interpreter.NodePorts(manifest)) == 0 {
		return nil
	}
	manifest = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(manifest.Object)}
	ports, _, _ := unstructured.NestedFieldNoCopy(manifest.Object, "spec", "ports")
	list, _ := ports.([]any)
	less := false
	for _, cause := range status.Status().Details.Causes {
		found := nodePortField.FindStringSubmatch(cause.Field)
		if found == nil {
			return nil // something else is wrong, too
		}
		i, err := strconv.Atoi(found[1])
		if err != nil || i >= len(list) {
			return nil
		}
		if port, ok := list[i].(map[string]any); ok && port["nodePort"] != nil {
			delete(port, "nodePort")
			less = true
		}
	}
	if !less {
		return nil
	}
	return manifest
}
