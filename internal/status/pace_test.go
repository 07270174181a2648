package status

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

func TestPacer(t *testing.T) {
	const uid = types.UID("b")
	b := &workv1alpha2.ResourceBinding{}
	b.UID = uid
	first, second := version{binding: 1, template: "1"}, version{binding: 1, template: "2"}

	t.Run("AVersionWaitsForItsFirstAnswers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPacer()
			for i, v := range []version{first, second} {
				if edited := p.see(uid, v); edited != (i > 0) {
					t.Errorf("version %d: edited is %v", i, edited)
				}
				if wait := p.wait(b, true); wait != settle {
					t.Errorf("version %d: answers are due, and the write waits %v, want %v", i, wait, settle)
				}
				if wait := p.wait(b, false); wait > 0 {
					t.Errorf("version %d: every answer is there, and the write waits %v", i, wait)
				}
				time.Sleep(patience)
				p.see(uid, v)
				if wait := p.wait(b, true); wait > 0 {
					t.Errorf("version %d: the write waits %v longer than patience", i, wait)
				}
			}
			if !p.see(uid, version{binding: 2}) {
				t.Error("an edit is forgotten when the template is not known for a moment")
			}
		})
	})
	t.Run("WritesAreASecondApart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPacer()
			p.see(uid, first)
			p.wrote(uid)
			time.Sleep(pace / 4)
			if wait := p.wait(b, false); wait != pace*3/4 {
				t.Errorf("the next write waits %v, want %v", wait, pace*3/4)
			}
			time.Sleep(pace)
			if wait := p.wait(b, false); wait > 0 {
				t.Errorf("the next write waits %v longer than the pace", wait)
			}
		})
	})
	t.Run("ADeletionMayTakeItsTime", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPacer()
			p.removal(uid)
			time.Sleep(time.Second)
			if wait := p.removal(uid); wait != removalPatience-time.Second {
				t.Errorf("%v are left, want %v", wait, removalPatience-time.Second)
			}
			time.Sleep(removalPatience)
			if wait := p.removal(uid); wait > 0 {
				t.Errorf("%v are left after it took too long", wait)
			}
			p.forget(uid)
			if wait := p.removal(uid); wait != removalPatience {
				t.Errorf("%v are left to one that was forgotten, want %v", wait, removalPatience)
			}
		})
	})
}
