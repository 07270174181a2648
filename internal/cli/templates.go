package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/hub"
)

// onTemplates has the flags of rebalance and rerun: commands that request an action on templates
// from the hub, and wait for the result.
type onTemplates struct {
	streams

	hub       hubFlags
	namespace string
	timeout   time.Duration
}

// templateName identifies a template on the hub by kind, namespace and name.
type templateName struct {
	kind            schema.GroupVersionKind
	namespace, name string
}

// String returns the arguments by which a command names the template: TYPE.GROUP/NAME -n NAMESPACE.
func (t templateName) String() string {
	text := strings.ToLower(schema.GroupKind{Group: t.kind.Group, Kind: t.kind.Kind}.String()) + "/" + t.name
	if t.namespace != "" {
		text += " -n " + t.namespace
	}
	return text
}

func (o *onTemplates) add(cmd *cobra.Command, timeout string) {
	o.hub.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "where the objects are (default: the namespace of the context, or default)")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, timeout)
	// An error means that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("namespace", o.hub.completeNamespaces)
}

// reach returns the templates that the arguments name, and a client of the hub. It requests the
// types of the hub, and does not check whether the templates exist. Arguments without names are a
// usageError.
func (o *onTemplates) reach(ctx context.Context, args []string) (named []templateName, c client.Client, err error) {
	asked, err := parseNamed(args)
	if err != nil {
		return nil, nil, err
	}
	if !asked.byName() {
		return nil, nil, usageError{errors.New("want the objects, TYPE NAME ... or TYPE/NAME ..., as in deploy/web")}
	}
	h, err := o.hub.api(ctx, o.err)
	if err != nil {
		return nil, nil, err
	}
	at, err := h.below("", o.namespace)
	if err != nil {
		return nil, nil, err
	}
	mapper, err := at.ToRESTMapper()
	if err != nil {
		return nil, nil, err
	}
	for _, kind := range asked.types {
		m, err := mappingOf(mapper, kind)
		if err != nil {
			return nil, nil, fmt.Errorf("the hub: %w", err)
		}
		namespace := at.namespace
		if m.Scope.Name() == meta.RESTScopeNameRoot {
			namespace = ""
		}
		for _, name := range asked.names[kind] {
			named = append(named, templateName{m.GroupVersionKind, namespace, name})
		}
	}
	c, err = client.New(h.config, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return nil, nil, fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	return named, c, nil
}

// wait calls done at once and then four times a second, until done returns true or an error; that
// error is returned. After --timeout wait returns the error of late. If ctx ends first, it returns
// the cause of ctx.
func (o *onTemplates) wait(ctx context.Context, done func(context.Context) (bool, error), late func() error) error {
	const often = 250 * time.Millisecond
	err := wait.PollUntilContextTimeout(ctx, often, o.timeout, true, done)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if wait.Interrupted(err) {
		return late()
	}
	return err
}
