package killswitch

import (
	"github.com/twinhold/twinhold/shadow"
)

// SurveyOf gives what the gates need of catch-up's survey.
func SurveyOf(s shadow.Survey) Survey {
	out := Survey{
		Debt: s.Debt(), Differing: int64(s.Differing), Unconfirmed: s.Unconfirmed.Reservations,
		ShortBuckets: int64(s.ShortBuckets), Short: s.Short,
	}
	out.Ready, out.Because = s.ReadyForCutover()
	return out
}
