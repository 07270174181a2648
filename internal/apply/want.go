package apply

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/scheduler"
)

// Revision is one version of a template with its placement and its override policies. The caller of
// Want chooses the revision, which need not be the latest.
type Revision struct {
	// Binding has the placement, and the settings of the policy with which it was decided.
	Binding *workv1alpha2.ResourceBinding
	// State says whether the hub has the template. Template is nil exactly if State is not Present.
	State    presence.Presence
	Template *unstructured.Unstructured
	// Version is the version of Template, see template.Version; "" without a template.
	Version string
	// Overrides are the override policies for the template, in the order in which they are applied.
	// Missing names override policies that the binding requires and the hub does not have.
	Overrides []*render.Override
	Missing   []types.NamespacedName
}

// Snapshot is everything on which the wanted content of one cluster depends: a revision, and facts
// of the cluster. Applier.snapshot gathers it. Want and the methods read it only.
type Snapshot struct {
	Revision

	Cluster   *clusterv1alpha1.Cluster
	Reachable bool
	// Served says whether the cluster serves the kind of the template, and API how; see apiOf.
	API    member.API
	Served presence.Presence
	// Confirmed is true if placement has decided on this generation of the binding in this process,
	// and knew the Cluster.
	Confirmed bool
	// Preserved says whether the policy of a deleted binding says that copies stay; see preservation.
	// It is read only if the binding does not say so, and the cluster answers.
	Preserved presence.Presence
	// Leaving is true if the Cluster is being deleted, is gone, or cannot be read. It is set only if
	// the binding does not name the cluster.
	Leaving bool
	Source  mark.Source // the content of the source mark of a copy
	Work    Work
	// Namespace is the hub's namespace of the template; nil: there is none, or it cannot be read.
	Namespace *metav1.PartialObjectMetadata
	// OurNamespace is true if this hub created the namespace of that name in the cluster.
	OurNamespace bool

	// Copy is the copy in the cluster that has the template's name; without a UID: none is known.
	// Unclaimed is the number of its replicas above the share of the cluster that move even without
	// an eviction task.
	Copy      mirror.Object
	Unclaimed int32
	// Needed is true if a workload that also moves out of the cluster needs the copy until then.
	Needed bool
	// Placements and Asked are the arguments of Release. They are set only if replicas can move out of
	// the cluster.
	Placements []Placement
	Asked      int32

	// Preview is true if the manifest is also wanted before placement has confirmed the decision: for
	// answers to users. Nothing may be written with such a manifest.
	Preview bool
}

// Replicas says what a cluster keeps of its copy while replicas move between clusters.
type Replicas struct {
	// Has is the number of replicas of the copy. Keeps is the number of replicas that the copy is to
	// have. If Keeps is not less than Has, no replica leaves the cluster.
	Has, Keeps int32
	// Held is true if a copy has to stay in a cluster that the binding does not name any more.
	Held bool
	// Waits is true if replicas stay only until others are available elsewhere, and no eviction task
	// says so.
	Waits bool
	// Counted is false if the cluster keeps the replicas that it has, because writes are held back or
	// each cluster has all replicas. The other fields are then zero.
	Counted bool
}

