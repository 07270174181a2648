package website

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

// hub returns a client of the API server with Orrery's kinds, and a namespace.
func hub(t *testing.T) (client.Client, string) {
	t.Helper()
	cfg := testenv.Config(0)
	if err := testenv.InstallCRDs(cfg); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: testScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c, testenv.Namespace(t, cfg)
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), appsv1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// startController runs the controller until the test ends.
func startController(t *testing.T) {
	t.Helper()
	mgr, err := ctrl.NewManager(testenv.Config(0), ctrl.Options{
		Scheme: testScheme(t), Metrics: metricsserver.Options{BindAddress: "0"},
		// Every test starts a controller of this name.
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func newSite(namespace, name string) *appsv1alpha1.Website {
	return &appsv1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       appsv1alpha1.WebsiteSpec{GitRepo: "https://git.example.org/site.git", DeploymentName: name + "-web"},
	}
}

func create(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func get[T client.Object](t *testing.T, c client.Client, namespace, name string, o T) T {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// wantConditions waits until the Website has the conditions, each TYPE=STATUS/REASON.
func wantConditions(t *testing.T, c client.Client, namespace, name string, want ...string) {
	t.Helper()
	testenv.Eventually(t, "conditions", testenv.Patience, func() error {
		var w appsv1alpha1.Website
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &w); err != nil {
			return err
		}
		got := map[string]bool{}
		for _, condition := range w.Status.Conditions {
			got[condition.Type+"="+string(condition.Status)+"/"+condition.Reason] = true
		}
		for _, condition := range want {
			if !got[condition] {
				return fmt.Errorf("no condition %s in %v", condition, w.Status.Conditions)
			}
		}
		return nil
	})
}

// reconcileOnce runs the controller's loop once, without a manager.
func reconcileOnce(t *testing.T, c client.Client, w *appsv1alpha1.Website) {
	t.Helper()
	if _, err := newLoop(c, c).Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w)}); err != nil {
		t.Fatal(err)
	}
}

func TestSite(t *testing.T) {
	c, namespace := hub(t)
	w := newSite(namespace, "docs")
	w.Spec.Replicas, w.Spec.Branch, w.Spec.Period = new(int32(3)), "main", &metav1.Duration{Duration: 90 * time.Second}
	create(t, c, w)
	reconcileOnce(t, c, w)

	d := get(t, c, namespace, "docs-web", &appsv1.Deployment{})
	s := get(t, c, namespace, "docs-web", &corev1.Service{})
	owner := []metav1.OwnerReference{{
		APIVersion: "apps.orrery.dev/v1alpha1", Kind: "Website", Name: "docs", UID: w.UID,
		Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	for _, o := range []client.Object{d, s} {
		if diff := cmp.Diff(owner, o.GetOwnerReferences()); diff != "" {
			t.Errorf("owners of %T: -want +got:\n%s", o, diff)
		}
		if got := o.GetLabels()[SiteLabel]; got != "docs" {
			t.Errorf("label %s of %T is %q", SiteLabel, o, got)
		}
	}
	if got := *d.Spec.Replicas; got != 3 {
		t.Errorf("%d replicas, want 3", got)
	}

	nginx, gitSync := d.Spec.Template.Spec.Containers[0], d.Spec.Template.Spec.Containers[1]
	if diff := cmp.Diff([]string{
		"--repo=https://git.example.org/site.git", "--ref=main", "--root=/git", "--link=html", "--period=1m30s", "--max-failures=-1", "--http-bind=:8081",
	}, gitSync.Args); diff != "" {
		t.Errorf("git-sync's arguments: -want +got:\n%s", diff)
	}
	for _, container := range []corev1.Container{nginx, gitSync} {
		if container.Image == "" || container.Resources.Requests.Cpu().IsZero() || container.ReadinessProbe == nil {
			t.Errorf("container %s lacks an image, requests or a readiness probe", container.Name)
		}
		security := container.SecurityContext
		if *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || *security.RunAsUser == 0 {
			t.Errorf("container %s may too much: %v", container.Name, security)
		}
	}
	// nginx serves the link that git-sync makes in the shared volume.
	if got := nginx.VolumeMounts[0]; got.Name != gitSync.VolumeMounts[0].Name || !got.ReadOnly || got.MountPath != "/usr/share/nginx" {
		t.Errorf("nginx mounts %v, git-sync %v", got, gitSync.VolumeMounts[0])
	}

	if s.Spec.Type != corev1.ServiceTypeNodePort || s.Spec.Ports[0].Port != 80 || s.Spec.Ports[0].TargetPort.String() != "http" {
		t.Errorf("the Service is %v", s.Spec)
	}
	for key, value := range s.Spec.Selector {
		if d.Spec.Template.Labels[key] != value {
			t.Errorf("the Service selects %s=%s, the pods have %v", key, value, d.Spec.Template.Labels)
		}
	}
}

func TestNothingIsWrittenWhenNothingChanged(t *testing.T) {
	c, namespace := hub(t)
	w := newSite(namespace, "idle")
	w.Spec.Replicas = new(int32(0))
	create(t, c, w)
	reconcileOnce(t, c, w)

	versions := func() string {
		return get(t, c, namespace, "idle", &appsv1alpha1.Website{}).ResourceVersion + " " +
			get(t, c, namespace, "idle-web", &appsv1.Deployment{}).ResourceVersion + " " +
			get(t, c, namespace, "idle-web", &corev1.Service{}).ResourceVersion
	}
	before := versions()
	writes := &counting{Client: c}
	if _, err := newLoop(writes, c).Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w)}); err != nil {
		t.Fatal(err)
	}
	if after := versions(); writes.n != 0 || after != before {
		t.Errorf("%d writes; versions were %s, are %s", writes.n, before, after)
	}
}

