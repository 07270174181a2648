package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// workStep is one step of TestRandomWork. Only the seed chooses it.
type workStep struct {
	what string
	do   func(*randomWork) error
}

// workSteps returns the n steps of a seed.
func workSteps(seed uint64, n int) []workStep {
	r := rand.New(rand.NewPCG(seed, 28))
	kinds := workRepertoire()
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	all := make([]workStep, 0, n)
	for i := range n {
		if i < n/4 { // at first there is no object to end, delete or move
			all = append(all, putStep(r, workKinds[i%len(workKinds)], workNamespaces[i/len(workKinds)%len(workNamespaces)]))
			continue
		}
		at := r.IntN(sum)
		i := slices.IndexFunc(kinds, func(k weightedWork) bool { at -= k.weight; return at < 0 })
		all = append(all, kinds[i].make(r))
	}
	return all
}

// weightedWork is a kind of step with its frequency.
type weightedWork struct {
	weight int
	make   func(*rand.Rand) workStep
}

// workName returns a name of a template of a kind. There are few names, so that steps affect
// the same templates.
func workName(r *rand.Rand, kind string) string {
	return strings.ToLower(kind[:1]) + fmt.Sprint(r.IntN(map[string]int{"ConfigMap": 3, "Job": 4, "StatefulSet": 2}[kind]))
}

// workManifest returns a template, or an object that is in a member before it. There are few
// variants, so that both are often equal. more is an additional value for the object.
func workManifest(r *rand.Rand, kind, ns, name, more string) string {
	switch kind {
	case "ConfigMap":
		o := spine.ConfigMap(ns, name, fmt.Sprint(r.IntN(2)))
		if more != "" {
			o = strings.Replace(o, "data: {", "data: {more: "+more+", ", 1)
		}
		return o
	case "Job":
		// The cluster deletes the Jobs of half of the names when they have ended. The Jobs of
		// half of the names end only by a step.
		live, node := "", ""
		if name >= "j2" {
			live = "ttlSecondsAfterFinished: 0, "
		}
		if name == "j1" || name == "j3" {
			node = "nodeSelector: {none: such}, "
		}
		return fmt.Sprintf(`---
apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: %s}
spec: {%stemplate: {spec: {%srestartPolicy: Never, containers: [{name: x, image: "example.org/job:1"}]}}}
`, name, ns, live, node)
	}
	service := "db"
	// In overwriteNamespace, a StatefulSet with another service could not be overwritten.
	if ns != overwriteNamespace && more == "" {
		service = []string{"db", "other"}[r.IntN(2)]
	}
	o := statefulSet(ns, name, service, "none")
	if more != "" {
		o = strings.Replace(o, `{name: db, image`, `{name: db, env: [{name: MORE, value: "`+more+`"}], image`, 1)
	}
	return o
}

func putStep(r *rand.Rand, k spine.Kind, ns string) workStep {
	o := workManifest(r, k.Kind, ns, workName(r, k.Kind), "")
	return workStep{"put " + words(o), func(w *randomWork) error { return w.apply(o) }}
}

