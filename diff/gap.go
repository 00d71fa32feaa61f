package diff

// GapReason says why an operation was not compared.
type GapReason string

// The reasons. The first three are the truth's, the others the mirror's.
const (
	GapUnknown     GapReason = "unknown"        // the truth's outcome is not known
	GapUnavailable GapReason = "unavailable"    // the truth could not be asked, or was busy
	GapRefused     GapReason = "frozen"         // the pod or bucket is frozen
	GapCut         GapReason = "cut"            // MySQL decided, and Redis could not be had before the answer: it is marked
	GapQueueFull   GapReason = "queue_full"     // the mirror's queue was full
	GapBreakerOpen GapReason = "breaker_open"   // the mirror's breaker was open
	GapTimeout     GapReason = "mirror_timeout" // the mirror did not answer within its deadline
	GapError       GapReason = "mirror_error"   // the mirror failed
	GapStale       GapReason = "stale"          // the mirror's fence refused an older epoch, and it was not routed again
	GapNoMirror    GapReason = "no_mirror"      // it was routed again into a stage that has no mirror
	GapPanic       GapReason = "panic"          // the mirror's code panicked
	GapShutdown    GapReason = "shutdown"       // the router stopped first
	GapBackfilled  GapReason = "backfilled"     // its reserve was missing in the mirror and was brought over now
	GapIncoherent  GapReason = "incoherent"     // the pair lacked a decision: a fault in this program
)
