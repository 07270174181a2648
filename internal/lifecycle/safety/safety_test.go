package safety_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/safety"
)

// snapshot has hosts h-1, h-2 and so on, one for each letter: U is up, D down, ? unknown, X
// unreachable, and L a learner that is up. Without a quorum, the members are the last known ones.
func snapshot(etcd, apiServers string) safety.Snapshot {
	health := map[rune]safety.Health{'U': safety.Up, 'L': safety.Up, 'D': safety.Down, '?': safety.Unknown, 'X': safety.Unreachable}
	why := map[rune]string{'D': "it does not run", '?': "it does not answer", 'X': "its host was not reached"}
	var s safety.Snapshot
	voters, up := 0, 0
	for i, c := range etcd {
		s.Members = append(s.Members, safety.Member{
			ID: uint64(i + 1), Host: fmt.Sprintf("h-%d", i+1), Learner: c == 'L', Health: health[c], Why: why[c],
		})
		if c != 'L' {
			voters++
		}
		if c == 'U' {
			up++
		}
	}
	s.Quorum = up > voters/2
	for i, c := range apiServers {
		s.APIServers = append(s.APIServers, safety.APIServer{Host: fmt.Sprintf("h-%d", i+1), Health: health[c], Why: why[c]})
	}
	return s
}

func etcdOf(hosts ...string) safety.Act { return safety.Act{Etcd: hosts} }

func apiOf(hosts ...string) safety.Act { return safety.Act{APIServers: hosts} }

func both(host string) safety.Act {
	return safety.Act{Etcd: []string{host}, APIServers: []string{host}}
}