func workRepertoire() []weightedWork {
	namespace := func(r *rand.Rand) string { return workNamespaces[r.IntN(len(workNamespaces))] }
	one := func(r *rand.Rand) *testenv.Member {
		return spine.Members.Named(spine.ClusterNames[r.IntN(len(spine.ClusterNames))])
	}
	kind := func(r *rand.Rand) spine.Kind { return workKinds[r.IntN(len(workKinds))] }
	propagation := func(r *rand.Rand) metav1.DeletionPropagation { return propagations[r.IntN(len(propagations))] }
	return []weightedWork{
		{24, func(r *rand.Rand) workStep {
			return putStep(r, kind(r), namespace(r))
		}},
		{16, func(r *rand.Rand) workStep {
			ns, name, m, ends := namespace(r), workName(r, "Job"), one(r), []string{"Complete", "Failed"}[r.IntN(4)/3]
			return workStep{fmt.Sprintf("end Job %s/%s in %s: %s", ns, name, m.Name, ends), func(w *randomWork) error { return w.end(m, ns, name, ends) }}
		}},
		{5, func(r *rand.Rand) workStep {
			ns, name, m := namespace(r), workName(r, "Job"), one(r)
			return workStep{fmt.Sprintf("delete the copy of Job %s/%s in %s", ns, name, m.Name), func(w *randomWork) error { return w.lose(m, ns, name) }}
		}},
		{3, func(r *rand.Rand) workStep {
			ns, name := namespace(r), workName(r, "Job")
			return workStep{"rerun Job " + ns + "/" + name, func(w *randomWork) error { return w.rerun(ns, name) }}
		}},
		{12, func(r *rand.Rand) workStep {
			k, ns, p := kind(r), namespace(r), propagation(r)
			name := workName(r, k.Kind)
			return workStep{fmt.Sprintf("delete %s %s/%s with %s", k.Kind, ns, name, p), func(w *randomWork) error { return w.delete(k, ns, name, p) }}
		}},
		{5, func(r *rand.Rand) workStep {
			k, ns, p, after := kind(r), namespace(r), propagation(r), time.Duration(r.IntN(60))*time.Millisecond
			name := workName(r, k.Kind)
			return workStep{fmt.Sprintf("delete %s %s/%s with %s, and kill -9 the server after %s", k.Kind, ns, name, p, after), func(w *randomWork) error {
				if err := w.ask(func(ctx context.Context) error {
					_, err := w.admin.Find(ctx, k.APIVersion, k.Kind, ns, name)
					return err
				}); err != nil {
					return err
				}
				killed := make(chan struct{})
				time.AfterFunc(after, func() { w.Hub.Kill(); close(killed) })
				err := w.delete(k, ns, name, p)
				<-killed
				return errors.Join(err, w.start())
			}}
		}},
		{5, func(r *rand.Rand) workStep {
			k, ns := workKinds[2], namespace(r)
			name := workName(r, k.Kind)
			return workStep{fmt.Sprintf("delete %s %s/%s with Orphan", k.Kind, ns, name), func(w *randomWork) error {
				return w.delete(k, ns, name, metav1.DeletePropagationOrphan)
			}}
		}},
		{3, func(r *rand.Rand) workStep {
			// Delete with one propagation policy, and create again at once.
			k, ns, p := kind(r), namespace(r), propagation(r)
			name := workName(r, k.Kind)
			o := workManifest(r, k.Kind, ns, name, "")
			return workStep{fmt.Sprintf("replace with %s: %s", p, words(o)), func(w *randomWork) error {
				if err := w.delete(k, ns, name, p); err != nil {
					return err
				}
				return w.apply(o)
			}}
		}},
		{14, func(r *rand.Rand) workStep {
			k, ns, m, more := kind(r), namespace(r), one(r), ""
			if r.IntN(2) == 0 {
				more = "theirs"
			}
			o := workManifest(r, k.Kind, ns, workName(r, k.Kind), more)
			return workStep{"in " + m.Name + " was before: " + words(o), func(w *randomWork) error { return w.foreign(m, o) }}
		}},
		{7, func(r *rand.Rand) workStep {
			k, ns := kind(r), namespace(r)
			var names []string
			for _, i := range r.Perm(3)[:1+r.IntN(3)] {
				names = append(names, spine.ClusterNames[i])
			}
			return workStep{fmt.Sprintf("place %ss of %s in %v", k.Kind, ns, names), func(w *randomWork) error { return w.place(ns, k, names...) }}
		}},
		{6, func(r *rand.Rand) workStep {
			m := one(r)
			return workStep{"an API of " + m.Name + " does not answer", func(w *randomWork) error { return w.sicken(m) }}
		}},
		{7, func(r *rand.Rand) workStep {
			m, k := one(r), kind(r)
			return workStep{fmt.Sprintf("%s refuses the hub's writes of %ss", m.Name, k.Kind), func(w *randomWork) error { return w.refuse(m, k) }}
		}},
		{4, func(r *rand.Rand) workStep {
			m, k := one(r), kind(r)
			left := [][]string{nil, {"get", "list", "watch"}, {"get", "create", "patch", "update", "delete"}}[r.IntN(3)]
			return workStep{fmt.Sprintf("of the hub's rights to %ss in %s are left %v", k.Kind, m.Name, left), func(w *randomWork) error { return w.deny(m, k.Kind, left) }}
		}},
		{4, func(r *rand.Rand) workStep {
			m := one(r)
			return workStep{"cut " + m.Name, func(w *randomWork) error { m.Fail(testenv.Cut); w.trouble(func() { w.cut[m.Name] = true }); return nil }}
		}},
		{9, func(r *rand.Rand) workStep {
			m := one(r)
			return workStep{"heal " + m.Name, func(w *randomWork) error { w.heal(m); return nil }}
		}},
		{3, func(*rand.Rand) workStep {
			return workStep{"kill -9 the server", func(w *randomWork) error { w.Hub.Kill(); return w.start() }}
		}},
		{8, func(r *rand.Rand) workStep {
			d := time.Duration(100+r.IntN(1200)) * time.Millisecond
			return workStep{"wait " + d.String(), func(*randomWork) error { time.Sleep(d); return nil }}
		}},
	}
}