// counting counts writes of objects, even those that change nothing.
type counting struct {
	client.Client
	n int
}

func (c *counting) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.n++
	return c.Client.Create(ctx, o, opts...)
}

func (c *counting) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	c.n++
	return c.Client.Apply(ctx, o, opts...)
}

func (c *counting) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.n++
	return c.Client.Patch(ctx, o, p, opts...)
}

func TestWhatIsEditedAwayIsRepaired(t *testing.T) {
	c, namespace := hub(t)
	w := newSite(namespace, "edited")
	create(t, c, w)
	startController(t)
	wantConditions(t, c, namespace, "edited", "Deployed=True/Deployed", "Exposed=True/Exposed")

	edits := map[string]func(d *appsv1.Deployment){
		"Replicas": func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(5)) },
		"Image":    func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "other" },
		"Argument": func(d *appsv1.Deployment) {
			c := &d.Spec.Template.Spec.Containers[1]
			c.Args = append(c.Args, "--one-time")
		},
		"Container": func(d *appsv1.Deployment) { s := &d.Spec.Template.Spec; s.Containers = s.Containers[:1] },
		"Label":     func(d *appsv1.Deployment) { delete(d.Labels, SiteLabel) },
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			want := get(t, c, namespace, "edited-web", &appsv1.Deployment{})
			edited := want.DeepCopy()
			edit(edited)
			if err := c.Patch(t.Context(), edited, client.MergeFrom(want), client.FieldOwner("somebody")); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "the edit is taken back", testenv.Patience, func() error {
				got := get(t, c, namespace, "edited-web", &appsv1.Deployment{})
				if diff := cmp.Diff(want.Spec, got.Spec) + cmp.Diff(want.Labels, got.Labels); diff != "" {
					return fmt.Errorf("not repaired: -want +got:\n%s", diff)
				}
				return nil
			})
		})
	}
	t.Run("DeletedService", func(t *testing.T) {
		old := get(t, c, namespace, "edited-web", &corev1.Service{})
		if err := c.Delete(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the Service is made again", testenv.Patience, func() error {
			var s corev1.Service
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(old), &s); err != nil {
				return err
			}
			if s.UID == old.UID {
				return errors.New("still the old one")
			}
			return nil
		})
	})
	t.Run("WhatOthersAddedStays", func(t *testing.T) {
		d := get(t, c, namespace, "edited-web", &appsv1.Deployment{})
		before := d.DeepCopy()
		d.Annotations = map[string]string{"team": "web"}
		d.Spec.Replicas = new(int32(7))
		if err := c.Patch(t.Context(), d, client.MergeFrom(before), client.FieldOwner("somebody")); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "replicas are ours, annotations theirs", testenv.Patience, func() error {
			got := get(t, c, namespace, "edited-web", &appsv1.Deployment{})
			if *got.Spec.Replicas != 1 || got.Annotations["team"] != "web" {
				return fmt.Errorf("%d replicas, annotations %v", *got.Spec.Replicas, got.Annotations)
			}
			return nil
		})
	})
	t.Run("SpecChanged", func(t *testing.T) {
		w := get(t, c, namespace, "edited", &appsv1alpha1.Website{})
		before := w.DeepCopy()
		w.Spec.Branch, w.Spec.Replicas = "next", new(int32(0))
		if err := c.Patch(t.Context(), w, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the change arrives", testenv.Patience, func() error {
			d := get(t, c, namespace, "edited-web", &appsv1.Deployment{})
			if args := d.Spec.Template.Spec.Containers[1].Args; *d.Spec.Replicas != 0 || args[1] != "--ref=next" {
				return fmt.Errorf("%d replicas, arguments %v", *d.Spec.Replicas, args)
			}
			return nil
		})
	})
}

