package intent

import (
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// Reach is how far a run came with a host.
type Reach string

// Values of Reach. The state of a host that was not Reached is unknown.
const (
	// Reached: the host has reported its facts.
	Reached Reach = "reached"
	// Unreachable: nothing answers at its address.
	Unreachable Reach = "unreachable"
	// Refused: something answers and cannot be logged in to. The login is refused, the key of the host
	// is another or unknown, no command starts, or there are no credentials.
	Refused Reach = "refused"
)

// Part is the part of a host in an action.
type Part string

// Values of Part.
const (
	// Coming hosts are not part of the cluster yet.
	Coming Part = "new"
	// Staying hosts are part of the cluster before and after the action.
	Staying Part = "of the cluster"
	// Leaving hosts are removed from the cluster, or undone with it.
	Leaving Part = "leaves"
)

// Treatment is what an action does with a host.
type Treatment string

// Values of Treatment.
const (
	// TreatWork: the action works on the host.
	TreatWork Treatment = "done"
	// TreatReport: the action reports the host as a problem.
	TreatReport Treatment = "reported"
	// TreatStop: the action ends before it changes any host.
	TreatStop Treatment = "stops"
	// TreatLeave: the host stays as it is, and the others are done. The run fails in the end with the
	// name of the host, and can be resumed.
	TreatLeave Treatment = "left, fails"
	// TreatSkip: the host stays as it is, and the others are done. The run succeeds and names the
	// host.
	TreatSkip Treatment = "left, named"
	// TreatForget: the action ends before it changes any host, unless it forgets such hosts. Then it
	// removes the host from the cluster, and nothing on the host is undone.
	TreatForget Treatment = "stops, or forgotten"
)

// Actions of the reach table that are no Operations.
const (
	// ActionPreflight inspects hosts.
	ActionPreflight lifecyclev1alpha1.Action = "Preflight"
	// ActionPlan shows what Create, Apply or AddNode would do. The plans of DeleteNode and Delete
	// treat hosts as these actions do.
	ActionPlan lifecyclev1alpha1.Action = "Plan"
)

// ReachRow is what an action does with the hosts of one part, by how they were reached.
type ReachRow struct {
	Action lifecyclev1alpha1.Action
	// Commands of the command line that do this.
	Commands string
	Part     Part
	// Reached, Unreachable and Refused are the treatments.
	Reached, Unreachable, Refused Treatment
}

// ReachTable says what each action does with each host. A combination of action and part that it
// lacks does not exist. A resumed run treats hosts as its action does. docs/clusters.md has the
// same table.
var ReachTable = []ReachRow{
	{ActionPreflight, "`preflight`", Coming, TreatWork, TreatReport, TreatReport},
	{ActionPreflight, "`preflight`", Staying, TreatWork, TreatReport, TreatReport},
	{ActionPlan, "`plan`, `--dry-run`", Coming, TreatWork, TreatStop, TreatStop},
	{ActionPlan, "`plan`, `--dry-run`", Staying, TreatWork, TreatStop, TreatStop},
	{lifecyclev1alpha1.ActionCreate, "`create`", Coming, TreatWork, TreatStop, TreatStop},
	{lifecyclev1alpha1.ActionApply, "`apply`", Coming, TreatWork, TreatStop, TreatStop},
	{lifecyclev1alpha1.ActionApply, "`apply`, `rollback`", Staying, TreatWork, TreatLeave, TreatLeave},
	{lifecyclev1alpha1.ActionAddNode, "`add-node`", Coming, TreatWork, TreatStop, TreatStop},
	{lifecyclev1alpha1.ActionAddNode, "`add-node`", Staying, TreatWork, TreatSkip, TreatSkip},
	{lifecyclev1alpha1.ActionRenewCertificates, "`certs renew`", Staying, TreatWork, TreatLeave, TreatLeave},
	{lifecyclev1alpha1.ActionDeleteNode, "`delete-node`", Staying, TreatWork, TreatSkip, TreatSkip},
	{lifecyclev1alpha1.ActionDeleteNode, "`delete-node`", Leaving, TreatWork, TreatForget, TreatForget},
	{lifecyclev1alpha1.ActionDelete, "`delete`", Leaving, TreatWork, TreatForget, TreatForget},
}

// Treat returns what an action does with a host. It stops for a combination that ReachTable lacks.
func Treat(action lifecyclev1alpha1.Action, part Part, reach Reach) Treatment {
	for _, row := range ReachTable {
		if row.Action != action || row.Part != part {
			continue
		}
		switch reach {
		case Reached:
			return row.Reached
		case Unreachable:
			return row.Unreachable
		case Refused:
			return row.Refused
		}
	}
	return TreatStop
}
