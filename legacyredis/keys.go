package legacyredis

import (
	"strconv"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// keys builds the names of a pod's keys. All carry the pod's hash tag, so that they are in one slot:
//
//	{pod}:fence                        hash: epoch, stage, incarnation, incarnation_epoch, server, frozen
//	{pod}:avail:<shop>:<item>:<group>  what can be reserved; beside it held:, onhand: and ver: (the ledger's version)
//	{pod}:res:<id>                     hash: one reservation; its fields are those of record.go and the scripts
//	{pod}:key:<shop>:<key>             the id that an idempotency key stands for
//	{pod}:adj:<shop>:<adjustment id>   hash: an adjustment under way
//	{pod}:created                      sorted set of ids, all of score 0: the order of ids is that of creation
//	{pod}:exp                          sorted set of ids and adj:<shop>:<adjustment id>, by the microsecond at which
//	                                   each needs attention: expires_at while held, the pin's lease, then purge_at
type keys struct{ prefix string }

const adjMember = "adj:"

func (k keys) fence() string                { return k.prefix + "fence" }
func (k keys) exp() string                  { return k.prefix + "exp" }
func (k keys) created() string              { return k.prefix + "created" }
func (k keys) reservation(id string) string { return k.prefix + "res:" + id }
func (k keys) counter(kind string, b reservation.Bucket) string {
	return k.prefix + kind + ":" + b.String()
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