func TestNameTaken(t *testing.T) {
	c, namespace := hub(t)
	startController(t)
	unmanagedObject := func(kind, name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"selector": map[string]any{"app": "other"}, "ports": []any{map[string]any{"port": int64(80)}},
		}}}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
		if kind == "Deployment" {
			o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
			o.Object["spec"] = map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{"app": "other"}},
				"template": map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"app": "other"}},
					"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "c"}}},
				},
			}
		}
		o.SetNamespace(namespace)
		o.SetName(name)
		return o
	}
	for kind, condition := range map[string]string{"Deployment": "Deployed", "Service": "Exposed"} {
		t.Run(kind, func(t *testing.T) {
			name := strings.ToLower(kind)
			foreign := unmanagedObject(kind, name+"-web")
			create(t, c, foreign)
			create(t, c, newSite(namespace, name))
			wantConditions(t, c, namespace, name, condition+"=False/NameTaken", "Ready=False/NameTaken")

			after := unmanagedObject(kind, name+"-web")
			get(t, c, namespace, name+"-web", after)
			if diff := cmp.Diff(foreign, after); diff != "" {
				t.Errorf("somebody else's %s was touched:\n%s", kind, diff)
			}

			if err := c.Delete(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
			wantConditions(t, c, namespace, name, "Deployed=True/Deployed", "Exposed=True/Exposed")
		})
	}
}