func leave(hosts ...string) safety.Act { return safety.Act{Leave: hosts} }

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		etcd, api string
		act       safety.Act
		noSpace   bool
		quorum    bool     // a majority confirmed the members, but not all of it answers
		refused   []string // parts of the error; none if the act is allowed
		outage    string
		repairs   bool
	}{
		"FirstCreate":              {act: both("h-1"), repairs: true},
		"NothingDisturbed":         {etcd: "UDD", api: "UDD"},
		"OneOfOne":                 {etcd: "U", api: "U", act: etcdOf("h-1"), outage: "while host h-1 is changed etcd has no quorum and no API server answers, because this host has the only one; pods keep running"},
		"OneOfOneAPIServer":        {etcd: "U", api: "U", act: apiOf("h-1"), outage: "no API server answers"},
		"OneOfOneStopped":          {etcd: "D", api: "D", act: both("h-1"), repairs: true},
		"OneOfOneUnknown":          {etcd: "?", api: "?", act: both("h-1"), outage: "etcd has no quorum"},
		"OneAPIServerOfThreeEtcds": {etcd: "UUU", api: "U", act: apiOf("h-1"), outage: "no API server answers"},
		"TwoOfTwo":                 {etcd: "UU", api: "UU", act: etcdOf("h-1"), refused: []string{"lose its quorum", "of 2 members 1 would be left", "add a member first"}},
		"TwoOfTwoAPIServer":        {etcd: "UU", api: "UU", act: apiOf("h-1")},
		"OneOfTwo":                 {etcd: "UD", api: "UD", act: etcdOf("h-1"), refused: []string{"no quorum", "h-2: it does not run", "start etcd on host h-2"}},
		"OneOfTwoTheStopped":       {etcd: "UD", api: "UD", act: both("h-2"), repairs: true},
		"ThreeOfThree":             {etcd: "UUU", api: "UUU", act: both("h-1")},
		"TwoOfThree": {
			etcd: "UUD", api: "UUD", act: etcdOf("h-1"),
			refused: []string{"lose its quorum", "host h-1", "of 3 members 1 would be left, and 2 are needed", "h-3: it does not run", "start etcd on host h-3", "delete-node CLUSTER h-3"},
		},
		"TwoOfThreeAPIServerOnly":     {etcd: "UUD", api: "UUD", act: apiOf("h-1")},
		"TwoOfThreeTheStopped":        {etcd: "UUD", api: "UUD", act: both("h-3"), repairs: true},
		"TwoOfThreeTheUnknown":        {etcd: "UU?", api: "UUU", act: etcdOf("h-3")},
		"TwoOfThreeUnreachable":       {etcd: "UUX", api: "UUX", act: etcdOf("h-1"), refused: []string{"lose its quorum", "h-3: its host was not reached", "bring back host h-3"}},
		"TwoOfThreeUnknown":           {etcd: "UU?", api: "UUU", act: etcdOf("h-1"), refused: []string{"lose its quorum", "wait until etcd answers on host h-3"}},
		"OneOfThreeTheStopped":        {etcd: "UDD", api: "UDD", act: etcdOf("h-2"), repairs: true},
		"OneOfThree":                  {etcd: "?DD", api: "???", act: etcdOf("h-1"), refused: []string{"no quorum", "h-2: it does not run", "start etcd on hosts h-2, h-3"}},
		"OneOfThreeSeen":              {etcd: "UXX", api: "UXX", quorum: true, act: etcdOf("h-1"), refused: []string{"lose its quorum", "bring back hosts h-2, h-3"}},
		"AllStopped":                  {etcd: "DDD", api: "DDD", act: both("h-2"), repairs: true},
		"AllStoppedAPIServersWait":    {etcd: "DDD", api: "???", act: both("h-2"), repairs: true},
		"AllUnknown":                  {etcd: "???", api: "???", act: etcdOf("h-1"), refused: []string{"no quorum", "wait until etcd answers on hosts h-2, h-3"}},
		"AllUnknownAPIServer":         {etcd: "???", api: "???", act: apiOf("h-1"), repairs: true},
		"AllCertificatesExpired":      {etcd: "DDD", api: "DDD", act: apiOf("h-1"), repairs: true},
		"ThreeOfFive":                 {etcd: "UUUDD", api: "UUUDD", act: etcdOf("h-2"), refused: []string{"of 5 members 2 would be left, and 3 are needed", "h-4", "h-5"}},
		"ThreeOfFiveTheStopped":       {etcd: "UUUDD", api: "UUUDD", act: etcdOf("h-5"), repairs: true},
		"FourOfFive":                  {etcd: "UUUUX", api: "UUUUX", act: etcdOf("h-1")},
		"TwoAtATimeOfFive":            {etcd: "UUUUU", api: "UUUUU", act: etcdOf("h-1", "h-2")},
		"ThreeAtATimeOfFive":          {etcd: "UUUUU", api: "UUUUU", act: etcdOf("h-1", "h-2", "h-3"), refused: []string{"hosts h-1, h-2, h-3"}},
		"LearnerHasNoVote":            {etcd: "UUL", api: "UU", act: etcdOf("h-1"), refused: []string{"of 2 members 1 would be left"}},
		"Learner":                     {etcd: "UUL", api: "UU", act: etcdOf("h-3"), repairs: true},
		"LastAPIServer":               {etcd: "UUU", api: "UDD", act: apiOf("h-1"), refused: []string{"no API server but that of host h-1", "h-2: it does not run", "repair the others"}},
		"LastAPIServerByItsEtcd":      {etcd: "UUU", api: "UDD", act: etcdOf("h-1"), refused: []string{"no API server but that of host h-1"}},
		"StoppedAPIServer":            {etcd: "UUU", api: "UDU", act: apiOf("h-2"), repairs: true},
		"APIServerNotReady":           {etcd: "UUU", api: "U?U", act: apiOf("h-2")},
		"NoAPIServerReady":            {etcd: "UUU", api: "???", act: apiOf("h-2")},
		"LearnerOfAnAPIServer":        {etcd: "UUL", api: "UUU", act: etcdOf("h-3")},
		"ExternalEtcd":                {api: "UUU", act: apiOf("h-1")},
		"NoSpace":                     {etcd: "UUU", api: "UUU", noSpace: true, act: both("h-1"), refused: []string{"NOSPACE", "defragment"}},
		"NoSpaceEtcdOnly":             {etcd: "UUU", api: "UUU", noSpace: true, act: etcdOf("h-1")},
		"NoSpaceStoppedAPIServer":     {etcd: "UUU", api: "UDU", noSpace: true, act: apiOf("h-2"), repairs: true},
		"LeaveOfThree":                {etcd: "UUU", api: "UUU", act: leave("h-1")},
		"LeaveTheDead":                {etcd: "UXU", api: "UXU", act: leave("h-2")},
		"LeaveAnother":                {etcd: "UXU", api: "UXU", act: leave("h-1"), refused: []string{"lose its quorum: of the 2 members that would stay 1 answer, and 2 are needed", "h-2: its host was not reached", "bring back host h-2"}},
		"LeaveTheDeadAndALiving":      {etcd: "UUUUX", api: "UUUUX", act: leave("h-1", "h-5")},
		"LeaveTheDeadAndALivingOf3":   {etcd: "UUX", api: "UUX", act: leave("h-1", "h-3")},
		"LeaveTheLast":                {etcd: "U", api: "U", act: leave("h-1"), refused: []string{"of the 0 members that would stay", "add a member first"}},
		"LeaveWithoutQuorum":          {etcd: "?DD", api: "???", act: leave("h-3"), refused: []string{"no quorum", "no member can be taken out"}},
		"LeaveALearner":               {etcd: "UUL", api: "UU", act: leave("h-3")},
		"LeaveTheDeadOthersUnreached": {etcd: "UXX", api: "UXX", quorum: true, act: leave("h-2"), refused: []string{"of the 2 members that would stay 1 answer", "h-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(tc.etcd, tc.api)
			s.NoSpace, s.Quorum = tc.noSpace, s.Quorum || tc.quorum
			err := s.Check(tc.act)
			_, typed := errors.AsType[*safety.RefusedError](err)
			if (err != nil) != (len(tc.refused) > 0) || err != nil && !typed {
				t.Fatalf("refused: %v", err)
			}
			for _, want := range tc.refused {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q has no %q", err, want)
				}
			}
			if got := s.Outage(tc.act); (got == "") != (tc.outage == "") || !strings.Contains(got, tc.outage) {
				t.Errorf("outage %q", got)
			}
			if got := s.Repairs(tc.act); got != tc.repairs {
				t.Errorf("repairs: %t", got)
			}
		})
	}
}

