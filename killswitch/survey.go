package killswitch

import (
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// SurveyOf gives what the gates need of catch-up's survey.
func SurveyOf(s shadow.Survey) Survey {
	out := Survey{
		Debt: promised(s.Missing, s.Marked), By: s.Lacks().By(), Differing: int64(s.Differing), Unconfirmed: s.Unconfirmed.Reservations,
		ShortBuckets: int64(s.ShortBuckets), Short: s.Short,
	}
	out.Ready, out.Because = s.ReadyForCutover()
	return out
}

// promised sums what one store promised and the other lacks. MySQL's holds that nobody was promised are no debt: the
// gate complete waits for those that matter.
func promised(parts ...reservation.Debt) reservation.Debt {
	var sum reservation.Debt
	for _, d := range parts {
		sum.Reservations += d.Reservations
		sum.Units += d.Units
		sum.DrainsInS = max(sum.DrainsInS, d.DrainsInS)
	}
	return sum
}