func (w *randomWork) trouble(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// ask repeats a request until the hub answers, and starts the server if it does not run.
func (w *randomWork) ask(do func(ctx context.Context) error) error {
	var answer error
	w.Eventually("the hub answers", func() error {
		if err := w.start(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		answer = do(ctx)
		switch apierrors.ReasonForError(answer) {
		case metav1.StatusReasonNotFound, metav1.StatusReasonInvalid, metav1.StatusReasonConflict, metav1.StatusReasonAlreadyExists, metav1.StatusReasonBadRequest:
			return nil
		default:
			return answer
		}
	})
	return answer
}

// start starts the server unless it is running.
func (w *randomWork) start() error {
	if w.Hub.Running() {
		return nil
	}
	return w.Hub.Start()
}

func (w *randomWork) apply(manifest string) error {
	return w.ask(func(ctx context.Context) error { return w.admin.TryApply(ctx, manifest) })
}

// place sets the clusters of the policy of a kind in a namespace.
func (w *randomWork) place(ns string, k spine.Kind, clusters ...string) error {
	resolution := "conflictResolution: Abort"
	if ns == overwriteNamespace {
		resolution = "conflictResolution: Overwrite"
	}
	clusters = slices.Sorted(slices.Values(clusters))
	w.trouble(func() {
		w.placed[ns+" "+k.Kind] = clusters
		if k.Kind == "StatefulSet" { // pods of a StatefulSet are deleted when it moves
			maps.DeleteFunc(w.orphans, func(key string, _ types.UID) bool {
				cluster, pod, _ := strings.Cut(key, " ")
				return strings.HasPrefix(pod, ns+"/") && !slices.Contains(clusters, cluster)
			})
		}
	})
	return w.apply(spine.ClusterPolicy(ns+"-"+strings.ToLower(k.Kind), fmt.Sprintf("{apiVersion: %s, kind: %s, namespace: %s}", k.APIVersion, k.Kind, ns), spine.In(clusters...), resolution))
}

// templateOf returns the UID of the template of a copy, or "" if o is no copy.
func templateOf(o *unstructured.Unstructured) types.UID {
	if o.GetLabels()[workv1alpha2.BindingLabel] == "" {
		return ""
	}
	source, err := mark.Parse(o.GetAnnotations()[workv1alpha2.SourceAnnotation])
	if err != nil {
		return ""
	}
	return source.Template
}

// end makes the copy of a Job in a member end.
func (w *randomWork) end(m *testenv.Member, ns, name, phase string) error {
	o, err := m.Find(w.Context(), "batch/v1", "Job", ns, name)
	if err != nil {
		return err
	}
	if templateOf(o) == "" {
		return errors.New("it is no copy")
	}
	if hasEnded(o) {
		return errors.New("it has ended")
	}
	now := time.Now().UTC().Format(time.RFC3339)
	condition := func(kind string) any {
		return map[string]any{"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now}
	}
	began, found, _ := unstructured.NestedString(o.Object, "status", "startTime")
	if !found {
		began = now
	}
	if phase == "Complete" {
		o.Object["status"] = map[string]any{
			"succeeded": int64(1), "startTime": began, "completionTime": now, "conditions": []any{condition("SuccessCriteriaMet"), condition("Complete")},
		}
	} else {
		o.Object["status"] = map[string]any{"failed": int64(1), "startTime": began, "conditions": []any{condition("FailureTarget"), condition("Failed")}}
	}
	return m.Status().Update(w.Context(), o)
}

// followEnds records, until ctx ends, which copies of Jobs end in a member.
func (w *randomWork) followEnds(ctx context.Context, m *testenv.Member, jobs dynamic.NamespaceableResourceInterface) {
	for ctx.Err() == nil {
		list, err := jobs.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range list.Items {
			w.noteEnd(m, &list.Items[i])
		}
		events, err := jobs.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			continue
		}
		for e := range events.ResultChan() {
			if o, ok := e.Object.(*unstructured.Unstructured); ok && o.GetKind() == "Job" {
				w.noteEnd(m, o)
			}
		}
	}
}

func (w *randomWork) noteEnd(m *testenv.Member, o *unstructured.Unstructured) {
	template := templateOf(o)
	if template == "" || !hasEnded(o) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := m.Name + " " + string(template)
	if w.ended[key] == nil {
		w.ended[key] = map[types.UID]time.Time{}
	}
	if _, noted := w.ended[key][o.GetUID()]; !noted {
		w.ended[key][o.GetUID()] = time.Now()
	}
}

func hasEnded(o *unstructured.Unstructured) bool {
	has := spine.Conditions(o)
	return strings.Contains(has, "Complete=True/") || strings.Contains(has, "Failed=True/")
}

// lose deletes the copy of a Job in a member.
func (w *randomWork) lose(m *testenv.Member, ns, name string) error {
	o, err := m.Find(w.Context(), "batch/v1", "Job", ns, name)
	if err != nil {
		return err
	}
	if templateOf(o) == "" {
		return errors.New("it is no copy")
	}
	w.trouble(func() { delete(w.before, m.Name+" Job "+ns+"/"+name) })
	uid := o.GetUID()
	return m.Delete(w.Context(), o, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &uid})
}

// rerun requests another run of a Job.
func (w *randomWork) rerun(ns, name string) error {
	if err := w.start(); err != nil {
		return err
	}
	var o *unstructured.Unstructured
	if err := w.ask(func(ctx context.Context) (err error) {
		o, err = w.admin.Find(ctx, "batch/v1", "Job", ns, name)
		return err
	}); err != nil {
		return err
	}
	w.trouble(func() { w.reruns[o.GetUID()]++ })
	_, err := w.Hub.Orrery("rerun", "job/"+name, "-n", ns, "--timeout=1s")
	return err
}

// delete deletes a template, unless it is being deleted.
func (w *randomWork) delete(k spine.Kind, ns, name string, p metav1.DeletionPropagation) error {
	var o *unstructured.Unstructured
	if err := w.ask(func(ctx context.Context) (err error) {
		o, err = w.admin.Find(ctx, k.APIVersion, k.Kind, ns, name)
		return err
	}); err != nil {
		return err
	}
	if o.GetDeletionTimestamp() != nil {
		return errors.New("it is being deleted")
	}
	uid := o.GetUID()
	if k.Kind == "StatefulSet" {
		w.expectPods(o, p)
	}
	w.trouble(func() { w.deleted[uid] = append(w.deleted[uid], p) })
	return client.IgnoreNotFound(w.ask(func(ctx context.Context) error {
		return w.admin.Delete(ctx, o, client.PropagationPolicy(p), client.Preconditions{UID: &uid})
	}))
}

// expectPods records the pods that the deletion of a StatefulSet orphans in members.
func (w *randomWork) expectPods(template *unstructured.Unstructured, p metav1.DeletionPropagation) {
	ns, name := template.GetNamespace(), template.GetName()
	for _, m := range spine.Members.List {
		key := m.Name + " " + ns + "/" + name + "-0"
		if p != metav1.DeletePropagationOrphan {
			w.trouble(func() { delete(w.orphans, key) })
			continue
		}
		s, err := m.Find(w.Context(), "apps/v1", "StatefulSet", ns, name)
		if err != nil || s.GetDeletionTimestamp() != nil || templateOf(s) != template.GetUID() {
			continue
		}
		pod, err := m.Find(w.Context(), "v1", "Pod", ns, name+"-0")
		if err != nil || pod.GetDeletionTimestamp() != nil || !metav1.IsControlledBy(pod, s) {
			continue
		}
		w.trouble(func() {
			if slices.Contains(w.placed[ns+" StatefulSet"], m.Name) && spine.AvailableReplicas(s) == 1 && updated(s) {
				w.orphans[key] = pod.GetUID()
			}
		})
	}
}

// updated reports whether the rollout of a StatefulSet is complete.
func updated(s *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(s.Object, "status", "observedGeneration")
	current, _, _ := unstructured.NestedString(s.Object, "status", "currentRevision")
	update, _, _ := unstructured.NestedString(s.Object, "status", "updateRevision")
	return observed == s.GetGeneration() && current == update
}

// foreign creates an object in a member that does not belong to the hub.
func (w *randomWork) foreign(m *testenv.Member, manifest string) error {
	objects, err := testenv.Parse(manifest)
	if err != nil {
		return err
	}
	o := objects[0]
	w.mu.Lock() // so that the hub's writes are judged after the record
	defer w.mu.Unlock()
	if err := m.Create(w.Context(), o); err != nil {
		return err
	}
	w.before[named(m, o.GetKind(), o.GetNamespace(), o.GetName())] = o.GetUID()
	delete(w.orphans, m.Name+" "+o.GetNamespace()+"/"+o.GetName()+"-0") // o adopts the pod
	return nil
}

// silentService is an aggregated API without a server.
func silentService() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.silent.example.com"},
		"spec": map[string]any{
			"group": "silent.example.com", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "default", "name": "silent"},
		},
	}}
}

