package shadow

import (
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// sightings are the stamps that are known to have been in force.
type sightings struct {
	redis, mysql reservation.Fence
	known        []reservation.Stamp // routers'
}

func (s sightings) all() []reservation.Stamp {
	return append([]reservation.Stamp{s.redis.Stamp, s.mysql.Stamp}, s.known...)
}

func (s sightings) highest() reservation.Stamp {
	var top reservation.Stamp
	for _, st := range s.all() {
		if st.Epoch > top.Epoch {
			top = st
		}
	}
	return top
}

// verdict is the fence that a restored Redis gets.
type verdict struct {
	to     reservation.Stamp
	latch  string // to be set; empty: the latch stays as it is
	doubts []string
}

// judge chooses the stamp: above every epoch seen, its stage that of the highest. MySQL's fence only ever follows
// Redis's, so where it alone is the highest, nobody can tell what came after it: a kill may have, and shadow is what a
// kill leads to. There the pod has nothing to lose by it, since MySQL has all that it decided itself.
func (s sightings) judge(to reservation.Stamp, latch string) (verdict, error) {
	top := s.highest()
	switch {
	case to.Epoch != 0 && (to.Epoch < top.Epoch || to.Epoch == top.Epoch && to.Stage != top.Stage):
		return verdict{}, fmt.Errorf("epoch %d, %s was asked for, but epoch %d, %s has been seen", to.Epoch, to.Stage, top.Epoch, top.Stage)
	case to.Epoch != 0:
		return verdict{to: to}, nil
	case top.Epoch == 0:
		return verdict{}, &reservation.FenceError{Store: reservation.MySQL, Verdict: reservation.NoFence}
	}
	v := verdict{to: reservation.Stamp{Epoch: top.Epoch + 1, Stage: top.Stage}}
	forward := top.Stage == reservation.Handover || top.Stage == reservation.Cutover
	switch {
	case s.torn(top):
		v.doubt("epoch %d was seen in two stages: the pod is in shadow now", top.Epoch)
	case forward && s.redis.Killed:
		v.doubt("the pod was killed before Redis was lost: it is in shadow now")
	case forward && latch != "":
		v.doubt("a kill was lost with Redis: the pod is in shadow now")
	case forward && s.onlyMySQL(top):
		v.doubt("only MySQL's fence knows of epoch %d, %s: a kill after it may be lost, so the pod is in shadow now", top.Epoch, top.Stage)
	}
	if !s.redis.Killed {
		v.latch = latch
	}
	if top.Stage == reservation.Legacy {
		v.doubts = append(v.doubts, "MySQL knows no holds of stage legacy: those that Redis has lost are lost")
	}
	return v, nil
}

func (v *verdict) doubt(format string, args ...any) {
	v.to.Stage = reservation.Shadow
	v.doubts = append(v.doubts, fmt.Sprintf(format, args...))
}

func (s sightings) torn(top reservation.Stamp) bool {
	for _, st := range s.all() {
		if st.Epoch == top.Epoch && st.Stage != top.Stage {
			return true
		}
	}
	return false
}

func (s sightings) onlyMySQL(top reservation.Stamp) bool {
	for _, st := range append([]reservation.Stamp{s.redis.Stamp}, s.known...) {
		if st == top {
			return false
		}
	}
	return true
}
