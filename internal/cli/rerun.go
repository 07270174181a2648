package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

// rerunning has the flags of "orrery rerun", which runs Jobs and Pods again that have ended.
type rerunning struct{ onTemplates }

func newRerun(s streams) *cobra.Command {
	r := &rerunning{onTemplates{streams: s}}
	cmd := &cobra.Command{
		Use:   "rerun TYPE NAME ... | TYPE/NAME ...",
		Short: "Run Jobs and Pods again that have ended",
		Long: `Run Jobs, Pods and other templates again that have ended, in every cluster in which they are placed. An
ended copy is deleted, if it still exists, and created again; a running copy continues. The template on the
hub is marked with the request, and each cluster follows a request once.`,
		Example: `  orrery rerun job/migrate -n shop`,
		RunE:    func(cmd *cobra.Command, args []string) error { return asKubectl(r.run(cmd.Context(), args)) },
	}
	r.add(cmd, "how long to wait until the work has begun in every cluster")
	return cmd
}

func (r *rerunning) run(ctx context.Context, args []string) error {
	named, c, err := r.reach(ctx, args)
	if err != nil {
		return err
	}
	for _, t := range named {
		if err := r.one(ctx, c, t); err != nil {
			return err
		}
	}
	return nil
}

// one requests a new run of the template t, waits until the work has begun in every cluster, and
// prints these clusters. It is an error if t is not placed or its work has never begun, and if the
// work has not begun everywhere after --timeout. The request is an annotation of the template and
// stays.
func (r *rerunning) one(ctx context.Context, c client.Client, t templateName) error {
	what := t.String()
	b, err := r.binding(ctx, c, t)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("cannot run %s again: it is placed in no cluster; orrery why %s says why", what, what)
	case err != nil:
		return err
	case len(b.Spec.Clusters) == 0:
		return fmt.Errorf("cannot run %s again: no cluster is chosen for it; orrery why %s says why", what, what)
	case len(b.Status.Runs) == 0:
		return fmt.Errorf("cannot run %s again: it has not begun in any cluster, or is of a kind that does not end", what)
	}
	request := string(b.UID) + "/" + strconv.FormatInt(time.Now().UnixNano(), 36)
	template := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.name}}
	template.SetGroupVersionKind(t.kind)
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, b.Spec.Resource.UID, workv1alpha2.RerunAnnotation, request)
	if err := c.Patch(ctx, template, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	var due, begun []string
	err = r.wait(ctx, func(ctx context.Context) (bool, error) {
		b, err := r.binding(ctx, c, t)
		if err != nil {
			return false, err
		}
		due, begun = due[:0], begun[:0]
		for _, cluster := range b.Spec.Clusters {
			if run := binding.RunIn(b.Status.Runs, b.Spec.Resource.UID, cluster.Name); run == nil || run.Rerun != request {
				due = append(due, cluster.Name)
			} else {
				begun = append(begun, cluster.Name)
			}
		}
		return len(due) == 0, nil
	}, func() error {
		slices.Sort(due)
		return fmt.Errorf("%s is not begun again in %s after %s; the hub goes on with it: orrery why %s says what it waits for", what, strings.Join(due, ", "), r.timeout, what)
	})
	if err != nil {
		return err
	}
	slices.Sort(begun)
	return say(r.out, "%s runs in %s\n", what, strings.Join(begun, ", "))
}

// binding requests the binding of the template t from the hub. If there is none, the error is
// NotFound.
func (r *rerunning) binding(ctx context.Context, c client.Client, t templateName) (*workv1alpha2.ResourceBinding, error) {
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{
		Namespace: t.namespace,
		Name:      binding.NameFor(binding.Template{GroupKind: t.kind.GroupKind(), Namespace: t.namespace, Name: t.name}),
	}}
	o := binding.Object(b)
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return nil, err
	}
	return binding.Of(o), nil
}