// TestRepairIsAllowed: an act that only repairs is always allowed.
func TestRepairIsAllowed(t *testing.T) {
	const letters, servers = "UD?XL", "UD?X" // there are no learners among API servers
	n := 0
	for i := range 5 * 5 * 5 * 4 * 4 * 4 {
		var etcd, api strings.Builder
		for range 3 {
			etcd.WriteByte(letters[i%5])
			i /= 5
		}
		for range 3 {
			api.WriteByte(servers[i%4])
			i /= 4
		}
		s := snapshot(etcd.String(), api.String())
		for _, act := range []safety.Act{etcdOf("h-1"), apiOf("h-1"), both("h-2"), etcdOf("h-1", "h-2", "h-3")} {
			if !s.Repairs(act) {
				continue
			}
			n++
			if err := s.Check(act); err != nil {
				t.Errorf("etcd %s, API servers %s: %v", etcd.String(), api.String(), err)
			}
		}
	}
	if n == 0 {
		t.Error("nothing is repaired")
	}
}

func TestLost(t *testing.T) {
	for name, tc := range map[string]struct {
		before, beforeAPI, now, nowAPI string
		act                            safety.Act
		want                           []string
	}{
		"AllWell":           {before: "UUU", beforeAPI: "UUU", now: "UUU", nowAPI: "UUU", act: both("h-1")},
		"NotBack":           {before: "UUU", beforeAPI: "UUU", now: "DUU", nowAPI: "?UU", act: both("h-1"), want: []string{"etcd of host h-1: it does not run", "API server of host h-1: it does not answer"}},
		"AnotherWentAway":   {before: "UUU", beforeAPI: "UUU", now: "UXU", nowAPI: "UUU", act: etcdOf("h-1"), want: []string{"etcd of host h-2: its host was not reached"}},
		"NoQuorum":          {before: "UUU", beforeAPI: "U", now: "?D?", nowAPI: "U", act: etcdOf("h-2"), want: []string{"etcd has no quorum", "etcd of host h-1: it does not answer", "etcd of host h-2: it does not run", "etcd of host h-3: it does not answer"}},
		"WasDownBefore":     {before: "UUD", beforeAPI: "UUD", now: "UUD", nowAPI: "UUD", act: apiOf("h-1")},
		"NotMended":         {before: "UUD", beforeAPI: "UUD", now: "UUD", nowAPI: "UUD", act: etcdOf("h-3"), want: []string{"etcd of host h-3: it does not run"}},
		"NothingWasThere":   {now: "DDD", nowAPI: "DDD"},
		"Left":              {before: "UUU", beforeAPI: "UUU", now: "UU", nowAPI: "UUU", act: leave("h-3")},
		"AnotherIsToLeave":  {before: "UUU", beforeAPI: "UUU", now: "UDU", nowAPI: "UUU", act: leave("h-2", "h-3")},
		"KubeletOnly":       {before: "UUX", beforeAPI: "UUX", now: "UUX", nowAPI: "UUX", act: safety.Act{}},
		"KubeletOnlyKilled": {before: "UUU", beforeAPI: "UUU", now: "UUU", nowAPI: "UDU", act: safety.Act{}, want: []string{"API server of host h-2: it does not run"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := snapshot(tc.now, tc.nowAPI).Lost(snapshot(tc.before, tc.beforeAPI), tc.act)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("lost (-want +got):\n%s", d)
			}
		})
	}
}