// Want returns what a revision wants of one cluster: the manifest, or the reason why there is none.
// It is pure: renders only caches manifests.
func Want(s *Snapshot, renders *render.Cache, standard *podsecurity.Standard) Wanted {
	b, cluster := s.Binding, s.Cluster.Name
	w := Wanted{
		Intent: s.intent(), Decided: s.decided(), Source: s.Source,
		PolicyUnread: s.intent() == Remove && s.Preserved == presence.Unknown,
		Object:       Object{Resource: s.API.GroupVersionResource(), Namespace: b.Namespace, Name: b.Spec.Resource.Name},
		Keeps: s.State != presence.Absent && (followingClaim(b) || binding.RequiredByOrphans(b, cluster)) ||
			purged(b, cluster) == policyv1alpha1.PurgeNever,
	}
	w.Suspended, w.SuspendedMessage = s.suspended()
	replicas := s.replicas()
	w.Held = replicas != nil && replicas.Held
	if !s.places() {
		return w
	}
	w.Work = s.Work
	if w.Reason, w.Message = s.unserved(); w.Reason != "" {
		return w
	}
	target, _ := binding.Target(b, cluster)
	if replicas.Counted { // decided, because the manifest is
		target.Replicas = &replicas.Keeps
	}
	manifest, digest, err := renders.Render(render.Input{
		Template: s.Template, Cluster: s.Cluster, Target: target, Divided: binding.Divided(b), Shares: b.Spec.Clusters, Binding: b.UID,
		Overrides: s.Overrides, Completions: s.Work.Completions,
	}, s.Version)
	if err != nil {
		w.Reason, w.Message = workv1alpha2.ReasonRenderFailed, err.Error()
		return w
	}
	if why := bounds(&s.Cluster.Spec, manifest.GetNamespace()); why != "" {
		w.Reason, w.Message = workv1alpha2.ReasonRejected, why
		return w
	}
	if b.Namespace != "" {
		if s.Namespace == nil { // the binding is deleted with its namespace
			w.Decided, w.Message = false, fmt.Sprintf("namespace %s of the hub is gone or cannot be read", b.Namespace)
			return w
		}
		w.Security = podsecurity.Labels(s.Namespace.Labels)
		if why := standard.Violation(manifest, w.Security); why != "" {
			w.Reason, w.Message = workv1alpha2.ReasonPodSecurity, why
			return w
		}
	}
	w.Manifest, w.Digest, w.Foreign = manifest, digest, s.foreign()
	w.Object.Namespace, w.Object.Name = manifest.GetNamespace(), manifest.GetName()
	return w
}

// intent returns what the binding wants in the cluster.
func (s *Snapshot) intent() Intent {
	_, placed := binding.Target(s.Binding, s.Cluster.Name)
	deleted := !s.Binding.DeletionTimestamp.IsZero()
	switch {
	case deleted && (s.Binding.Spec.PreserveResourcesOnDeletion || s.Preserved == presence.Present):
		return Leave
	case deleted:
		return Remove
	case !placed:
		return Vacate
	default:
		return Place
	}
}

// decided returns Wanted.Decided. While the template is unknown nothing is placed, and the binding
// of an absent template is deleted. Applier.Leave decides what a leaving cluster keeps. Such a
// cluster is taken out of bindings, perhaps before its member knows that it leaves.
func (s *Snapshot) decided() bool {
	if s.State != presence.Present {
		return s.Confirmed && !s.Leaving && s.intent() != Place
	}
	return s.Confirmed && !s.Leaving && s.Template.GetGeneration() == s.Binding.Spec.Resource.Generation
}

// places reports whether the cluster is to get a manifest, if nothing refuses that.
func (s *Snapshot) places() bool {
	return s.intent() == Place && s.State == presence.Present && (s.Preview || s.decided())
}

// suspended returns the reason and the message why all writes to the cluster are held back. Either
// the policy suspends dispatching, or override policies that the binding requires are missing. Both
// results are "" if writes are not held back.
func (s *Snapshot) suspended() (reason, message string) {
	if of := s.Binding.Spec.PolicyRef; s.Binding.Spec.SuspendedOn(s.Cluster.Name) {
		return workv1alpha2.ReasonSuspended, "changes are held back: " + of.Kind + " " + of.Name + " suspends dispatching"
	}
	if len(s.Missing) == 0 {
		return "", ""
	}
	name := overrideKind(s.Missing[0].Namespace) + " " + strings.TrimPrefix(s.Missing[0].String(), "/")
	return workv1alpha2.ReasonOverrideMissing, "nothing is changed in clusters until this override policy exists: " + name
}

// unserved returns the reason and the message why a cluster that answers gets no object of the
// kind: it does not serve the kind, or that is unknown. Both results are "" for other clusters.
func (s *Snapshot) unserved() (reason, message string) {
	of := s.Binding.Spec.Resource
	switch {
	case !s.Reachable || s.Served == presence.Present:
		return "", ""
	case s.Served == presence.Absent:
		return workv1alpha2.ReasonAPINotServed, fmt.Sprintf("%s does not serve %s %s", s.Cluster.Name, of.APIVersion, of.Kind)
	default:
		return workv1alpha2.ReasonClusterUnreachable, fmt.Sprintf("%s cannot say whether it serves %s %s", s.Cluster.Name, of.APIVersion, of.Kind)
	}
}

