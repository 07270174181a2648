package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"testing"
	"time"
)

// TestJudge: a Lease is taken if it has no holder, or if it was unchanged for its whole duration.
// The times in it do not matter.
func TestJudge(t *testing.T) {
	const duration = 15 * time.Second
	now := time.Now()
	spec := func(holder string, renewed time.Time) claim {
		return claim{Holder: &holder, Seconds: new(15), Renewed: &microTime{renewed}, Transitions: new(3)}
	}
	for name, tc := range map[string]struct {
		last        seen
		is          claim
		writes      bool
		transitions int
	}{
		"Empty":                {is: claim{}, writes: true, transitions: 1},
		"GivenBack":            {is: spec("", now), writes: true, transitions: 4},
		"NeverSeen":            {is: spec("other", now.Add(-time.Hour))},
		"SeenLately":           {last: seen{"other", now.Add(-time.Hour), now.Add(-duration)}, is: spec("other", now.Add(-time.Hour))},
		"SeenForLong":          {last: seen{"other", now, now.Add(-duration - 1)}, is: spec("other", now), writes: true, transitions: 4},
		"RenewedMeanwhile":     {last: seen{"other", now.Add(-time.Minute), now.Add(-time.Hour)}, is: spec("other", now.Add(-59*time.Second))},
		"AnotherTookIt":        {last: seen{"other", now, now.Add(-time.Hour)}, is: spec("third", now)},
		"OursAndFresh":         {last: seen{"me", now.Add(-4 * time.Second), now}, is: spec("me", now.Add(-4*time.Second))},
		"OursAndDue":           {last: seen{"me", now.Add(-5 * time.Second), now}, is: spec("me", now.Add(-5*time.Second)), writes: true, transitions: 3},
		"OursOfAnEarlierRun":   {is: spec("me", now), writes: true, transitions: 3},
		"ItsHolderTakesLonger": {last: seen{"other", now, now.Add(-duration - 1)}, is: claim{Holder: new("other"), Seconds: new(60), Renewed: &microTime{now}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, next := judge(now, tc.last, tc.is, "me", duration)
			if (next != nil) != tc.writes {
				t.Fatalf("it writes %+v, want %t", next, tc.writes)
			}
			if next != nil && (*next.Holder != "me" || *next.Seconds != 15 || !next.Renewed.Equal(now) || *next.Transitions != tc.transitions) {
				t.Errorf("it writes holder %s, %d s, renewed %s, %d transitions, want %d", *next.Holder, *next.Seconds, next.Renewed, *next.Transitions, tc.transitions)
			}
		})
	}
	// Encoding and decoding keep the time. Otherwise the agent would see a changed Lease at
	// each read.
	text, err := json.Marshal(microTime{now})
	var read microTime
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil || now.Sub(read.Time).Abs() > time.Microsecond {
		t.Errorf("%s is read as %s: %v", text, read, err)
	}
}