func TestAvailability(t *testing.T) {
	c, namespace := hub(t)
	create(t, c, newSite(namespace, "up"))
	startController(t)
	wantConditions(t, c, namespace, "up", "Available=False/Progressing", "Ready=False/Progressing")

	d := get(t, c, namespace, "up-web", &appsv1.Deployment{})
	before := d.DeepCopy()
	d.Status = appsv1.DeploymentStatus{ // as three clusters report it
		ObservedGeneration: d.Generation, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3,
	}
	if err := c.Status().Patch(t.Context(), d, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	wantConditions(t, c, namespace, "up", "Available=True/Available", "Ready=True/Ready")
	if got := get(t, c, namespace, "up", &appsv1alpha1.Website{}).Status.AvailableReplicas; got != 3 {
		t.Errorf("availableReplicas = %d, want 3", got)
	}
}

// A Website may have a name that is too long for a label.
func TestLongName(t *testing.T) {
	c, namespace := hub(t)
	w := newSite(namespace, strings.Repeat("a", 62)+".long")
	w.Spec.DeploymentName = "short"
	create(t, c, w)
	reconcileOnce(t, c, w)
	if got := get(t, c, namespace, "short", &appsv1.Deployment{}).Labels[SiteLabel]; got != strings.Repeat("a", 62) {
		t.Errorf("label %s is %q", SiteLabel, got)
	}
}

// Invalid input is refused with the path of the field.
func TestRefused(t *testing.T) {
	c, namespace := hub(t)
	cases := map[string]struct {
		change func(spec map[string]any)
		field  string // "": accepted
	}{
		"Good":              {func(map[string]any) {}, ""},
		"GoodSSH":           {func(s map[string]any) { s["gitRepo"] = "git@git.example.org:site.git" }, ""},
		"GoodUser":          {func(s map[string]any) { s["gitRepo"] = "ssh://git@git.example.org/site.git" }, ""},
		"NoURL":             {func(s map[string]any) { s["gitRepo"] = "site.git" }, "spec.gitRepo"},
		"File":              {func(s map[string]any) { s["gitRepo"] = "file:///etc" }, "spec.gitRepo"},
		"Password":          {func(s map[string]any) { s["gitRepo"] = "https://me:secret@git.example.org/site.git" }, "spec.gitRepo"},
		"NoRepository":      {func(s map[string]any) { delete(s, "gitRepo") }, "spec.gitRepo"},
		"PeriodTooShort":    {func(s map[string]any) { s["period"] = "100ms" }, "spec.period"},
		"PeriodNoTime":      {func(s map[string]any) { s["period"] = "often" }, "spec.period"},
		"DeploymentName":    {func(s map[string]any) { s["deploymentName"] = "Web_1" }, "spec.deploymentName"},
		"TooManyReplicas":   {func(s map[string]any) { s["replicas"] = int64(1001) }, "spec.replicas"},
		"NegativeReplicas":  {func(s map[string]any) { s["replicas"] = int64(-1) }, "spec.replicas"},
		"ReplicasNoNumber":  {func(s map[string]any) { s["replicas"] = "two" }, "spec.replicas"},
		"ImagesOfNoStrings": {func(s map[string]any) { s["images"] = map[string]any{"nginx": int64(1)} }, "spec.images.nginx"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
				"gitRepo": "https://git.example.org/site.git", "deploymentName": "web",
			}}}
			o.SetGroupVersionKind(appsv1alpha1.GroupVersion.WithKind("Website"))
			o.SetNamespace(namespace)
			o.SetName(strings.ToLower(name))
			spec, _ := o.Object["spec"].(map[string]any)
			tc.change(spec)
			wantRefused(t, c.Create(t.Context(), o, client.DryRunAll), tc.field)
		})
	}

	w := newSite(namespace, "fixed")
	create(t, c, w)
	w.Spec.DeploymentName = "another"
	wantRefused(t, c.Update(t.Context(), w), "spec.deploymentName")
}

func wantRefused(t *testing.T, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if !apierrors.IsInvalid(err) {
		t.Fatalf("not refused as invalid: %v", err)
	}
	status, _ := errors.AsType[*apierrors.StatusError](err)
	for _, cause := range status.ErrStatus.Details.Causes {
		if cause.Field == field {
			return
		}
	}
	t.Errorf("refused for %v, not for %s", status.ErrStatus.Details.Causes, field)
}

// A condition that does not change keeps its time.
func TestConditionsDoNotFlap(t *testing.T) {
	c, namespace := hub(t)
	w := newSite(namespace, "calm")
	create(t, c, w)
	reconcileOnce(t, c, w)
	before := get(t, c, namespace, "calm", &appsv1alpha1.Website{}).Status
	reconcileOnce(t, c, w)
	after := get(t, c, namespace, "calm", &appsv1alpha1.Website{}).Status
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
	if !meta.IsStatusConditionTrue(after.Conditions, appsv1alpha1.ConditionDeployed) {
		t.Errorf("conditions are %v", after.Conditions)
	}
}
