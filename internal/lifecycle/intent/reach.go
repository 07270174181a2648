package intent

import (
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// Reach is how far a run came when it connected to a host.
type Reach string

// Values of Reach. The state of a host that was not Reached is unknown.
const (
	// Reached: the run has logged in to the host and read its facts.
	Reached Reach = "reached"
	// Unreachable: nothing answers at the address of the host.
	Unreachable Reach = "unreachable"
	// Refused: something answers at its address, and the run cannot log in. The host refuses the
	// login, the key of the host is another or unknown, no command starts, or there are no
	// credentials.
	Refused Reach = "refused"
)

// Part is the role of a host in an action: whether the host belongs to the cluster before and after
// the action.
type Part string

// Values of Part.
const (
	// Coming: the action adds the host, which is not part of the cluster yet.
	Coming Part = "new"
	// Staying: the host is part of the cluster before and after the action.
	Staying Part = "of the cluster"
	// Leaving: the action removes the host from the cluster, or deletes the whole cluster.
	Leaving Part = "leaves"
)

// Treatment is what an action does with a host, depending on how the host was reached. Treat
// returns it. docs/clusters.md shows the values.
type Treatment string

// Values of Treatment.
const (
	// TreatWork: the action works on the host, which was reached.
	TreatWork Treatment = "done"
	// TreatReport: the action reports, as a problem, that the host was not reached.
	TreatReport Treatment = "reported"
	// TreatStop: the host was not reached, so the action ends before it changes any host.
	TreatStop Treatment = "stops"
	// TreatLeave: the host stays as it is, and the action works on the other hosts. In the end the run
	// fails with the name of the host, and can be resumed.
	TreatLeave Treatment = "left, fails"
	// TreatSkip: the host stays as it is, and the action works on the other hosts. The run succeeds,
	// and its message names the host.
	TreatSkip Treatment = "left, named"
	// TreatForget: the action ends before it changes any host, unless the Operation forgets hosts that
	// were not reached. Then the action removes the host from the cluster, and undoes nothing on the
	// host.
	TreatForget Treatment = "stops, or forgotten"
)

// Actions in ReachTable that are not actions of Operations.
const (
	// ActionPreflight is the action of orrery cluster preflight: it inspects hosts and changes
	// nothing.
	ActionPreflight lifecyclev1alpha1.Action = "Preflight"
	// ActionPlan is the action that only shows what Create, Apply or AddNode would do. A plan of
	// DeleteNode or Delete has no rows of its own in ReachTable: it treats hosts as the rows of
	// ActionDeleteNode or ActionDelete say.
	ActionPlan lifecyclev1alpha1.Action = "Plan"
)

// ReachRow is one row of ReachTable: what an action does with the hosts of one Part, for each
// Reach.
type ReachRow struct {
	Action lifecyclev1alpha1.Action
	// Commands are the commands of the command line for the action, in Markdown.
	Commands string
	Part     Part
	// Reached, Unreachable and Refused are the treatments of a host with this Reach.
	Reached, Unreachable, Refused Treatment
}

// ReachTable says what each action does with each host. A combination of action and part without a
// row does not exist. A resumed run treats hosts as its action does. docs/clusters.md has the same
// table.
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

// Treat returns what an action does with a host, from ReachTable. It returns TreatStop for a
// combination of action and part that has no row.
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