// share returns the number of replicas that the placement gives to the cluster: 0 if the binding
// does not name the cluster. counted is false if the copy has all replicas of the template, or its
// replicas belong to the cluster. It is also false while the template is not known.
func (s *Snapshot) share() (n int32, counted bool) {
	target, placed := binding.Target(s.Binding, s.Cluster.Name)
	switch {
	case !placed:
		return 0, true
	case s.Template == nil || !binding.Divided(s.Binding) || target.Replicas == nil || interpreter.KeepsReplicas(s.Template):
		return 0, false
	default:
		return *target.Replicas, true
	}
}

// moves reports whether replicas move out of the cluster, so that replicas depends on what other
// clusters keep.
func (s *Snapshot) moves() bool {
	share, counted := s.share()
	if !counted {
		return false
	}
	switch s.intent() {
	case Place:
		return s.Copy.Replicas > share && (len(s.Binding.Spec.GracefulEvictionTasks) > 0 || s.Unclaimed > 0)
	case Vacate:
		if mode := purged(s.Binding, s.Cluster.Name); mode == policyv1alpha1.PurgeDirectly || mode == policyv1alpha1.PurgeNever {
			return false // the copy waits for no replacement
		}
		return s.Unclaimed > 0 || evictedFrom(s.Binding, s.Cluster.Name)
	case Remove, Leave:
	}
	return false
}

// replicas returns what the cluster keeps of its copy; nil if the snapshot does not decide that.
func (s *Snapshot) replicas() *Replicas {
	b, vacates := s.Binding, s.intent() == Vacate
	held, _ := s.suspended()
	unserved, _ := s.unserved()
	share, counted := s.share()
	switch {
	case !vacates && !s.places():
		return nil
	case held != "" || !counted:
		return &Replicas{}
	case !vacates && unserved != "":
		return nil
	}
	r := &Replicas{Has: s.Copy.Replicas, Keeps: share, Counted: true}
	if !s.moves() {
		if r.Held = vacates && s.Needed && purged(b, s.Cluster.Name) != policyv1alpha1.PurgeNever; r.Held {
			r.Keeps = r.Has
		}
		return r
	}
	stay := Release(s.Placements, s.Asked)[s.Cluster.Name]
	switch evicted := evictedFrom(b, s.Cluster.Name); {
	case vacates:
		// A move without a target cluster is held. If no cluster matches any more, there is no eviction
		// task.
		if r.Held = s.Needed || stay > 0 || evicted && len(b.Spec.Clusters) == 0; r.Held {
			r.Keeps, r.Waits = r.Has, !evicted
		}
	default:
		// A move never scales up the cluster that it leaves.
		r.Keeps, r.Waits = max(share, min(r.Has, share+stay)), stay > 0 && s.Unclaimed > 0
	}
	return r
}

// evictedFrom reports whether an eviction task moves replicas of a binding out of a cluster.
func evictedFrom(b *workv1alpha2.ResourceBinding, cluster string) bool {
	return slices.ContainsFunc(b.Spec.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool { return t.FromCluster == cluster })
}

// purged returns the purge mode of the eviction of a binding from a cluster; "" if it is not
// evicted, or its replicas only move.
func purged(b *workv1alpha2.ResourceBinding, cluster string) policyv1alpha1.PurgeMode {
	for _, t := range b.Spec.GracefulEvictionTasks {
		if t.FromCluster == cluster {
			return t.PurgeMode
		}
	}
	return ""
}

// foreign returns what may be done with an unmanaged object in the place of the copy: TakeOver if
// the policy overwrites, else Adopt. A user who may write policies in a namespace of the hub does
// not own the namespaces with that name in members. So foreign is Refuse for a namespaced policy,
// unless this hub created the namespace in the member, or an administrator allows it.
func (s *Snapshot) foreign() Foreign {
	allowed := s.OurNamespace || s.Namespace != nil && s.Namespace.Labels[workv1alpha2.AllowTakeOverLabel] == "true"
	switch spec := &s.Binding.Spec; {
	case spec.PolicyRef.Kind != policy.Kind("") && !allowed:
		return Refuse
	case spec.ConflictResolution == policyv1alpha1.ConflictOverwrite:
		return TakeOver
	default:
		return Adopt
	}
}

// bounds returns why the profile of a cluster's agent forbids the hub to change objects in a
// namespace; "" if it does not. The namespace "" stands for objects without one.
func bounds(spec *clusterv1alpha1.ClusterSpec, namespace string) string {
	if spec.MayPlace(namespace) {
		return ""
	}
	return (&scheduler.Bounds{Profile: string(spec.Profile()), Namespaces: spec.PlacementNamespaces()}).String()
}