// TestLeaveOrder: dead members are first, and the leader is last.
func TestLeaveOrder(t *testing.T) {
	s := snapshot("UUDX?L", "")
	s.Members[0].Leader = true
	var got []string
	for _, m := range s.LeaveOrder([]string{"h-1", "h-2", "h-3", "h-4", "h-5", "h-6", "h-7"}) {
		got = append(got, m.Host)
	}
	if d := cmp.Diff([]string{"h-3", "h-6", "h-4", "h-5", "h-2", "h-1"}, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	if n := len(s.LeaveOrder([]string{"h-2"})); n != 1 {
		t.Errorf("%d members leave", n)
	}
}

// TestForeseen: members that are repaired or join before an act count for it.
func TestForeseen(t *testing.T) {
	act := both("h-1")
	for name, tc := range map[string]struct {
		s       safety.Snapshot
		allowed bool
	}{
		"AsItIs":        {s: snapshot("UUD", "UUD")},
		"Mended":        {s: snapshot("UUD", "UUD").Repaired("h-3"), allowed: true},
		"OtherMended":   {s: snapshot("UUD", "UUD").Repaired("h-2")},
		"AllMended":     {s: snapshot("DDD", "DDD").Repaired("h-1", "h-2", "h-3"), allowed: true},
		"TwoOfTwo":      {s: snapshot("UU", "UU")},
		"ThirdJoins":    {s: snapshot("UU", "UU").Joined("h-3"), allowed: true},
		"LearnerJoins":  {s: snapshot("UUL", "UU").Joined("h-3"), allowed: true},
		"Healthy":       {s: safety.Healthy([]string{"h-1", "h-2", "h-3"}, []string{"h-1", "h-2", "h-3"}), allowed: true},
		"NoneOfTheirs":  {s: safety.Snapshot{}, allowed: true},
		"MendedNowhere": {s: snapshot("UUD", "UUD").Repaired("w-1")},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.s.Check(act); (err == nil) != tc.allowed {
				t.Errorf("%v", err)
			}
		})
	}
	before := snapshot("UUD", "UUD")
	before.Repaired("h-3")
	before.Joined("h-4")
	if d := cmp.Diff(snapshot("UUD", "UUD"), before); d != "" {
		t.Errorf("the snapshot was changed: %s", d)
	}
}

// TestSettling: only transient states are awaited.
func TestSettling(t *testing.T) {
	for etcd, want := range map[string]bool{"UUU": false, "UUD": false, "UUX": false, "UU?": true} {
		if got := snapshot(etcd, "UUU").Settling(); got != want {
			t.Errorf("%s: %t", etcd, got)
		}
	}
	if !snapshot("UUU", "U?U").Settling() {
		t.Error("an API server that is not ready is not waited for")
	}
}
