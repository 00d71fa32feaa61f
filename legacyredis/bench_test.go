package legacyredis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// BenchmarkReserve is a reserve from one caller, by the size of the cart. server_us is Redis's own time per script.
func BenchmarkReserve(b *testing.B) {
	for _, n := range []int{1, 10, 100, 749, reservation.MaxLines} {
		b.Run(fmt.Sprintf("lines=%d", n), func(b *testing.B) {
			srv := devtest.Private(b, devstack.Options{Redis: true}).Redis
			client, err := legacyredis.NewClient(srv.URL(0), "pod-1")
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			s, err := legacyredis.New(legacyredis.Options{Pod: "pod-1", Client: client, Ledger: noLedger{}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.InitFence(b.Context(), stamp()); err != nil {
				b.Fatal(err)
			}
			figs, cart := make([]reservation.Figures, n), make([]reservation.Line, n)
			for i := range n {
				figs[i] = reservation.Figures{Bucket: bucket(int64(i + 1)), OnHand: 1 << 40, Version: 1}
				cart[i] = line(int64(i+1), 2)
			}
			if _, err := s.ApplyFigures(b.Context(), stamp(), figs, true); err != nil {
				b.Fatal(err)
			}
			req := request(b, "k", time.Hour, cart...)
			if err := client.ConfigResetStat(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				req.Key = fmt.Sprint(i)
				if _, err := s.Reserve(b.Context(), stamp(), newID(b), req); err != nil {
					b.Fatal(err)
				}
			}
			b.Logf("%s", infoField(b, client, "commandstats", "cmdstat_evalsha"))
		})
	}
}