// TestNext: the next step of the leading agent, in each state that a killed agent can leave.
func TestNext(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	j := &join{token: "one", profile: profileAll}
	replacing := &join{token: "one", profile: profileAll, replace: true}
	at := sha256.Sum256([]byte("authorities"))
	certificate := func(since, until time.Duration) *x509.Certificate {
		return &x509.Certificate{NotBefore: now.Add(since), NotAfter: now.Add(until)}
	}
	fresh := certificate(-time.Hour, 90*24*time.Hour)
	all := progress{at: at, renewal: now.Add(time.Hour), rights: j.rights()}
	for name, tc := range map[string]struct {
		join     *join
		state    state
		progress progress
		want     step
	}{
		"NothingApplied":          {want: stepApply},
		"Applied":                 {join: j, want: stepKey},
		"KeyStored":               {join: j, state: state{key: key, join: j.hash()}, want: stepRedeem},
		"AnotherToken":            {join: j, state: state{key: key, join: "other", certificate: fresh}, progress: all, want: stepRedeem},
		"AnotherTokenAndEnded":    {join: j, state: state{key: key, join: "other", certificate: certificate(-time.Hour, -1)}, progress: all, want: stepRedeem},
		"TokenRefused":            {join: j, state: state{key: key, join: "other", certificate: fresh}, progress: progress{at: at, renewal: now, rights: all.rights, refused: j.hash()}, want: stepReport},
		"TokenRefusedAndReported": {join: j, state: state{key: key, join: "other", certificate: fresh}, progress: progress{at: at, renewal: all.renewal, rights: all.rights, refused: j.hash()}, want: stepNone},
		"OneRefusedBefore":        {join: j, state: state{key: key, join: "other", certificate: fresh}, progress: progress{at: at, renewal: all.renewal, rights: all.rights, refused: "before"}, want: stepRedeem},
		"RefusedAndNoneBefore":    {join: j, state: state{key: key, join: "other"}, progress: progress{refused: j.hash()}, want: stepRedeem},
		"KeyIsToBeReplaced":       {join: replacing, state: state{key: key, join: "other", certificate: fresh}, progress: all, want: stepKey},
		"KeyIsReplaced":           {join: replacing, state: state{key: key, join: j.hash()}, progress: all, want: stepRedeem},
		"ReplacedAndRedeemed":     {join: replacing, state: state{key: key, join: j.hash(), certificate: fresh}, progress: all, want: stepNone},
		"NeverRedeemed":           {join: j, state: state{key: key, join: "other"}, progress: all, want: stepRedeem},
		"CertificateStored":       {join: j, state: state{key: key, join: j.hash(), certificate: fresh}, want: stepPrune},
		"NothingReported":         {join: j, state: state{key: key, join: j.hash(), certificate: fresh}, progress: progress{rights: j.rights()}, want: stepReport},
		"AllReported":             {join: j, state: state{key: key, join: j.hash(), certificate: fresh}, progress: all, want: stepNone},
		"AuthoritiesChanged":      {join: j, state: state{key: key, join: j.hash(), certificate: fresh}, progress: progress{renewal: all.renewal, rights: all.rights, at: sha256.Sum256(nil)}, want: stepReport},
		"TokenDue":                {join: j, state: state{key: key, join: j.hash(), certificate: fresh}, progress: progress{at: at, rights: all.rights, renewal: now}, want: stepReport},
		"CertificateNotYetDue":    {join: j, state: state{key: key, join: j.hash(), certificate: certificate(-29*24*time.Hour, 61*24*time.Hour)}, progress: all, want: stepNone},
		"CertificateDue":          {join: j, state: state{key: key, join: j.hash(), certificate: certificate(-30*24*time.Hour, 60*24*time.Hour)}, progress: all, want: stepReport},
		"CertificateEnded":        {join: j, state: state{key: key, join: j.hash(), certificate: certificate(-time.Hour, -1)}, progress: all, want: stepExpired},
		"JoinSecretDeleted":       {state: state{key: key, join: j.hash(), certificate: fresh}, progress: all, want: stepApply},
		"Gone":                    {join: j, state: state{key: key, join: j.hash(), certificate: fresh, gone: true}, want: stepRemove},
		"GoneAndHalfRemoved":      {state: state{key: key, join: j.hash(), gone: true}, want: stepRemove},
		"GoneAndJoinedAgain":      {join: &join{token: "two"}, state: state{key: key, join: j.hash(), certificate: fresh, gone: true}, want: stepKey},
		"ProfileChanged":          {join: &join{token: "one", profile: profileMirror}, state: state{key: key, join: j.hash(), certificate: fresh}, progress: all, want: stepPrune},
	} {
		t.Run(name, func(t *testing.T) {
			if got := next(now, tc.join, tc.state, tc.progress, at); got != tc.want {
				t.Errorf("step %d, want %d", got, tc.want)
			}
		})
	}
}

// TestPause: the pause doubles, has a random part, and is at most ten seconds.
func TestPause(t *testing.T) {
	for failures, most := range map[int]time.Duration{1: firstPause, 2: 2 * firstPause, 7: lastPause, 8: lastPause, 1000: lastPause} {
		for range 100 {
			if p := pause(failures); p < most/4 || p > most || p > 10*time.Second {
				t.Fatalf("after %d failures %s are waited, want %s to %s", failures, p, most/4, most)
			}
		}
	}
}

// TestReady: an agent is ready if a spare answered lately; otherwise the error says why not.
func TestReady(t *testing.T) {
	r := &runner{}
	if err := r.ready(time.Now()); err == nil || err.Error() != "the agent is not enrolled with the hub yet" {
		t.Errorf("without a certificate: %v", err)
	}
	r.reconciled.Store(time.Now().UnixNano())
	if err := r.live(time.Now()); err != nil {
		t.Errorf("after a call of reconcile: %v", err)
	}
	if err := r.live(time.Now().Add(stuck + time.Second)); err == nil {
		t.Error("an agent that is stuck is live")
	}
}