func (w *randomWork) sicken(m *testenv.Member) error {
	w.trouble(func() { w.sick[m.Name] = true })
	return m.Create(w.Context(), silentService())
}

// refusal returns an admission policy, and its binding, that refuses the hub's writes of a
// kind.
func refusal(k spine.Kind) []*unstructured.Unstructured {
	group, version, found := strings.Cut(k.APIVersion, "/")
	if !found {
		group, version = "", k.APIVersion
	}
	objects, err := testenv.Parse(fmt.Sprintf(`---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-work}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [%q], apiVersions: [%s], operations: [CREATE, UPDATE, DELETE], resources: [%ss]}]}
  validations: [{expression: "request.userInfo.username != 'system:serviceaccount:%s:%s'", message: not now}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-work}
spec: {policyName: no-work, validationActions: [Deny]}
`, group, version, strings.ToLower(k.Kind), member.AccountNamespace, member.AccountName))
	if err != nil {
		panic(err) // the format is constant
	}
	return objects
}

// refuse makes the admission of a member refuse the hub's writes of a kind.
func (w *randomWork) refuse(m *testenv.Member, k spine.Kind) error {
	w.mu.Lock()
	is := w.denied[m.Name]
	w.mu.Unlock()
	if is != "" {
		return errors.New("it refuses writes of " + is + "s")
	}
	w.trouble(func() { w.denied[m.Name] = k.Kind })
	for _, o := range refusal(k) {
		if err := m.Create(w.Context(), o); err != nil {
			return err
		}
	}
	return nil
}

