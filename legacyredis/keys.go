package legacyredis

import (
	"strconv"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// keys builds the names of a pod's keys. All carry the pod's hash tag, so that they are in one slot:
//
//	{pod}:fence                        hash: epoch, stage, incarnation, incarnation_epoch, server, frozen, and where
//	                                   they were set suspect and frozen_buckets (shop:item:group,...); beside them
//	                                   token (the call that changed it last) and waited (see WaitReplica)
//	{pod}:kill                         the latch: a string, the reason. Its being there is the kill
//	{pod}:audit                        list of JSON: one reservation.AuditRecord each, oldest first
//	{pod}:routers                      hash: router -> 'microseconds json', its last heartbeat by Redis's clock
//	{pod}:restore                      the token of the restore that is under way; it expires with its lease
//	{pod}:avail:<shop>:<item>:<group>  what can be reserved; beside it held:, onhand: and ver: (the ledger's version)
//	{pod}:done:<shop>:<item>:<group>   set of the ledger's versions above ver: that were applied before their turn;
//	                                   absent but for the moments in which finishes overtake each other
//	{pod}:res:<id>                     hash: one reservation; its fields are those of record.go and the scripts
//	{pod}:key:<shop>:<key>             the id that an idempotency key stands for
//	{pod}:adj:<shop>:<adjustment id>   hash: an adjustment under way
//	{pod}:created                      sorted set of ids, all of score 0: the order of ids is that of creation
//	{pod}:exp                          sorted set of ids and adj:<shop>:<adjustment id>, by the microsecond at which
//	                                   each needs attention: expires_at while held, the pin's lease, then purge_at
type keys struct{ prefix string }

const adjMember = "adj:"

func newKeys(pod string) keys { return keys{prefix: "{" + pod + "}:"} }

func (k keys) fence() string                { return k.prefix + "fence" }
func (k keys) audit() string                { return k.prefix + "audit" }
func (k keys) routers() string              { return k.prefix + "routers" }
func (k keys) exp() string                  { return k.prefix + "exp" }
func (k keys) created() string              { return k.prefix + "created" }
func (k keys) reservation(id string) string { return k.prefix + "res:" + id }
func (k keys) counter(kind string, b reservation.Bucket) string {
	return k.prefix + kind + ":" + b.String()
}

// split gives the kind of one of the pod's keys, and the rest of its name.
func (k keys) split(key string) (kind, rest string) {
	kind, rest, _ = strings.Cut(strings.TrimPrefix(key, k.prefix), ":")
	return kind, rest
}

// stays tells the keys that are no data: a wipe leaves them, and a Redis that holds nothing else is empty.
func (k keys) stays(key string) bool {
	switch kind, rest := k.split(key); kind {
	case "fence", "kill", "routers", "audit", "restore":
		return rest == ""
	default:
		return false
	}
}

// all is a SCAN pattern that matches every key of the pod.
func (k keys) all() string {
	esc := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
	return esc.Replace(k.prefix) + "*"
}

// counterKinds are the counters of a bucket; available is the one that makes it known.
func counterKinds() []string { return []string{"avail", "held", "onhand", "ver"} }

func parseBucket(s string) (reservation.Bucket, bool) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return reservation.Bucket{}, false
	}
	var n [3]int64
	for i, p := range parts {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return reservation.Bucket{}, false
		}
		n[i] = v
	}
	b := reservation.Bucket{Shop: n[0], Item: n[1], Group: n[2]}
	return b, b.Validate() == nil
}