// deny reduces the hub's rights for a kind in a member to the verbs left. Other kinds keep all
// verbs.
func (w *randomWork) deny(m *testenv.Member, kind string, left []string) error {
	role, err := m.Find(w.Context(), "rbac.authorization.k8s.io/v1", "ClusterRole", "", "cluster-admin")
	if err != nil {
		return err
	}
	if w.roles[m.Name] == nil {
		w.roles[m.Name] = map[string]any{"rules": role.Object["rules"]}
	}
	d, err := discovery.NewDiscoveryClientForConfig(m.DirectConfig())
	if err != nil {
		return err
	}
	_, lists, err := d.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return err
	}
	denied := strings.ToLower(kind) + "s"
	all := map[string]map[string]bool{}
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		if all[group] == nil {
			all[group] = map[string]bool{}
		}
		for _, resource := range list.APIResources {
			all[group][resource.Name] = resource.Name != denied
		}
	}
	rules := []any{
		map[string]any{"nonResourceURLs": []any{"*"}, "verbs": []any{"*"}},
		map[string]any{"apiGroups": []any{"cluster.orrery.dev", "apiregistration.k8s.io"}, "resources": []any{"*"}, "verbs": []any{"*"}},
		// API servers have these resources without listing them.
		map[string]any{"apiGroups": []any{""}, "resources": []any{"users", "groups"}, "verbs": []any{"impersonate"}},
		map[string]any{"apiGroups": []any{"authentication.k8s.io"}, "resources": []any{"userextras/*", "uids"}, "verbs": []any{"impersonate"}},
	}
	for _, group := range slices.Sorted(maps.Keys(all)) {
		var resources []any
		for _, resource := range slices.Sorted(maps.Keys(all[group])) {
			if all[group][resource] {
				resources = append(resources, resource)
			} else if len(left) > 0 {
				rules = append(rules, map[string]any{"apiGroups": []any{group}, "resources": []any{resource}, "verbs": untyped(left)})
			}
		}
		if len(resources) > 0 {
			rules = append(rules, map[string]any{"apiGroups": []any{group}, "resources": resources, "verbs": []any{"*"}})
		}
	}
	role.Object["rules"] = rules
	w.trouble(func() { w.forbidden[m.Name] = true })
	return m.Update(w.Context(), role)
}

func untyped(all []string) []any {
	list := make([]any, 0, len(all))
	for _, s := range all {
		list = append(list, s)
	}
	return list
}

// heal ends all faults of a member.
func (w *randomWork) heal(m *testenv.Member) {
	m.Heal()
	ctx := context.Background()
	testenv.Eventually(w, m.Name+" is well", spine.Patience, func() error {
		err := client.IgnoreNotFound(m.Delete(ctx, silentService()))
		for _, o := range refusal(workKinds[0]) {
			err = errors.Join(err, client.IgnoreNotFound(m.Delete(ctx, o)))
		}
		if was := w.roles[m.Name]; was != nil {
			role, failed := m.Find(ctx, "rbac.authorization.k8s.io/v1", "ClusterRole", "", "cluster-admin")
			if failed != nil {
				return failed
			}
			role.Object["rules"] = was["rules"]
			err = errors.Join(err, m.Update(ctx, role))
		}
		return err
	})
	w.trouble(func() {
		delete(w.sick, m.Name)
		delete(w.denied, m.Name)
		delete(w.cut, m.Name)
		delete(w.forbidden, m.Name)
	})
}
